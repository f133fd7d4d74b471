"""Packets: what is sealed comes back; what was changed on the way does not."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed (consilia[flower])")

import torch
from hypothesis import given
from hypothesis import strategies as st

from consilia.engines.packet import DTYPES, Packet, seal, unseal
from consilia.errors import MessageError
from consilia.federation.keys import new_key
from consilia.payload import Record

KEY = new_key()
PUBLIC = KEY.public_key()
RECORD = Record(
    "train",
    "anna",
    3,
    "Up",
    {"$member": "Up", "loss": 0.1, "weights": {"$map": {"a": {"$tensor": "weights/a"}}}},
    {"weights/a": torch.arange(6, dtype=torch.float32).reshape(2, 3)},
)


def opened(packet, limit=1 << 20):
    return unseal(packet, PUBLIC, "anna", limit)


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=4,
    )
)
def test_tensors_of_every_type_and_shape_come_back_bit_for_bit(kinds):
    tensors = {}
    for i, (kind, shape) in enumerate(kinds):
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(i)) * 50
        tensors[f"t{i}"] = drawn.to(DTYPES[kind])
    record = replace(RECORD, body={"x": None}, tensors=tensors)
    found, extra = opened(seal(record, KEY, {"answers": "x"}))
    assert extra == {"answers": "x"}
    assert list(found.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def test_numbers_come_back_exactly_and_the_site_is_the_receivers_word():
    body = {"a": 0.1 + 0.2, "b": float("nan"), "c": -0.0, "d": 2**53 + 1, "e": "ü"}
    found, _ = unseal(seal(replace(RECORD, body=body, tensors={}), KEY), PUBLIC, "bo", 1)
    assert repr(found.body) == repr(body)
    assert found.site == "bo"


def test_the_same_content_has_the_same_digest_though_signatures_differ():
    one, other = seal(RECORD, KEY), seal(RECORD, KEY)
    assert one.signature != other.signature
    assert one.digest == other.digest


def changed(**changes):
    table = json.loads(seal(RECORD, KEY).manifest) | changes
    return _signed(json.dumps(table), seal(RECORD, KEY).buffer)


def _signed(manifest, buffer):
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    from consilia.engines.packet import CONTEXT

    signature = KEY.sign(CONTEXT + manifest.encode(), ec.ECDSA(hashes.SHA384()))
    return Packet(manifest, buffer, signature)


GOOD = seal(RECORD, KEY)
BAD = {
    "another key": (seal(RECORD, new_key()), "not signed by the key"),
    "no signature": (replace(GOOD, signature=b""), "not signed by the key"),
    "a changed manifest": (
        replace(GOOD, manifest=GOOD.manifest.replace('"round":3', '"round":4')),
        "not signed by the key",
    ),
    "a changed buffer": (replace(GOOD, buffer=b"\1" + GOOD.buffer[1:]), "not the one its manifest"),
    "a shorter buffer": (replace(GOOD, buffer=GOOD.buffer[:-1]), "not the one its manifest"),
    "another format": (changed(format=2), "not of format 1"),
    "no JSON": (_signed("{", b""), "not of format 1"),
    "deep JSON": (_signed("[" * 100_000, b""), "not of format 1"),
    "a number as verb": (changed(verb=1), "no usable 'verb'"),
    "yes as round": (changed(round=True), "no usable 'round'"),
    "an unknown type": (changed(tensors=[["a", "object", [6]]]), "expected a tensor's name"),
    "a negative size": (changed(tensors=[["a", "float32", [-6]]]), "expected a tensor's name"),
    "a huge size": (changed(tensors=[["a", "float32", [1 << 39]]]), "past the end"),
    "a name twice": (
        changed(tensors=[["a", "float32", [3]], ["a", "float32", [3]]]),
        "twice or past the end",
    ),
    "too few tensors": (changed(tensors=[["a", "float32", [3]]]), "but its tensors take 12"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_was_changed_is_refused(case):
    packet, sentence = BAD[case]
    with pytest.raises(MessageError, match=sentence):
        opened(packet)


def test_what_is_too_large_is_refused_before_it_is_looked_at():
    with pytest.raises(MessageError, match="expected at most 23"):
        opened(Packet("no manifest at all", b"x" * 24, b""), limit=23)
