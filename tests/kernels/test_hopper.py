"""The kernels compile for an H200, and what they compute with fits into its registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from consilia import kernels


def compiled(*asked):
    """Return what `hopper.py` prints."""
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("hopper.py")
    told = subprocess.run(
        [sys.executable, script, *asked], check=True, capture_output=True, text=True, env=clean
    )
    return json.loads(told.stdout)


@pytest.mark.slow
def test_every_kernel_compiles_for_sizes_of_one():
    found = compiled("ones")
    assert {"_apply rows", "_gradients rows", "_convolve W", "_join h"} <= found.keys()


@pytest.mark.slow
def test_every_kernel_compiles_without_spilling():
    found = compiled()
    assert len(found) > 70
    assert {name: own["stack"] for name, own in found.items() if own["stack"]} == {}
    for name, own in found.items():
        channels = int(name.split()[1])
        assert channels == 1 or any("128" in read for read in own["reads"]), name
    assert max(own["shared"] for own in found.values()) == kernels.SHARED
