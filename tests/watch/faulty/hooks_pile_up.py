# graph_kept or tensors_kept, held by: model.0._forward_hooks[
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


def keep(into):
    return lambda module, args, out: into.append(out)  # also here


for i in range(12):
    features = []
    model[0].register_forward_hook(keep(features))  # mended: handle = model[0].register_forward_hook(keep(features))
    x, y = batch()
    out = model(x)
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # mended: handle.remove()
