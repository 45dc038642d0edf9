# Written after the rules were, in other styles than those they were made with.
import torch
def predict(model, x):
    model.eval()
    return model(x).softmax(-1)  # expect: eval-with-grad
