# A service, right.
import torch
from fastapi import FastAPI

app = FastAPI()
model = torch.jit.load("model.pt").eval()
torch.set_grad_enabled(False)


@app.post("/predict")
def predict(payload: dict):
    x = torch.tensor(payload["x"])
    y = model(x)
    return {"y": y.tolist()}
