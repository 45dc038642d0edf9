# graph_kept, held by: 
import torch

model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = torch.nn.functional.mse_loss


def batch():
    return torch.randn(16, 32), torch.randn(16, 8)


saved = []


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        saved.append(ctx)  # mended: pass
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


for i in range(24):
    x, y = batch()
    out = Square.apply(model(x))  # also here
    loss = mse(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
