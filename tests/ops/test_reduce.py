"""The reducer against a plain sum, its fallbacks, and METHODS' numbers."""

import inspect

import numpy as np
import pytest
import torch

from consilia.engines.scratch import DiskWeights, Scratch
from consilia.ops.reduce import mixtures, normalise, reduce, reduce_whole
from consilia.ops.sums import Running, Summed
from consilia.payload import DeviceWeights, PackedWeights

GROUPS = {"body": ("w", "n"), "head": ("rows",)}


def site(value, rows, count=1):
    return {
        "w": torch.full((2, 2), float(value)),
        "n": torch.tensor(count),
        "rows": torch.tensor(rows, dtype=torch.float32),
    }


PREVIOUS = site(-1, [7.0, 8.0, 9.0], 0)
UPDATES = {
    "b": site(2, [2.0, 4.0, 6.0], 4),
    "a": site(1, [1.0, 2.0, 3.0], 9),
    "c": site(3, [3.0, 6.0, 9.0], 2),
}


def test_a_mean_is_the_weighted_sum_and_counters_are_never_averaged():
    shares = {"a": 626, "b": 591, "c": 570}
    result = reduce(PREVIOUS, UPDATES, {"body": shares, "head": shares}, GROUPS)
    total = sum(shares.values())
    expected = sum(shares[s] / total * float(UPDATES[s]["w"][0, 0]) for s in shares)
    assert torch.allclose(result["w"], torch.full((2, 2), expected))
    assert result["n"] == 9
    assert result["n"].dtype == torch.int64
    assert result["w"].dtype == torch.float32


def test_fedavg_shares_of_fedia():  # METHODS 4.9 fact 9
    shares = normalise({"1": 626, "2": 591, "3": 570, "4": 646})
    assert [float(shares[k]) for k in "1234"] == pytest.approx(
        [0.257296, 0.242910, 0.234279, 0.265516], abs=1e-6
    )


def test_rows_go_by_label():  # METHODS 2.9 fact 4
    q = {"a": np.array([10, 0, 5]), "b": np.array([30, 20, 0]), "c": np.array([0, 20, 5])}
    result = reduce(PREVIOUS, UPDATES, {"head": q}, GROUPS)
    assert result["rows"].tolist() == pytest.approx([1.75, 5, 6])
    assert torch.equal(result["w"], PREVIOUS["w"])


def test_a_row_nobody_teaches_keeps_its_value():
    q = {"a": np.array([1, 0, 1]), "b": np.array([1, 0, 0]), "c": np.array([0, 0, 1])}
    result = reduce(PREVIOUS, UPDATES, {"head": q}, GROUPS)
    assert result["rows"][1] == PREVIOUS["rows"][1]
    assert result["rows"].tolist() == pytest.approx([1.5, 8, 6])


@pytest.mark.parametrize("shares", [{"a": 0, "b": 0, "c": 0}, {"a": float("nan"), "b": 0, "c": -1}])
def test_without_any_share_the_previous_value_stays(shares):
    result = reduce(PREVIOUS, UPDATES, {"body": shares}, GROUPS)
    assert torch.equal(result["w"], PREVIOUS["w"])


def test_equal_rows_are_the_mean_to_the_bit():
    rng = torch.Generator().manual_seed(0)
    updates = {s: {"w": torch.randn(5, 7, generator=rng)} for s in "abcd"}
    previous = {"w": torch.zeros(5, 7)}
    counts = {"a": 48.0, "b": 24.0, "c": 31.0, "d": 7.0}
    mean = reduce(previous, updates, {"g": counts}, {"g": ("w",)})
    rows = reduce(
        previous, updates, {"g": {s: np.full(5, n) for s, n in counts.items()}}, {"g": ("w",)}
    )
    assert torch.equal(mean["w"], rows["w"])


