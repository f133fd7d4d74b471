"""Judging a model at a site: predict its cases, score them, keep pictures of a few."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from consilia.datasets.contract import Cases
from consilia.declare import Federation
from consilia.evaluate.classification import classification_scores
from consilia.evaluate.segmentation import segmentation_scores
from consilia.payload import Weights
from consilia.runs.cases import MEMBER, PROBABILITY, TRUTH
from consilia.training.site import Workbench, images_at_once
from consilia.training.transfer import fill

METRICS = ("dice", "iou", "hd95", "sensitivity", "precision")
#: So many new images at least are predicted together.
BATCH = 32


@dataclass(frozen=True)
class Judgement:
    """Scores of one model on some cases: means, and one row per case."""

    means: dict[str, float]
    case: tuple[str, ...]
    group: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray

    @classmethod
    def mean_of(cls, judgements: list[Judgement]) -> Judgement:
        """Return the mean of several models' scores."""
        first = judgements[0]
        means = {key: _mean(np.array([j.means[key] for j in judgements])) for key in first.means}
        values = np.mean([j.values for j in judgements], axis=0)
        columns = first.columns
        if len(judgements) > 1 and columns and columns[0].startswith(PROBABILITY):
            # Scores of the members are averaged, never those of their mean, so each is kept.
            own = [i for i, name in enumerate(columns) if name.startswith(PROBABILITY)]
            for member, judgement in enumerate(judgements, start=1):
                values = np.concatenate([values, judgement.values[:, own]], 1)
                columns += tuple(
                    f"{MEMBER}{member}/{first.columns[i].removeprefix(PROBABILITY)}" for i in own
                )
        return cls(means, first.case, first.group, columns, values)


def predict(bench: Workbench, weights: Weights, image: np.ndarray) -> Float[Tensor, "n k ..."]:
    """Return the probability of each label, `(n, k, h, w)` or `(n, k)`, on the CPU."""
    network, many = bench.network(), images_at_once(image.shape[-2:], bench.device)
    fill(bench.tensors(), weights)
    network.eval()
    with torch.inference_mode(), bench.arithmetic():
        parts = [
            bench.learner.probabilities(
                network,
                torch.from_numpy(np.array(image[at : at + many]))
                .to(bench.device)
                .float()
                .div_(255),
            ).cpu()
            for at in range(0, len(image), many)
        ]
    return torch.cat(parts)


def judge(
    bench: Workbench, federation: Federation, weights: Weights, cases: Cases
) -> tuple[Judgement, np.ndarray]:
    """Return the scores of a model on some cases, and its predictions."""
    assert cases.truth is not None, "cases to be judged on have a truth"
    probability = predict(bench, weights, cases.image)
    if federation.task == "classification":
        return _judge_classes(federation, probability.numpy(), cases), probability.numpy()
    predicted = bench.learner.decide(probability).numpy()
    return _judge_masks(federation, predicted, cases), predicted


def _judge_masks(federation: Federation, predicted: np.ndarray, cases: Cases) -> Judgement:
    assert cases.truth is not None
    at = {label: index for index, label in enumerate(federation.labels, start=1)}
    regions = {
        name: tuple(at[label] for label in members) for name, members in federation.regions.items()
    } or {label: (index,) for label, index in at.items()}
    if cases.marked is not None:
        judged = {index for index, known in enumerate(cases.marked, start=1) if known}
        regions = {name: members for name, members in regions.items() if judged.issuperset(members)}
    scores = segmentation_scores(
        predicted, cases.truth, regions, METRICS, volume=cases.volume, spacing=cases.spacing
    )
    case, group = cases.case, cases.group
    if cases.volume is not None:
        first = {volume: i for i, volume in reversed(list(enumerate(cases.volume)))}
        case = tuple(dict.fromkeys(cases.volume))
        group = tuple(cases.group[first[volume]] for volume in case)
    means = {key: _mean(values) for key, values in scores.items()}
    return Judgement(means, case, group, tuple(scores), np.stack(list(scores.values()), 1))


def _judge_classes(federation: Federation, probability: np.ndarray, cases: Cases) -> Judgement:
    assert cases.truth is not None
    known = cases.known
    if known is None and cases.marked is not None:
        known = np.tile(np.array(cases.marked), (len(cases), 1))
    means = classification_scores(
        probability, cases.truth, federation.labels, federation.exclusive, known
    )
    columns = (
        *(f"{PROBABILITY}{label}" for label in federation.labels),
        *(f"{TRUTH}{label}" for label in federation.labels),
    )
    truth = cases.truth if known is None else np.where(known, cases.truth, np.nan)
    values = np.concatenate([probability, truth], 1).astype(np.float64)
    return Judgement(means, cases.case, cases.group, columns, values)


def _mean(values: np.ndarray) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else math.nan


def save_pictures(
    path: Path, cases: Cases, predicted: np.ndarray, judgement: Judgement, count: int
) -> None:
    """Keep the best, the median and the worst cases of a site, at the site, as one .npz."""
    if not count or not len(cases):
        return
    score = _quality(cases, predicted)
    order = np.argsort(-score, kind="stable")
    ranks = {
        "best": order[:count],
        "median": order[_middle(len(order), count)],
        "worst": order[-count:],
    }
    index = np.concatenate(list(ranks.values()))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        image=cases.image[index],
        truth=np.asarray(cases.truth)[index],
        predicted=predicted[index],
        score=score[index],
        case=np.array([cases.case[i] for i in index]),
        rank=np.array([rank for rank, chosen in ranks.items() for _ in chosen]),
    )


def _quality(cases: Cases, predicted: np.ndarray) -> np.ndarray:
    truth = np.asarray(cases.truth)
    if truth.ndim == 2:  # classification: the mean probability given to what is true
        return np.asarray(np.where(truth > 0, predicted, 1 - predicted).mean(1))
    hit = ((predicted == truth) & (truth > 0)).sum((1, 2))
    both = (predicted > 0).sum((1, 2)) + (truth > 0).sum((1, 2))
    return np.where(both > 0, 2 * hit / np.maximum(both, 1), 1.0)


def _middle(total: int, count: int) -> slice:
    start = max(0, (total - count) // 2)
    return slice(start, start + count)
