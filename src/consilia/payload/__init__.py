"""Typed at both ends, flat in the middle: messages as dataclasses, records as what an engine carries.

A message is a frozen dataclass whose fields are scalars, strings, tensors, weights, tuples, mappings
or other dataclasses. `pack` flattens it into a `Record`: a JSON tree and a flat table of tensors;
`unpack` builds it again and refuses whatever does not have the declared type, names, shapes or
element types. The same codec writes checkpoints and memories (`save`, `load`), so that nothing in
Consilia is ever pickled.

========== ==================================================================
`kinds`    what may be declared: weights, groups, shapes, the layout of a run
`packed`   the tensors of a network in one piece, cut by name
`codec`    values to trees and back, with every check
`record`   what an engine carries
`shown`    what a record holds, for the ledger
`files`    the same on disk
========== ==================================================================
"""

from consilia.payload.codec import build, flatten, pieces
from consilia.payload.files import is_whole, load, save, save_flat
from consilia.payload.kinds import Group, Json, Layout, Shape, Spec, Weights
from consilia.payload.packed import (
    DeviceWeights,
    Packed,
    PackedWeights,
    Packing,
    Stretch,
    anew,
    bytes_of,
    near,
    picked,
    renamed,
    united,
)
from consilia.payload.record import Record, is_finite, pack, unpack
from consilia.payload.shown import FieldEntry, entries

__all__ = [
    "DeviceWeights",
    "FieldEntry",
    "Group",
    "Json",
    "Layout",
    "Packed",
    "PackedWeights",
    "Packing",
    "Record",
    "Shape",
    "Spec",
    "Stretch",
    "Weights",
    "anew",
    "build",
    "bytes_of",
    "entries",
    "flatten",
    "is_finite",
    "is_whole",
    "load",
    "near",
    "pack",
    "picked",
    "pieces",
    "renamed",
    "save",
    "save_flat",
    "united",
    "unpack",
]