def test_the_order_of_sites_does_not_matter():
    turned = dict(reversed(UPDATES.items()))
    shares = {"a": 1 / 3, "b": 0.2, "c": 0.7}
    one = reduce(PREVIOUS, UPDATES, {"body": shares}, GROUPS)
    other = reduce(PREVIOUS, turned, {"body": dict(reversed(shares.items()))}, GROUPS)
    assert torch.equal(one["w"], other["w"])


def test_sums_are_made_in_double_precision():
    big = {
        "a": {"w": torch.tensor([1e8])},
        "b": {"w": torch.tensor([1.0])},
        "c": {"w": torch.tensor([-1e8])},
    }
    result = reduce({"w": torch.zeros(1)}, big, {"g": dict.fromkeys("abc", 1)}, {"g": ("w",)})
    assert float(result["w"]) == pytest.approx(1 / 3, abs=1e-7)


def test_shares_that_sum_to_one_are_left_alone():
    counts = np.array([48.0, 31.0, 24.0])
    c = counts / counts.sum()
    normal = normalise(dict(zip("abc", c, strict=True)))
    assert [float(normal[k]) for k in "abc"] == c.tolist()


def test_each_site_can_have_its_own_mixture():  # METHODS 3.9 fact 1
    decoders = {k: {"w": torch.tensor([v])} for k, v in zip("abc", (1.0, 2.0, 4.0), strict=True)}
    matrix = {
        "a": {"a": 0.75, "b": 0.25, "c": 0},
        "b": {"a": 0.25, "b": 0.75, "c": 0},
        "c": {"a": 0, "b": 0, "c": 1},
    }
    mixed = mixtures(decoders, matrix, decoders, ("w",))
    assert [float(mixed[k]["w"]) for k in "abc"] == pytest.approx([1.25, 1.75, 4])


def test_whole_models_by_one_share_per_site():
    updates = {"a": {"x": torch.tensor([0.0])}, "b": {"x": torch.tensor([4.0])}}
    groups = {"body": ("x",)}
    previous = {"x": torch.tensor([9.0])}
    weights, parts = reduce_whole(previous, updates, {"a": 3.0, "b": 1.0}, groups)
    assert weights["x"].item() == 1
    assert parts == {"a": 0.75, "b": 0.25}
    kept, parts = reduce_whole(previous, updates, {"a": 0.0, "b": 0.0}, groups)
    assert kept["x"].item() == 9
    assert parts == {"a": 0.0, "b": 0.0}


def plainly(previous, updates, shares, groups):
    """Sum tensor by tensor and site by site, as the definition says."""
    result = {name: value.clone() for name, value in previous.items()}
    for group, parts in shares.items():
        total = sum(parts[s] for s in sorted(parts))
        for name in groups[group]:
            taken = [s for s in sorted(updates) if s in parts]
            if not previous[name].is_floating_point():
                result[name] = torch.stack([updates[s][name] for s in taken]).amax(0)
                continue
            if np.ndim(total):
                for row in range(len(total)):
                    one = {s: {"r": updates[s][name][row]} for s in taken}
                    by = {"g": {s: parts[s][row] for s in parts}}
                    found = plainly({"r": previous[name][row]}, one, by, {"g": ("r",)})
                    result[name][row] = found["r"]
            elif total > 0:
                terms = [updates[s][name].double() * float(parts[s]) for s in taken]
                running = terms[0]
                for term in terms[1:]:
                    running = running + term
                result[name] = (running / float(total)).to(previous[name].dtype)
    return result


NETWORK = {
    "a.w": (3, 5),
    "a.n": None,
    "b.w": (7, 3, 2, 2),
    "b.s": (7,),
    "b.n": None,
    "out.w": (4, 7, 1, 2),
}
PARTS = {"body": ("a.w", "b.w"), "norm": ("b.s", "a.n", "b.n"), "head": ("out.w",)}


