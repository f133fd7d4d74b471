"""What a process asks of its machine."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
import torch
from consilia.engines.machine import keep_memory
for name in (-1, -3):  # a process that gives everything back, as processes often come to do
    ctypes.CDLL(None).mallopt(name, 65536)
if sys.argv[1] == "kept":
    keep_memory()
torch.set_num_threads(1)
for turn in range(60):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.ones(2**20) for _ in range(8)]  # 4 MiB each, all of them freed at the end of a turn
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how, **environment):
    """Return the page faults of fifty turns that take and free the same tensors."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    told = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        check=True,
        capture_output=True,
        text=True,
        env={**clean, **environment},
    )
    return int(told.stdout)


glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries stay as they are"
)


@glibc
def test_freed_memory_is_kept_for_the_next_step():
    assert faults("kept") < faults("as it comes") / 4


@glibc
def test_what_somebody_has_set_stays():
    # a setting of the user's own: every tensor comes from the system
    assert faults("kept", MALLOC_MMAP_THRESHOLD_="65536") > 50 * 8 * 100
