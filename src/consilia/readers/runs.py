"""Run-length codes of masks, as COCO and CVAT write them: lengths of 0s and 1s in turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilia.weaken.regions import Mask


def unpack(text: str) -> list[int]:
    """Return the lengths that COCO's compressed text stands for.

    Each character carries five bits from the lowest and says whether more follow; from the fourth
    length on, differences to the last but one are stored.

    Raises:
        ValueError: The text ends within a number, or is none.
    """
    lengths: list[int] = []
    value = shift = 0
    for letter in text:
        code = ord(letter) - 48
        if not 0 <= code < 64 or shift > 60:
            raise ValueError
        value |= (code & 0x1F) << shift
        shift += 5
        if code & 0x20:
            continue
        if code & 0x10:
            value -= 1 << shift
        lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError
    return lengths


def decode(lengths: Sequence[int], size: tuple[int, int], order: str) -> Mask:
    """Return the mask of runs of 0s and 1s in turn, by rows ("C") or by columns ("F").

    Raises:
        ValueError: The runs do not fill the mask exactly.
    """
    runs = np.array(lengths, dtype=np.int64)
    if len(runs) and (runs.min() < 0 or runs.max() > size[0] * size[1]):
        raise ValueError
    if runs.sum() != size[0] * size[1]:
        raise ValueError
    bits = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return bits.reshape(size, order="F" if order == "F" else "C")


def encode(mask: Mask, order: str) -> list[int]:
    """Return the runs of a mask, beginning with 0s."""
    flat = np.concatenate([[False], mask.ravel(order="F" if order == "F" else "C")])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    return [int(run) for run in np.diff([0, *changes.tolist(), mask.size])]
