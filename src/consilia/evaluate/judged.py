"""Classifiers judged by AUROC: methods on the images and labels that it is defined for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from consilia.evaluate.classification import Probability, auroc_per_label, weighted_auroc
from consilia.evaluate.metrics import defined_mean
from consilia.evaluate.resampling import Groups, codes_of, draws, strata_of

#: The probabilities of one model, or of several.
Models = Probability | Float[np.ndarray, "m n k"]


@dataclass(frozen=True)
class Judged:
    """Methods on the images and labels that AUROC is defined for.

    Attributes:
        methods: Per method the probabilities of its models, (m, n, k) each.
        positive: Whether an image has a label, (n, k).
        usable: Where the truth is known and every method's probability finite, (n, k).
        codes: The patient of each image, (n,).
    """

    methods: tuple[np.ndarray, ...]
    positive: np.ndarray
    usable: np.ndarray
    codes: np.ndarray

    @property
    def patients(self) -> int:
        """How many patients have something to judge."""
        return len(np.unique(self.codes))

    def labels(self, model: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield per label the usable images, and a model's scores and the truth on them."""
        columns = zip(self.usable.T, model.T, self.positive.T, strict=True)
        return ((seen, score[seen], positive[seen]) for seen, score, positive in columns)

    def auroc(self) -> float:
        """Return the mean AUROC over labels and models; of two methods, the first's lead."""
        return float(
            _lead(
                [auroc_per_label(model, self.positive, self.usable) for model in models]
                for models in self.methods
            )
        )

    def drawn(self, resamples: int, seed: int) -> Iterator[np.ndarray]:
        """Yield how often each image occurs, in blocks of resamples."""
        rng = np.random.default_rng(seed)
        for draw in draws(self.patients, len(self.codes), resamples, rng):
            yield draw[:, self.codes]

    def resampled(self, weight: np.ndarray) -> np.ndarray:
        """Return what `auroc` does, under each weighting of the images."""
        return _lead(
            [
                np.stack(
                    [weighted_auroc(s, y, weight[:, seen]) for seen, s, y in self.labels(model)]
                )
                for model in models
            ]
            for models in self.methods
        )


def _lead(methods: Iterable[Sequence[np.ndarray]]) -> np.ndarray:
    """Return the mean of a method's models over labels; of two methods, the first's less the other's."""
    first, *others = (
        np.mean([defined_mean(model) for model in models], axis=0) for models in methods
    )
    for other in others:
        first = first - other
    return np.asarray(first)


def judge_strata(
    methods: tuple[np.ndarray, ...],
    truth: np.ndarray,
    groups: Groups,
    known: np.ndarray | None,
    strata: Groups | None,
) -> list[Judged]:
    """Return what can be judged of each stratum, in the order of their names."""
    names = np.asarray(groups)
    return [
        _judge(
            tuple(method[..., members, :] for method in methods),
            truth[members],
            names[members],
            None if known is None else known[members],
        )
        for members in strata_of(strata, np.ones(len(truth), dtype=bool))
    ]


def _judge(
    methods: tuple[np.ndarray, ...], truth: np.ndarray, groups: Groups, known: np.ndarray | None
) -> Judged:
    """Return what can be judged: labels with both classes, images with a usable label."""
    positive = truth.astype(bool)
    stacks = [method if method.ndim == 3 else method[None] for method in methods]
    usable = np.isfinite(np.concatenate(stacks)).all(axis=0) & (known is None or known)
    labels = (usable & positive).any(axis=0) & (usable & ~positive).any(axis=0)
    images = usable[:, labels].any(axis=1)
    kept = np.ix_(images, labels)
    codes = codes_of(np.asarray(groups)[images])
    chosen = tuple(np.stack([model[kept] for model in stack]) for stack in stacks)
    return Judged(chosen, positive[kept], usable[kept], codes)
