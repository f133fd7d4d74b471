from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from consilia.errors import UsageError
from consilia.evaluate.classification import classification_scores
from consilia.evaluate.metrics import METRICS, defined_mean, metric_of
from consilia.evaluate.segmentation import SEGMENTATION


def test_every_score_is_in_the_table():
    probability = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    truth = np.array([[1, 0], [0, 1], [0, 1]], np.uint8)
    scores = classification_scores(probability, truth, ("a", "b"), exclusive=True)
    names = {metric_of(key).name for key in scores} | set(SEGMENTATION)
    assert names == set(METRICS)
    assert {METRICS[name].task for name in SEGMENTATION} == {"segmentation", "both"}
    assert [x.name for x in METRICS.values() if x.better == "lower"] == ["hd95"]


def test_a_metric_goes_by_name_with_or_without_a_label():
    assert metric_of("dice/disc") is metric_of("dice") is METRICS["dice"]
    with pytest.raises(UsageError, match="did you mean 'auroc'"):
        metric_of("aurok/melanoma")


def test_what_is_not_defined_is_left_out_of_means():
    table = np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    assert defined_mean(table) == pytest.approx([2, np.nan], nan_ok=True)
    assert defined_mean(table, axis=1) == pytest.approx([1, np.nan, 3], nan_ok=True)
    assert np.isnan(defined_mean([]))


def test_naming_the_metrics_imports_nothing_heavy():
    modules = ("metrics", "segmentation", "classification", "intervals", "paired", "selection")
    code = (
        f"import sys, {', '.join(f'consilia.evaluate.{name}' for name in modules)}; "
        "print({'torch', 'monai', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
