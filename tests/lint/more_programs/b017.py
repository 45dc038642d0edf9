# A service: whole-model inference per request.
import torch
from fastapi import FastAPI

app = FastAPI()
model = torch.jit.load("model.pt").eval()


@app.post("/predict")
def predict(payload: dict):
    x = torch.tensor(payload["x"])
    y = model(x)  # expect: eval-with-grad
    return {"y": y.tolist()}
