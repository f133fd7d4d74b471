"""Weights in one piece are the same weights: to methods, in messages, in the ledger and on disk."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
from torch import Tensor

from consilia.errors import MessageError
from consilia.payload import (
    DeviceWeights,
    Group,
    Layout,
    PackedWeights,
    Packing,
    Record,
    Weights,
    anew,
    entries,
    flatten,
    is_finite,
    load,
    near,
    pack,
    picked,
    renamed,
    save,
    united,
    unpack,
)

SPECS = {
    "conv": ((2, 3, 3, 2), torch.float32),
    "count": ((), torch.int64),
    "bias": ((2,), torch.float32),
    "seen": ((3,), torch.bool),
    "none": ((0, 4), torch.float32),
    "half": ((3,), torch.bfloat16),
}
LAYOUT = Layout({"all": SPECS, "some": {"bias": SPECS["bias"]}})


@dataclass(frozen=True)
class Message:
    weights: Annotated[Weights, Group(("all",))]
    images: int


@dataclass(frozen=True)
class Many:
    each: Mapping[str, Weights]
    single: Tensor


def plain():
    randoms = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, 3, 3, 2, generator=randoms)
    return {
        "conv": drawn.to(memory_format=torch.channels_last),
        "count": torch.tensor(5),
        "bias": torch.nn.Parameter(torch.tensor([1.5, -2.0])),
        "seen": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 4),
        "half": torch.tensor([1.5, 0.25, -3.0], dtype=torch.bfloat16),
    }


def assert_same(one, two):
    assert list(one) == list(two)
    for name in one:
        assert one[name].dtype == two[name].dtype
        assert torch.equal(one[name], two[name])


def test_they_read_as_the_mapping_they_were_made_of_and_are_copies():
    given = plain()
    packed = PackedWeights.of(given)
    assert_same(packed, given)
    assert_same(dict(packed.items()), given)
    assert [v.shape for v in packed.values()] == [v.shape for v in given.values()]
    assert len(packed) == 6
    assert "conv" in packed
    assert "other" not in packed
    assert not any(v.requires_grad for v in packed.values())
    assert all(packed[name].stride() == given[name].stride() for name in given)
    assert packed.nbytes == sum(v.nbytes for v in given.values())
    given["conv"].fill_(9)
    assert not torch.equal(packed["conv"], given["conv"])
    again = PackedWeights.of(packed)
    again["count"].fill_(6)
    assert packed["count"] == 5


def test_one_buffer_holds_all_tensors_of_a_type():
    packed = PackedWeights.of(plain())
    assert {kind: len(buffer) for kind, buffer in packed.buffers.items()} == {
        torch.float32: 38,
        torch.int64: 1,
        torch.bool: 3,
        torch.bfloat16: 3,
    }
    packed["bias"].fill_(7)
    assert packed.buffers[torch.float32][36:].tolist() == [7, 7]


def test_a_packing_is_worked_out_once():
    one, two = PackedWeights.of(plain()), PackedWeights.of(plain())
    assert one.packing is two.packing
    turned = dict(reversed(plain().items()))
    assert Packing.of(turned) is not one.packing
    assert [(run.kind, run.start, run.stop) for run in one.packing.runs] == [
        (torch.float32, 0, 36),
        (torch.int64, 0, 1),
        (torch.float32, 36, 38),
        (torch.bool, 0, 3),
        (torch.float32, 38, 38),
        (torch.bfloat16, 0, 3),
    ]


def test_how_tensors_lie_is_no_part_of_what_they_are():
    last, common = plain(), {name: value.contiguous() for name, value in plain().items()}
    packed, other = PackedWeights.of(last), PackedWeights.of(common)
    assert packed.packing is not other.packing
    assert packed.packing.last == {"conv"}
    assert packed.packing.lying(()) is other.packing
    assert packed.digest(b"head") == other.digest(b"head")
    assert_same(packed, other)
    turned = PackedWeights.of(packed, other.packing)
    assert_same(turned, packed)
    assert all(map(torch.equal, turned.buffers.values(), other.buffers.values()))
    assert not all(map(torch.equal, packed.buffers.values(), other.buffers.values()))


def test_they_travel_whole_and_look_like_any_other_weights():
    packed = PackedWeights.of(plain())
    whole = pack(Message(packed, 3), "train", "oslo", 1)
    parts = pack(Message(plain(), 3), "train", "oslo", 1)
    assert unpack(Message, whole, LAYOUT).weights is packed
    assert json.dumps(whole.body) == json.dumps(parts.body)
    assert list(whole.tensors) == list(parts.tensors)
    assert_same(whole.tensors, parts.tensors)
    assert len(whole.tensors) == 6
    assert "weights/other" not in whole.tensors
    assert "weights" not in whole.tensors
    assert whole.size == parts.size
    assert entries(whole, hashes=True) == entries(parts, hashes=True)


def test_several_of_them_are_told_apart():
    message = Many({"a": PackedWeights.of(plain()), "b": {"w": torch.ones(2)}}, torch.zeros(1))
    record = pack(message, "train", "oslo", 1)
    found = unpack(Many, record)
    assert_same(found.each["a"], plain())
    assert_same(found.each["b"], {"w": torch.ones(2)})
    assert torch.equal(record.tensors["each/a/bias"], plain()["bias"])
    other = Many({"a": plain(), "b": {"w": torch.ones(2)}}, torch.zeros(1))
    assert entries(record, hashes=True) == entries(pack(other, "train", "oslo", 1), hashes=True)
    tree, tensors = flatten(PackedWeights.of(plain()))
    assert_same(tensors, plain())
    assert list(tree["$map"]) == list(plain())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w | {"extra": torch.zeros(1)}, "an unexpected tensor 'extra'"),
        (lambda w: {k: v for k, v in w.items() if k != "bias"}, "no tensor 'bias'"),
        (
            lambda w: w | {"bias": torch.zeros(3)},
            r"torch.float32 \[3\], expected torch.float32 \[2\]",
        ),
        (lambda w: w | {"bias": torch.zeros(2).double()}, r"torch.float64 \[2\]"),
    ],
)
def test_what_does_not_fit_the_layout_is_refused(change, sentence):
    record = pack(Message(PackedWeights.of(change(plain())), 3), "train", "oslo", 1)
    with pytest.raises(MessageError, match=sentence):
        unpack(Message, record, LAYOUT)


def test_their_order_is_their_own():
    turned = PackedWeights.of(dict(reversed(plain().items())))
    record = pack(Message(turned, 3), "train", "oslo", 1)
    assert unpack(Message, record, LAYOUT).weights is turned


def test_tensors_that_were_changed_on_the_way_are_what_counts():
    record = pack(Message(PackedWeights.of(plain()), 3), "train", "oslo", 1)

    def with_tensors(tensors):
        return Record("train", "oslo", 1, "Message", record.body, tensors)

    spoiled = with_tensors({**record.tensors, "weights/bias": torch.full((2,), torch.nan)})
    assert not is_finite(spoiled)
    assert unpack(Message, spoiled, LAYOUT).weights["bias"].isnan().all()
    with pytest.raises(MessageError, match="expected a tensor"):
        unpack(Message, with_tensors(dict(list(record.tensors.items())[1:])), LAYOUT)
    with pytest.raises(MessageError, match="tensor 'image' belongs to no field"):
        unpack(Message, with_tensors({**record.tensors, "image": torch.zeros(4)}), LAYOUT)
    with pytest.raises(MessageError, match="holds no images"):
        unpack(
            Message,
            Record(
                "train",
                "oslo",
                1,
                "Message",
                {"$member": "Message", "weights": record.body["weights"]},
                record.tensors,
            ),
            LAYOUT,
        )
    # the tree lists one packing, the table holds another
    fewer = pack(Message(PackedWeights.of({"bias": torch.zeros(2)}), 3), "train", "oslo", 1)
    with pytest.raises(MessageError, match="expected a tensor"):
        unpack(Message, with_tensors(fewer.tensors), LAYOUT)
    swapped = Record("train", "oslo", 1, "Message", fewer.body, record.tensors)
    with pytest.raises(MessageError, match="holds no tensor"):
        unpack(Message, swapped, LAYOUT)
    with pytest.raises(MessageError, match="belongs to no field"):
        unpack(Message, swapped)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_not_finite_is_seen(bad):
    packed = PackedWeights.of(plain())
    assert is_finite(pack(Message(packed, 3), "train", "oslo", 1))
    packed["bias"][1] = bad
    assert not is_finite(pack(Message(packed, 3), "train", "oslo", 1))


def test_a_hash_is_known_until_a_number_changes(monkeypatch):
    packed = PackedWeights.of(plain())

    def digest(weights):
        return entries(pack(Message(weights, 3), "train", "oslo", 1), hashes=True)[0].sha256

    first = digest(packed)
    with monkeypatch.context() as patch:
        patch.setattr(PackedWeights, "read", None)  # nothing is read a second time
        assert digest(packed) == first
    packed["count"].add_(1)
    assert digest(packed) != first
    packed["count"].sub_(1)
    assert digest(packed) == first == digest(plain())


def test_they_are_saved_and_come_back(tmp_path):
    save(tmp_path / "one.safetensors", Message(PackedWeights.of(plain()), 3))
    save(tmp_path / "two.safetensors", Message(plain(), 3))
    one, two = (load(tmp_path / f"{n}.safetensors", Message, LAYOUT) for n in ("one", "two"))
    assert_same(one.weights, plain())
    assert_same(one.weights, two.weights)


# --- weights that stay on a device ---


def test_weights_on_a_device_are_the_same_weights_and_cross_once(tmp_path, monkeypatch):
    crossings = []
    across = PackedWeights.to
    monkeypatch.setattr(
        PackedWeights, "to", lambda self, device: crossings.append(device) or across(self, device)
    )
    weights = DeviceWeights(PackedWeights.of(plain()))
    record = pack(Message(weights, 3), "train", "a", 1)
    assert is_finite(record)
    assert record.size > weights.nbytes
    assert entries(record)[0].numbers == sum(tensor.numel() for tensor in plain().values())
    assert unpack(Message, record, LAYOUT).weights is weights
    assert crossings == []  # carried, checked and noted where they are
    host = PackedWeights.of(plain())
    assert all(torch.equal(weights[name], value) for name, value in host.items())
    told = pack(Message(host, 3), "train", "a", 1)
    assert entries(record, hashes=True) == entries(told, hashes=True)
    save(tmp_path / "w.safetensors", Message(weights, 3))
    kept = load(tmp_path / "w.safetensors", Message, LAYOUT).weights
    assert all(torch.equal(kept[name], value) for name, value in host.items())
    assert len(crossings) == 1


def test_a_number_on_a_device_that_is_not_finite_is_found():
    odd = {**plain(), "bias": torch.tensor([1.0, float("inf")])}
    weights = DeviceWeights(PackedWeights.of(odd))
    assert not is_finite(pack(Message(weights, 3), "train", "a", 1))


def test_writing_into_the_hosts_copy_parts_it_from_the_device():
    weights = DeviceWeights(PackedWeights.of(plain()))
    assert torch.equal(weights["bias"], plain()["bias"])
    assert weights.there is not None  # reading changes nothing
    weights["bias"].fill_(7)
    assert weights.there is None
    assert {7.0} == set(
        unpack(Message, pack(Message(weights, 3), "train", "a", 1)).weights["bias"].tolist()
    )
    assert any(7.0 in piece.tolist() for piece in weights.pieces() if piece.dtype == torch.float32)


@pytest.fixture
def kept(monkeypatch):
    """Return weights that stay on a device, in two parts, of which no copy for the host may be made."""
    monkeypatch.setattr(DeviceWeights, "buffers", property(lambda self: 1 / 0))
    whole = plain()
    parts = [{n: whole[n] for n in names} for names in (("conv", "count"), ("bias", "half"))]
    return [DeviceWeights(PackedWeights.of(part)) for part in parts]


def test_some_of_what_stays_on_a_device_is_copied_there(kept):
    assert "conv" in kept[0]
    assert "bias" not in kept[0]
    some = picked(kept[1], ["half"])
    other = renamed(kept[0], {"aux.conv": "conv"})
    assert_same(near(some), {"half": plain()["half"]})
    assert_same(near(other), {"aux.conv": plain()["conv"]})
    assert near(other)["aux.conv"].stride() == plain()["conv"].stride()
    near(some)["half"].zero_()
    assert near(kept[1])["half"].any()


def test_parts_that_stay_on_a_device_are_united_there(kept):
    whole = united(*kept, {})
    assert isinstance(whole, DeviceWeights)
    assert_same(near(whole), {n: plain()[n] for n in ("conv", "count", "bias", "half")})


def test_a_part_that_the_host_has_brings_the_others_to_it():
    kept = DeviceWeights(PackedWeights.of({"a": torch.ones(2)}))
    whole = united(kept, {"b": torch.zeros(2)})
    assert_same(whole, {"a": torch.ones(2), "b": torch.zeros(2)})
    assert_same(united({"a": torch.ones(2)}, {"a": torch.zeros(2)}), {"a": torch.zeros(2)})
    assert united() == {}


def test_what_the_host_picks_are_the_tensors_themselves():
    weights = plain()
    assert picked(weights, ["conv"])["conv"] is weights["conv"]


def test_what_is_written_on_a_device_is_read_anew():
    kept = DeviceWeights(PackedWeights.of({"a": torch.ones(2)}))
    assert kept["a"].tolist() == [1, 1]
    near(kept)["a"][0] = 5
    assert anew(kept)["a"].tolist() == [5, 1]
    plain_ones = {"a": torch.ones(2)}
    assert anew(plain_ones) is plain_ones


def test_a_hash_of_the_device_is_not_taken_for_one_of_the_hosts_copy():
    kept = DeviceWeights(PackedWeights.of({"a": torch.ones(2)}))
    near(kept)["a"][0] = 5
    told = kept.digest(b"")
    (piece,) = kept.pieces()
    for _ in range(piece._version):  # written as often as what lies on the device
        kept["a"].fill_(7)
    assert kept.digest(b"") == PackedWeights.of({"a": torch.full((2,), 7.0)}).digest(b"") != told


def test_a_copy_that_nobody_wrote_into_is_let_go():
    kept = DeviceWeights(PackedWeights.of(plain()))
    told = kept.digest(b"")
    assert "buffers" not in vars(kept)  # a hash leaves none
    assert told == PackedWeights.of(plain()).digest(b"")
    assert kept["count"] == 5
    kept.let_go()
    assert "buffers" not in vars(kept)
    assert kept["count"] == 5
    kept["count"].fill_(6)
    kept.let_go()
    assert kept["count"] == 6
    assert kept.digest(b"") != told
