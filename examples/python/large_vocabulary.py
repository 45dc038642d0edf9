"""A head over a large vocabulary, a wide MLP, and a linear layer of low rank, each without the memory.

    python large_vocabulary.py
"""

import torch
from torch import nn
from torch.nn import functional as F

import lowtide

TOKENS, WIDTH, VOCABULARY = 1024, 64, 16000

torch.manual_seed(0)
torch.set_num_threads(1)
hidden = torch.randn(TOKENS, WIDTH, requires_grad=True)
head = nn.Linear(WIDTH, VOCABULARY)
target = torch.randint(0, VOCABULARY, (TOKENS,))


def plain():
    return F.cross_entropy(head(hidden), target, label_smoothing=0.1)


def fused():
    return lowtide.linear_cross_entropy(
        hidden, head.weight, target, bias=head.bias, label_smoothing=0.1, chunk="4MiB")


def measured(run, *modules):
    for module in modules:
        module.zero_grad()
    meter = lowtide.meter()
    before = meter.live_bytes
    loss = run()
    loss.backward()
    return loss.detach(), meter.peak_bytes - before


if __name__ == "__main__":
    expected, whole = measured(plain, head)
    gradient = head.weight.grad.clone()
    found, least = measured(fused, head)
    print(f"logits {TOKENS} x {VOCABULARY} = {TOKENS * VOCABULARY * 4 >> 20} MiB")
    print(f"linear and cross_entropy  {whole / 2**20:6.1f} MiB at the peak")
    print(f"linear_cross_entropy      {least / 2**20:6.1f} MiB at the peak")
    assert torch.allclose(expected, found) and torch.allclose(gradient, head.weight.grad, atol=1e-6)
    assert least < whole / 4

    mlp = nn.Sequential(nn.Linear(WIDTH, 64 * WIDTH), nn.GELU(), nn.Linear(64 * WIDTH, WIDTH))
    expected, whole = measured(lambda: mlp(hidden).square().mean(), mlp)
    found, least = measured(lambda: lowtide.checkpointed_mlp(mlp, hidden, chunk="1MiB").square().mean(), mlp)
    print(f"wide MLP: {whole / 2**20:.1f} MiB plain, {least / 2**20:.1f} MiB in chunks")
    assert torch.allclose(expected, found) and least < whole / 2

    print(lowtide.compare_factorised(4096, 16384, 512))
    low = lowtide.nn.FactorisedLinear.of(nn.Linear(256, 512), 64)
    print(f"a random layer of rank 64: relative error {low.relative_error:.2f}")
