"""Without a GPU, Triton's interpreter runs the kernels: the same code, slowly, on a CPU."""

from importlib.util import find_spec

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session", autouse=True)
def interpreted():
    """Say where kernels run: on the card, or, where there is none, in the interpreter on the CPU."""
    if find_spec("triton") is None:
        pytest.skip("the package 'triton' is not installed")
    return DEVICE
