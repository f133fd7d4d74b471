"""HD95 in millimetres, where files say how far apart pixels are."""

from __future__ import annotations

import numpy as np
import pytest

from consilia.evaluate.segmentation import hd95, segmentation_scores


def test_spacing_scales_the_distance() -> None:
    predicted = np.zeros((20, 20), np.uint8)
    truth = predicted.copy()
    predicted[5, 5] = truth[5, 9] = 1
    assert hd95(predicted, truth, (1,)) == 4
    assert hd95(predicted, truth, (1,), (3.0, 0.5)) == 2
    assert hd95(predicted.T.copy(), truth.T.copy(), (1,), (3.0, 0.5)) == 12


def test_an_empty_prediction_scores_half_the_diagonal_in_millimetres() -> None:
    truth = np.zeros((30, 40), np.uint8)
    truth[3:6, 3:6] = 1
    assert hd95(np.zeros_like(truth), truth, (1,), (2.0, 2.0)) == pytest.approx(50)


def test_volumes_use_all_three_steps() -> None:
    predicted, truth = np.zeros((2, 4, 8, 8), np.uint8)
    predicted[0, 4, 4] = truth[3, 4, 4] = 1
    spacing = np.tile([5.0, 1.0, 1.0], (4, 1))
    regions = {"lesion": (1,)}
    scored = segmentation_scores(
        predicted, truth, regions, ("hd95",), volume=["v"] * 4, spacing=spacing
    )
    assert scored["hd95"].tolist() == [15.0]
