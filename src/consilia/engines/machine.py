"""What a process asks of the machine it computes on: a device, threads, and memory that it keeps."""

from __future__ import annotations

import ctypes
import logging
import os

import torch

from consilia import kernels
from consilia.errors import UsageError
from consilia.kernels.trial import trial
from consilia.networks.layers import can_fuse
from consilia.runs.spec import RunSpec
from consilia.training.site import Workbench

LOG = logging.getLogger("consilia")

#: Names of glibc's `mallopt`, with values: what is freed at the end of the heap stays up to a GiB, the heap
#: grows in large steps, and only pieces above 32 MiB (the most that glibc takes) are asked of the system.
_KEPT = {-1: 2**30, -2: 2**26, -3: 2**25}


def choose_device(spec: RunSpec) -> torch.device:
    """Return the device the run file asks for, or refuse it where it is not there."""
    wanted = spec.engine.device
    if wanted == "cuda" and not torch.cuda.is_available():
        msg = "engine.device is 'cuda', but PyTorch sees no GPU here; use 'cpu' or 'auto'"
        raise UsageError(msg)
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def settle(spec: RunSpec) -> None:
    """Use every core of the machine unless the run file says otherwise, and keep memory once it is had."""
    torch.set_num_threads(spec.engine.threads or len(os.sched_getaffinity(0)))
    keep_memory()


def keep_memory() -> None:
    """Let the C library keep what tensors free, for the tensors of the next step.

    By default each large tensor's pages go back to the system and come anew, zeroed, at the next step: a
    tenth of a step on a free machine, half of it on one whose memory is in demand. Libraries other than
    glibc, and settings that somebody has made (`MALLOC_TRIM_THRESHOLD_` and the like), stay as they are.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in _KEPT.items():
            mallopt(name, value)


def why_no_kernels(spec: RunSpec, device: torch.device) -> str | None:
    """Return why networks do not run on kernels of our own, or `None` where they do."""
    return _why_none_tried(spec, device) or trial(
        device, torch.bfloat16 if spec.engine.precision == "bf16" else torch.float32
    )


def warn_of_kernels(spec: RunSpec, bench: Workbench) -> None:
    """Say why PyTorch's kernels run where ours were asked for, or should have passed their trial."""
    why, wanted = _why_none_used(spec, bench), spec.engine.kernels
    tried = can_fuse(bench.network()) and _why_none_tried(spec, bench.device) is None
    if why is not None and (wanted == "on" or tried):
        LOG.warning("engine.kernels is '%s', but PyTorch's own kernels run: %s", wanted, why)


def card(spec: RunSpec, bench: Workbench) -> dict[str, str]:
    """Return which GPU computes, and whether on kernels of our own; nothing where there is no GPU."""
    if bench.device.type != "cuda":
        return {}
    why = _why_none_used(spec, bench)
    return {
        "gpu": torch.cuda.get_device_name(bench.device),
        "kernels": "used" if why is None else f"not used: {why}",
    }


def _why_none_used(spec: RunSpec, bench: Workbench) -> str | None:
    """Return why a network does not run on kernels of our own, or `None` where it does."""
    if not can_fuse(bench.network()):
        return "this network has no layers for them"
    return why_no_kernels(spec, bench.device)


def _why_none_tried(spec: RunSpec, device: torch.device) -> str | None:
    """Return why kernels of our own are not meant to run here, or `None` where a trial decides."""
    if spec.engine.kernels == "off":
        return "engine.kernels is 'off'"
    if device.type != "cuda":
        return "they are for a GPU"
    if not kernels.available():
        return "the package 'triton', which compiles them, is not installed"
    if spec.engine.precision == "float32":
        return "they round factors, and engine.precision is 'float32'"
    if spec.engine.compile == "on":
        return "engine.compile writes kernels itself"
    if not kernels.fit_on(device):
        return "this card has too little shared memory for them"
    if spec.engine.kernels == "auto" and not kernels.measured_on(device):
        return "they were not measured on this kind of card; engine.kernels = 'on' takes them"
    return None
