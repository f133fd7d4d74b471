"""Patients, cases and classifiers for the tests of this folder."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

NAN = float("nan")


def names(codes: np.ndarray) -> list[str]:
    return [f"patient-{code}" for code in codes]


def clustered(rng: np.random.Generator, patients: int, each: int = 4, spread: float = 1.0):
    """Return values per case that vary mostly between patients, and the patients."""
    codes = np.repeat(np.arange(patients), each)
    return rng.normal(0, spread, patients)[codes] + rng.normal(0, 0.1, len(codes)), codes


def draw_classifier(rng: np.random.Generator, n: int, k: int, skill: float):
    truth = (rng.random((n, k)) < 0.4).astype(np.uint8)
    return truth, skill * truth + rng.normal(size=(n, k))


def macro(probability: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean AUROC of scikit-learn over labels with both classes."""
    both = [c for c in range(truth.shape[1]) if 0 < truth[:, c].sum() < len(truth)]
    return float(np.mean([roc_auc_score(truth[:, c], probability[:, c]) for c in both]))
