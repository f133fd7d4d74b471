"""A trial finds kernels that fail, and kernels that compute something else."""

import inspect
import random

import numpy as np
import pytest
import torch

from consilia import kernels
from consilia.kernels.trial import trial

#: What each kernel stores, by its names for them.
STORED = {
    "conv._convolve": ["y"],
    "conv._weigh": ["part"],
    "conv._add": ["total"],
    "norm._sum_squares": ["part"],
    "norm._apply": ["y", "table", "running_mean", "running_var"],
    "norm._sum_gradients": ["part"],
    "norm._gradients": ["dx", "learned"],
    "norm._scale": ["y"],
    "sample._largest": ["y"],
    "sample._to_largest": ["dx"],
    "sample._join": ["y"],
    "sample._part": ["dbelow"],
}


@pytest.fixture
def tried(interpreted):
    """Return a function that tries the kernels anew."""
    return lambda dtype=torch.float32: trial.__wrapped__(torch.device(interpreted), dtype)


@pytest.fixture
def around(monkeypatch, interpreted):
    """Return a function that has something called with a kernel's arguments whenever it has run."""
    from consilia.kernels import conv, norm, sample

    def put(name, then):
        module, _, kernel = name.partition(".")
        owner = {"conv": conv, "norm": norm, "sample": sample}[module]
        real = getattr(owner, kernel)
        names = list(inspect.signature(real.fn).parameters)

        class Around:
            def __getitem__(self, grid):
                def launch(*given, **named):
                    real[grid](*given, **named)
                    then({**dict(zip(names, given, strict=False)), **named})

                return launch

        monkeypatch.setattr(owner, kernel, Around())

    return put


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_uses_every_kernel(dtype, tried, around, interpreted):
    from consilia.kernels import conv, norm, sample

    there = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (conv, norm, sample)
        for name, kernel in vars(module).items()
        if name.startswith("_") and hasattr(kernel, "__getitem__") and hasattr(kernel, "fn")
    }
    called = {"norm._over_group", "sample._first", "sample._share"}  # by other kernels
    assert there == STORED.keys() | called
    ran = set()
    for name in STORED:
        around(name, lambda given, name=name: ran.add(name))
    assert tried(dtype) is None
    assert ran == STORED.keys()


@pytest.mark.parametrize(
    ("kernel", "stored"), [(kernel, each) for kernel in STORED for each in STORED[kernel]]
)
def test_a_kernel_that_stores_something_else_is_found(kernel, stored, tried, around):
    around(kernel, lambda given: given[stored].mul_(1.1))
    assert "differs from PyTorch's by" in tried()


def test_what_is_not_a_number_is_found(tried, around):
    around("sample._part", lambda given: given["dbelow"].fill_(torch.nan))
    assert tried() == "joining differs from PyTorch's by nan of its length"


def test_a_kernel_in_bfloat16_is_found_too(tried, around):
    around("norm._scale", lambda given: given["y"].mul_(1.1))
    assert (
        tried(torch.bfloat16)
        == "batch norm in evaluation differs from PyTorch's by 0.1 of its length"
    )


def test_one_that_fails_is_told(tried, monkeypatch):
    def broken(x):
        message = "Failed to find C compiler.\nAnd more."
        raise RuntimeError(message)

    monkeypatch.setattr(kernels, "halved", broken)
    assert tried() == "one failed (RuntimeError: Failed to find C compiler.)"


def test_whoever_draws_next_draws_the_same(tried):
    def drawn():
        return torch.rand(3).tolist(), np.random.rand(), random.random()

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    wanted = drawn()
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    tried()
    assert drawn() == wanted