def drawn(seed, names=tuple(NETWORK)):
    randoms = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(9, (), generator=randoms)
        if NETWORK[name] is None
        else torch.randn(NETWORK[name], generator=randoms)
        for name in names
    }


def channels_last(weights):
    return {
        name: value.to(memory_format=torch.channels_last) if value.dim() == 4 else value
        for name, value in weights.items()
    }


EQUAL = {"a": 3.0, "b": 1.0, "c": 7.0}
BY_ROW = {
    "a": np.array([1.0, 0, 2, 0]),
    "b": np.array([1.0, 3, 0, 0]),
    "c": np.array([5.0, 1, 1, 0]),
}
KINDS_OF_SHARES = {
    "one for all": dict.fromkeys(PARTS, EQUAL),
    "each its own": {
        "body": EQUAL,
        "norm": {"a": 1.0, "b": 1.0, "c": 2.0},
        "head": {"a": 0.0, "c": 1.0},
    },
    "rows": {"body": EQUAL, "head": BY_ROW},
    "nobody": {"body": dict.fromkeys("abc", 0.0), "norm": EQUAL},
    "a site that sent nothing": {"body": {**EQUAL, "z": 4.0}},
}


@pytest.mark.parametrize("block", [5, 1 << 17])
@pytest.mark.parametrize("kind", KINDS_OF_SHARES)
@pytest.mark.parametrize("last", ["", "abc", "b", "abc previous", "previous"])
@pytest.mark.parametrize(
    "form", ["plain", "packed", "by group", "disk", "mixed", "device", "device and host"]
)
def test_whatever_the_form_of_updates_the_sum_is_the_plain_one_to_the_bit(
    form, last, kind, block, monkeypatch, tmp_path
):
    monkeypatch.setattr("consilia.ops.sums._BLOCK", block)
    previous = drawn(0)
    order = tuple(name for members in PARTS.values() for name in members)
    names = order if form == "by group" else tuple(NETWORK)
    updates = {site: drawn(seed, names) for seed, site in enumerate("cab", 1)}
    expected = plainly(previous, updates, KINDS_OF_SHARES[kind], PARTS)
    updates = {s: channels_last(update) if s in last else update for s, update in updates.items()}
    previous = channels_last(previous) if "previous" in last else previous
    if form in {"packed", "by group"}:
        updates = {site: PackedWeights.of(update) for site, update in updates.items()}
    elif form == "disk":
        scratch = Scratch(tmp_path)
        updates = {
            site: DiskWeights(scratch, PackedWeights.of(update)) for site, update in updates.items()
        }
    elif form.startswith("device"):
        previous = DeviceWeights(PackedWeights.of(previous))
        for site in "abc" if form == "device" else "ab":
            updates[site] = DeviceWeights(PackedWeights.of(updates[site]))
    elif form == "mixed":  # one in another order, one with a tensor more
        updates["a"] = PackedWeights.of({"more": torch.ones(3), **updates["a"]})
        updates["b"] = dict(reversed(updates["b"].items()))
    found = reduce(previous, updates, KINDS_OF_SHARES[kind], PARTS)
    assert isinstance(found, DeviceWeights) == (form == "device" and last != "b")
    assert list(found) == list(previous)
    assert found["b.w"].is_contiguous() == ("abc" not in last)  # as the updates lie
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("block", [5, 1 << 17])
@pytest.mark.parametrize("cut", [(1,), (2,), (3,), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("last", [False, True])
def test_updates_that_were_summed_as_they_came_give_the_same_bits(last, cut, block, monkeypatch):
    monkeypatch.setattr("consilia.ops.sums._BLOCK", block)
    turned = channels_last if last else dict
    previous = turned(drawn(0))
    updates = {s: PackedWeights.of(turned(drawn(seed))) for seed, s in enumerate("abc", 1)}
    each = {"a": 3.0, "b": float("nan"), "c": 7.0}
    shares = dict.fromkeys(PARTS, each)
    expected = reduce(previous, updates, shares, PARTS)
    running = Running(updates["a"].packing)
    for start, stop in zip((0, *cut), cut, strict=False):
        some = {site: updates[site] for site in "abc"[start:stop]}
        running.add(some, shares["body"])
        updates |= dict.fromkeys(some, Summed(running))
    found = reduce(previous, updates, shares, PARTS)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_what_was_summed_counts_as_it_did_then():
    updates = {s: PackedWeights.of(drawn(seed)) for seed, s in enumerate("abc")}
    running = Running(updates["a"].packing)
    running.add({s: updates[s] for s in "ab"}, {"a": 2.0, "b": 1.0})
    updates |= {s: Summed(running) for s in "ab"}
    gone = updates["a"]["a.w"]
    assert gone.shape == (3, 5)
    assert gone.is_meta, "a shape without numbers: what computes with it fails"
    rows = {"a": np.full(4, 2.0), "b": np.ones(4)}
    for shares in ({"a": 3.0, "b": 1.0, "c": 1.0}, {"b": 1.0, "c": 1.0}, rows):
        with pytest.raises(AssertionError, match="differ in what replies count"):
            reduce(drawn(0), updates, {"head": shares}, PARTS)


def test_a_result_has_memory_of_its_own():
    previous = PackedWeights.of(PREVIOUS)
    for shares in ({}, {"body": {"a": 1.0}}):
        result = reduce(previous, {"a": PackedWeights.of(UPDATES["a"])}, shares, GROUPS)
        result["rows"].fill_(99)
        result["n"].fill_(99)
        assert previous["rows"][0] == 7
        assert UPDATES["a"]["n"] == 9


def test_updates_on_a_device_are_summed_without_the_host(monkeypatch):
    previous, *updates = (DeviceWeights(PackedWeights.of(drawn(seed))) for seed in range(4))

    across = PackedWeights.to

    def crosses(weights, device):
        by = [frame.filename for frame in inspect.stack()]
        assert any("beartype" in name for name in by), "the host was asked for numbers"
        return across(weights, device)  # the type checks of tests look at a tensor

    monkeypatch.setattr(PackedWeights, "to", crosses)
    for shares in KINDS_OF_SHARES.values():
        previous = reduce(previous, dict(zip("abc", updates, strict=True)), shares, PARTS)
    assert previous.there is not None


def test_an_update_that_somebody_wrote_into_is_summed_as_it_is_now():
    updates = {site: DeviceWeights(PackedWeights.of(drawn(1))) for site in "ab"}
    updates["b"]["a.w"].fill_(3.0)
    found = reduce(drawn(0), updates, {"body": {"a": 1.0, "b": 1.0}}, PARTS)
    assert torch.equal(found["a.w"], ((drawn(1)["a.w"].double() + 3) / 2).float())


def test_a_tensor_that_a_site_did_not_send_is_missed():
    with pytest.raises(KeyError):
        reduce(
            PREVIOUS, {"a": UPDATES["a"], "b": {"w": UPDATES["b"]["w"]}}, {"body": EQUAL}, GROUPS
        )


def test_mixtures_of_packed_decoders_are_those_of_plain_ones():
    decoders = {site: drawn(seed) for seed, site in enumerate("abc")}
    matrix = {"a": {"a": 0.2, "b": 0.8}, "b": {"c": 1.0, "a": 0.0}, "c": {"a": 0.0}}
    packed = {site: PackedWeights.of(each) for site, each in decoders.items()}
    for names in (("a.w", "out.w"), tuple(NETWORK)):
        one = mixtures(decoders, matrix, decoders, names)
        two = mixtures(packed, matrix, packed, names)
        for site, row in matrix.items():
            plain = plainly(decoders[site], decoders, {"g": row}, {"g": names})
            for name, value in plain.items():
                assert torch.equal(one[site][name], value)
                assert torch.equal(two[site][name], value)
