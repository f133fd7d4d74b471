"""Which round is reported: a named choice, made before looking and never on the test cases."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from consilia.errors import UsageError, suggestion, unknown
from consilia.evaluate.metrics import Better, defined_mean

Scores = dict[str, dict[str, float]]  # site -> metric -> value

RULES: Mapping[str, str] = MappingProxyType(
    {
        "last_round": "the last evaluated round",
        "last_ten": "the mean over the last ten evaluated rounds, or all of them if fewer",
        "best_validation": "the round with the best mean validation score, the earliest if tied",
    }
)


@dataclass(frozen=True)
class Evaluation:
    """The scores of one round, site by site; `validation` is `None` where nothing was held out."""

    round: int
    test: Scores
    validation: Scores | None = None


@dataclass(frozen=True)
class Selected:
    """What is reported, and the rounds it comes from.

    Attributes:
        rounds: The selected rounds, in order; several only for a mean over rounds.
        sites: Test scores per site, each the mean over the selected rounds.
        mean: Each metric's unweighted mean over the sites where it is defined.
    """

    rounds: tuple[int, ...]
    sites: Scores
    mean: dict[str, float]


def select(
    history: Sequence[Evaluation],
    rule: str = "last_round",
    metric: str = "dice",
    better: Better = "higher",
) -> Selected:
    """Return the test scores of the rounds that a rule picks.

    Only "best_validation" looks at scores to choose, and it looks at validation scores. A round
    that was evaluated twice (a resumed run) counts once, as evaluated last. NaN is left out of
    every mean.

    Args:
        history: Evaluated rounds, in any order.
        rule: A name out of `RULES`.
        metric: The metric "best_validation" goes by; the other rules do not read it.
        better: Whether higher or lower values of that metric are better.
    """
    refuse_unknown(rule)
    if not history:
        message = f"there is no evaluated round for '{rule}' to choose from; evaluate at least one"
        raise UsageError(message)
    evaluations = {evaluation.round: evaluation for evaluation in history}
    ordered = [evaluations[number] for number in sorted(evaluations)]
    match rule:
        case "last_round":
            chosen = ordered[-1:]
        case "last_ten":
            chosen = ordered[-10:]
        case _:
            chosen = [_best_validation(ordered, metric, better)]
    sites = _mean_over_rounds(chosen)
    return Selected(tuple(e.round for e in chosen), sites, _mean_of(sites.values()))


def refuse_unknown(rule: str) -> None:
    """Refuse a rule that there is not."""
    if rule not in RULES:
        raise UsageError(unknown("selection rule", rule, RULES))


def _best_validation(ordered: Sequence[Evaluation], metric: str, better: Better) -> Evaluation:
    """Return the earliest round with the best mean validation score."""
    means = [_mean_of((e.validation or {}).values()) for e in ordered]
    scored = [
        (mean[metric], evaluation)
        for mean, evaluation in zip(means, ordered, strict=True)
        if not math.isnan(mean.get(metric, math.nan))
    ]
    if not scored:
        near = suggestion(metric, {name for mean in means for name in mean})
        message = (
            f"'best_validation' needs validation scores of '{metric}', but no round has any; hold out "
            f"validation cases or use 'last_round'{near}"
        )
        raise UsageError(message)
    sign = 1 if better == "higher" else -1
    return max(scored, key=lambda pair: sign * pair[0])[1]  # the first of equals


def _mean_over_rounds(chosen: Iterable[Evaluation]) -> Scores:
    """Return each site's mean test scores over the rounds it took part in."""
    rounds: dict[str, list[dict[str, float]]] = {}
    for evaluation in chosen:
        for site, scores in evaluation.test.items():
            rounds.setdefault(site, []).append(scores)
    return {site: _mean_of(scores) for site, scores in rounds.items()}


def _mean_of(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the rows that have it."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return {name: float(defined_mean(column)) for name, column in values.items()}
