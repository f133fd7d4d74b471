"""Prompt affinity: METHODS 3.9-1 by hand, the four strategies, and sites without anybody alike."""

import math

import pytest
import torch

from consilia.ops.affinity import auxiliary_shares, prompt_affinity
from consilia.ops.reduce import mixtures

PROMPTS = torch.tensor([[1.0, 0, 1, 1], [1, 0, 1, -1], [1, 0, -2, -1]])
SITES = ("a", "b", "c")


def shares(strategy, site, row, sent=SITES, seed=0):
    alike = dict(zip(SITES, map(float, row), strict=True))
    randoms = torch.Generator().manual_seed(seed)
    return auxiliary_shares(strategy, site, SITES, sent, alike, randoms)


def test_cosines_of_the_specification():
    got = prompt_affinity(PROMPTS)
    assert got[0, 1].item() == pytest.approx(1 / 3)
    assert got[0, 2].item() == 0  # -0.471405 before the ReLU
    assert got[1, 2].item() == pytest.approx(0, abs=1e-12)
    for i in range(3):
        for j in range(3):
            u, v = PROMPTS[i].tolist(), PROMPTS[j].tolist()
            dot = sum(a * b for a, b in zip(u, v, strict=True))
            length = math.sqrt(sum(a * a for a in u)) * math.sqrt(sum(b * b for b in v))
            assert got[i, j].item() == pytest.approx(max(0, dot / length), abs=1e-12)


def test_weights_and_decoders_of_the_specification():
    a = prompt_affinity(PROMPTS).clamp(min=0)
    a[1, 2] = a[2, 1] = 0.0  # 0 but for rounding
    matrix = {site: shares("aggregated", site, a[i].tolist()) for i, site in enumerate(SITES)}
    assert matrix["a"] == pytest.approx({"a": 0.75, "b": 0.25})
    assert matrix["b"] == pytest.approx({"a": 0.25, "b": 0.75})
    assert matrix["c"] == {"c": 1.0}
    decoders = {
        site: {"w": torch.tensor([float(w)])} for site, w in zip(SITES, (1, 2, 4), strict=True)
    }
    mixed = mixtures(decoders, matrix, decoders, ("w",))
    assert [mixed[site]["w"].item() for site in SITES] == pytest.approx([1.25, 1.75, 4.0])


def test_a_prompt_of_length_zero_is_like_nothing():
    got = prompt_affinity(torch.tensor([[0.0, 0], [1, 1]]))
    assert got.tolist() == [[0, 0], [0, pytest.approx(1)]]
    assert shares("aggregated", "a", [0.0, 0, 0]) == {}


def test_the_highest_is_another_site_and_alike():
    assert shares("highest", "a", [1.0, 0.2, 0.3]) == {"c": 1.0}
    assert shares("highest", "a", [1.0, 0.0, 0.0]) == {}


def test_the_fixed_order_is_a_cycle_that_skips_who_has_not_sent():
    assert [shares("fixed", site, [0, 0, 0]) for site in SITES] == [{"c": 1}, {"a": 1}, {"b": 1}]
    assert shares("fixed", "a", [0, 0, 0], sent=("a", "b")) == {"b": 1}
    assert shares("fixed", "c", [0, 0, 0], sent=("a", "c")) == {"a": 1}
    assert shares("fixed", "b", [0, 0, 0], sent=("b",)) == {}


def test_random_is_never_oneself_and_reaches_everybody_else():
    drawn = {next(iter(shares("random", "b", [0, 0, 0], seed=s))) for s in range(20)}
    assert drawn == {"a", "c"}
    assert shares("random", "b", [0, 0, 0], sent=("b",)) == {}
