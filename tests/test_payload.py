"""Messages keep their types: what is packed comes back, and anything else is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
from torch import Tensor

from consilia.errors import MessageError
from consilia.payload import (
    Group,
    Layout,
    Record,
    Shape,
    Weights,
    entries,
    is_finite,
    load,
    pack,
    save,
    unpack,
)

LAYOUT = Layout(
    {
        "body": {"conv": ((2, 3), torch.float32), "count": ((), torch.int64)},
        "head": {"out": ((4,), torch.float32)},
    },
    {"labels": 3},
)


@dataclass(frozen=True)
class Inner:
    name: str
    value: float


@dataclass(frozen=True)
class Message:
    weights: Annotated[Weights, Group()]
    counts: Annotated[Tensor, Shape(("labels",), torch.int64)]
    head: Annotated[Weights, Group(("head",))] | None
    images: int
    loss: float
    flags: tuple[bool, ...]
    pair: tuple[int, str]
    inner: Mapping[str, Inner]


@dataclass(frozen=True)
class Other:
    images: int


def weights():
    return {"conv": torch.ones(2, 3), "count": torch.tensor(5), "out": torch.arange(4.0)}


def message(**changes):
    values = {
        "weights": weights(),
        "counts": torch.tensor([1, 2, 3]),
        "head": {"out": torch.zeros(4)},
        "images": 7,
        "loss": 0.5,
        "flags": (True, False),
        "pair": (1, "x"),
        "inner": {"a": Inner("n", 1.5)},
    }
    return Message(**{**values, **changes})


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    elif isinstance(a, Mapping):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif hasattr(a, "__dataclass_fields__"):
        for name in a.__dataclass_fields__:
            same(getattr(a, name), getattr(b, name))
    else:
        assert a == b


def test_a_message_comes_back_as_it_was():
    sent = message()
    same(unpack(Message, pack(sent, "train", "oslo", 1), LAYOUT), sent)


def test_an_optional_part_may_be_missing():
    sent = message(head=None)
    same(unpack(Message, pack(sent, "train", "oslo", 1), LAYOUT), sent)


def test_a_union_picks_the_member_that_was_sent():
    record = pack(Other(3), "train", "oslo", 1)
    assert unpack(Message | Other, record, LAYOUT) == Other(3)
    same(unpack(Message | Other, pack(message(), "train", "oslo", 1), LAYOUT), message())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": 1.5}, "field 'images' holds 1.5 (float), expected int"),
        ({"images": True}, "field 'images' holds True (bool), expected int"),
        ({"loss": "low"}, "field 'loss' holds 'low' (str), expected float"),
        (
            {"counts": torch.tensor([1, 2])},
            "field 'counts' holds torch.int64 [2], expected torch.int64 [3]",
        ),
        (
            {"counts": torch.tensor([1.0, 2, 3])},
            "field 'counts' holds torch.float32 [3], expected torch.int64 [3]",
        ),
        ({"pair": (1,)}, "field 'pair' holds 1 entries, expected 2"),
        ({"flags": (1,)}, "field 'flags/0' holds 1 (int), expected bool"),
        ({"head": {}}, "field 'head' holds no tensor 'out', expected the 1 tensors of its groups"),
        (
            {"weights": {**weights(), "extra": torch.zeros(1)}},
            "field 'weights' holds an unexpected tensor 'extra', expected the 3 tensors of its groups",
        ),
        (
            {"weights": {**weights(), "conv": torch.zeros(3, 2)}},
            "field 'weights/conv' holds torch.float32 [3, 2], expected torch.float32 [2, 3]",
        ),
        (
            {"weights": {**weights(), "conv": torch.zeros(2, 3).double()}},
            "field 'weights/conv' holds torch.float64 [2, 3], expected torch.float32 [2, 3]",
        ),
        ({"inner": {"a": Other(1)}}, "field 'inner/a' holds Other, expected Inner"),
        ({"counts": None}, "field 'counts' holds None (NoneType), expected a tensor"),
    ],
)
def test_what_has_another_type_is_refused(changes, sentence):
    record = pack(message(**changes), "train", "oslo", 4)
    with pytest.raises(MessageError) as refused:
        unpack(Message, record, LAYOUT)
    assert str(refused.value) == f"train message of site 'oslo' in round 4: {sentence}"


def test_another_message_an_extra_and_a_missing_field_are_refused():
    record = pack(Other(1), "train", "oslo", 1)
    with pytest.raises(MessageError, match="holds Other, expected Message"):
        unpack(Message, record, LAYOUT)
    extra = Record("train", "oslo", 1, "Other", {**record.body, "more": 1}, {})
    with pytest.raises(
        MessageError, match="holds the extra more, expected exactly the fields of Other"
    ):
        unpack(Other, extra)
    missing = Record("train", "oslo", 1, "Other", {"$member": "Other"}, {})
    with pytest.raises(MessageError, match="holds no images"):
        unpack(Other, missing)


def test_a_stowaway_tensor_is_refused():
    record = pack(Other(1), "train", "oslo", 1)
    hidden = Record("train", "oslo", 1, "Other", record.body, {"image": torch.zeros(8, 8)})
    with pytest.raises(MessageError, match="tensor 'image' belongs to no field"):
        unpack(Other, hidden)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_seen(bad):
    assert is_finite(pack(message(), "train", "oslo", 1))
    assert not is_finite(pack(message(loss=bad), "train", "oslo", 1))
    poisoned = {**weights(), "conv": torch.full((2, 3), bad)}
    assert not is_finite(pack(message(weights=poisoned), "train", "oslo", 1))


def test_a_sum_that_overflows_is_no_reason_to_drop_an_update():
    huge = {**weights(), "conv": torch.full((2, 3), 3e38)}
    assert is_finite(pack(message(weights=huge), "train", "oslo", 1))
    opposed = {**weights(), "conv": torch.tensor([[float("inf"), -float("inf"), 0.0]] * 2)}
    assert not is_finite(pack(message(weights=opposed), "train", "oslo", 1))


def test_the_ledger_shows_each_field_once_with_its_size():
    shown = {
        entry.field: entry for entry in entries(pack(message(), "train", "oslo", 1), hashes=True)
    }
    assert set(shown) == set(Message.__dataclass_fields__)
    assert (shown["weights"].numbers, shown["weights"].bytes) == (11, 6 * 4 + 8 + 4 * 4)
    assert shown["counts"].shape == "[3]"
    again = entries(pack(message(images=8), "train", "oslo", 1), hashes=True)
    changed = [a.field for a, b in zip(shown.values(), again, strict=True) if a.sha256 != b.sha256]
    assert changed == ["images"]


def test_what_is_saved_is_loaded_and_checked(tmp_path):
    path = tmp_path / "state.safetensors"
    shared = torch.arange(6.0)
    sent = message(weights={**weights(), "conv": shared.view(2, 3)}, head={"out": shared[:4]})
    save(path, sent)
    same(load(path, Message, LAYOUT), sent)
    with pytest.raises(MessageError):
        load(path, Other)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(
        MessageError, match=r"file 'state.safetensors' cannot be read as a saved state"
    ):
        load(path, Message)


def test_nothing_else_can_be_packed():
    with pytest.raises(TypeError, match="a message may not hold a set"):
        pack(message(flags={1}), "train", "oslo", 1)
