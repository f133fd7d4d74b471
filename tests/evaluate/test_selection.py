from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilia.errors import UsageError
from consilia.evaluate.selection import RULES, Evaluation, select

NAN = float("nan")


def history(*validation: float, sites: int = 1) -> list[Evaluation]:
    """Return rounds 1, 2, … whose test dice is round / 100, with these validation scores."""
    return [
        Evaluation(
            number,
            {f"s{i}": {"dice": number / 100, "hd95": float(100 - number)} for i in range(sites)},
            {f"s{i}": {"dice": value} for i in range(sites)},
        )
        for number, value in enumerate(validation, 1)
    ]


def test_last_round_is_the_default():
    selected = select(history(0.9, 0.1, 0.2))
    assert selected.rounds == (3,)
    assert selected.sites == {"s0": {"dice": 0.03, "hd95": 97.0}}
    assert selected.mean == {"dice": 0.03, "hd95": 97.0}


def test_last_ten_averages_and_says_which():
    selected = select(history(*[0.5] * 14), "last_ten")
    assert selected.rounds == tuple(range(5, 15))
    assert selected.mean == pytest.approx({"dice": 0.095, "hd95": 90.5})
    fewer = select(history(*[0.5] * 3), "last_ten")
    assert fewer.rounds == (1, 2, 3)
    assert fewer.mean["dice"] == pytest.approx(0.02)


def test_best_validation_never_looks_at_test():
    assert select(history(0.2, 0.9, 0.3), "best_validation", "dice", "higher").rounds == (2,)
    assert select(history(0.2, 0.9, 0.3), "best_validation", "dice", "lower").rounds == (1,)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1) | st.just(NAN), min_size=1, max_size=12), st.booleans())
def test_best_validation_is_the_earliest_of_the_best(values, higher):
    defined = [v for v in values if not math.isnan(v)]
    if not defined:
        return
    best = max(defined) if higher else min(defined)
    better = "higher" if higher else "lower"
    selected = select(history(*values, sites=2), "best_validation", "dice", better)
    assert selected.rounds == (values.index(best) + 1,)


def test_validation_is_averaged_over_sites():
    rounds = [
        Evaluation(1, {"a": {"dice": 0.1}}, {"a": {"dice": 0.9}, "b": {"dice": 0.1}}),
        Evaluation(2, {"a": {"dice": 0.2}}, {"a": {"dice": 0.6}, "b": {"dice": NAN}}),
        Evaluation(3, {"a": {"dice": 0.3}}, None),
    ]
    assert select(rounds, "best_validation").rounds == (2,)


def test_the_mean_counts_every_site_once_and_leaves_out_what_is_not_defined():
    rounds = [
        Evaluation(5, {"a": {"dice": 0.4, "hd95": NAN}, "b": {"dice": 0.8}, "c": {"hd95": 7.0}})
    ]
    selected = select(rounds)
    assert selected.mean == pytest.approx({"dice": 0.6, "hd95": 7.0})
    assert math.isnan(selected.sites["a"]["hd95"])


def test_a_site_absent_from_some_rounds_is_averaged_over_its_own():
    rounds = [
        Evaluation(1, {"a": {"dice": 0.2}, "b": {"dice": 0.6}}),
        Evaluation(2, {"a": {"dice": 0.4}}),
        Evaluation(3, {"a": {"dice": NAN}}),
    ]
    selected = select(rounds, "last_ten")
    assert selected.sites["a"]["dice"] == pytest.approx(0.3)
    assert selected.mean == pytest.approx({"dice": 0.45})


def test_what_is_nowhere_defined_stays_undefined():
    assert math.isnan(select([Evaluation(1, {"a": {"dice": NAN}})]).mean["dice"])


def test_order_and_repetition_of_rounds_do_not_matter():
    rounds = history(0.1, 0.2, 0.3)
    again = Evaluation(2, {"s0": {"dice": 0.5}})
    assert select([rounds[2], rounds[0], rounds[1]]).rounds == (3,)
    selected = select([*rounds[:2], again], "last_ten")
    assert selected.rounds == (1, 2)
    assert selected.mean["dice"] == pytest.approx((0.01 + 0.5) / 2)


@pytest.mark.parametrize(
    ("rounds", "rule", "metric", "sentence"),
    [
        ([Evaluation(1, {"a": {"dice": 1.0}})], "best_validation", "dice", "hold out validation"),
        (history(0.5), "best_validation", "dicee", "did you mean 'dice'"),
        (history(NAN), "best_validation", "dice", "use 'last_round'"),
        (history(0.5), "last_rounds", "dice", "did you mean 'last_round'"),
        ([], "last_round", "dice", "no evaluated round"),
    ],
)
def test_what_cannot_be_selected_is_refused_in_a_sentence(rounds, rule, metric, sentence):
    with pytest.raises(UsageError, match=sentence):
        select(rounds, rule, metric)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_selects(rule):
    assert select(history(0.5, 0.6), rule).rounds
