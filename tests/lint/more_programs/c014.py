# Test-time adaptation: entropy minimisation in eval. Right, gradients are needed.
import torch


@torch.enable_grad()
def adapt_and_predict(x, model, optimizer):
    outputs = model(x)
    loss = -(outputs.softmax(1) * outputs.log_softmax(1)).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return outputs.detach()


def evaluate(model, loader, optimizer):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (adapt_and_predict(x, model, optimizer).argmax(1) == y).sum().item()
    return correct
