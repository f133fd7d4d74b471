"""On a GPU: a run of captured steps in lanes comes to what the eager run comes to.

Elsewhere nothing can be captured, and `tests/training/test_capture.py` checks what can be without a card.
"""

import logging

import pytest
import torch
from benchmarks.gpu import compared
from tests.methods.test_every_method import spec_for

from consilia.testing import toy_sites, with_changes

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU to capture on"
)
METHODS = ("fedavg", "fedmix", "fedia", "fedlppa", "fedlsm")
#: What these do at each step besides a loss is not captured, and the log says so.
ACTS = {"fedlsm"}


def toy(name):
    """Return a run whose first round has enough batches of four to be recorded."""
    spec = with_changes(spec_for(name), "training.epochs=5", "training.optimizer=sgd")
    return spec, toy_sites(spec)


@needs_gpu
@pytest.mark.parametrize("kernels", ["off", "on"])
@pytest.mark.parametrize("name", METHODS)
def test_captured_and_eager_runs_agree(name, kernels, caplog):
    with caplog.at_level(logging.WARNING, "consilia"):
        found = compared(*toy(name), "cuda", kernels)
    assert found["agrees"], found
    eager = [r.getMessage() for r in caplog.records if "eagerly" in r.getMessage()]
    assert name in ACTS or not eager


@pytest.mark.parametrize("name", ["fedavg", "fedlsm"])
def test_without_a_gpu_the_comparison_finds_no_difference(name):
    found = compared(*toy(name), "cpu")
    assert found["agrees"]
    assert found["captured_to_eager"] == found["eager_to_itself"] == 0
    assert len(found["losses"]["captured"]) == 3
