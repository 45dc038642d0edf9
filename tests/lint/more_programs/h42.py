# Written after the rules were, in other styles than those they were made with.
import torch
import pytest
from net import Net
def test_forward():
    model = Net()
    model.eval()
    out = model(torch.randn(1, 3, 32, 32))
    assert out.shape == (1, 10)
