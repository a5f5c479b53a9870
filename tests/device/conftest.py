import pytest
import torch


@pytest.fixture(autouse=True)
def device() -> torch.device:
    """The accelerator; tests are skipped if there is none."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return torch.device("cuda:0")
