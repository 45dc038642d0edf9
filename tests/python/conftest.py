import pytest
import torch

import lowtide


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)  # the same sums in every run
    yield


@pytest.fixture
def room():
    """Bytes live before the test, to set limits above."""
    return lowtide.meter().live_bytes
