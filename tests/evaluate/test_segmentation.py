from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from consilia.errors import UsageError
from consilia.evaluate import segmentation as m

LESION = (1,)
OVERLAPS = (m.dice, m.iou, m.sensitivity, m.precision)

maps = hnp.arrays(np.uint8, (6, 7), elements=st.integers(0, 3))
regions = st.sampled_from([(1,), (2,), (1, 2), (1, 2, 3)])
pairs = settings(max_examples=60, deadline=None)


def blobs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return a ball at a random place, frayed by noise."""
    center = [rng.uniform(0.3, 0.7) * side for side in shape]
    radius = rng.uniform(0.15, 0.35) * min(shape)
    grid = np.indices(shape)
    distance = np.sqrt(sum((axis - c) ** 2 for axis, c in zip(grid, center, strict=True)))
    return (distance + rng.normal(0, 1.5, shape) < radius).astype(np.uint8)


def surface(mask: np.ndarray) -> list[tuple[int, ...]]:
    """Return the pixels of a mask with a neighbor outside of it, one by one."""
    inside = {tuple(point) for point in np.argwhere(mask).tolist()}
    steps = [s * step for step in np.eye(mask.ndim, dtype=int) for s in (1, -1)]
    return [p for p in inside if any(tuple((p + step).tolist()) not in inside for step in steps)]


def hd95_by_loops(p: np.ndarray, t: np.ndarray) -> float:
    a, b = surface(p), surface(t)
    there = [min(np.hypot.reduce(np.subtract(x, y)) for y in b) for x in a]
    back = [min(np.hypot.reduce(np.subtract(x, y)) for y in a) for x in b]
    return float(max(np.percentile(there, 95), np.percentile(back, 95)))


def monai_hd95(p: np.ndarray, t: np.ndarray) -> float:
    import torch
    from monai.metrics import compute_hausdorff_distance

    hot = [torch.from_numpy(mask.astype(np.float32))[None, None] for mask in (p, t)]
    return float(compute_hausdorff_distance(*hot, include_background=True, percentile=95))


def test_overlaps_by_hand():
    predicted = np.array([[1, 1, 1], [0, 0, 2]], np.uint8)
    truth = np.array([[1, 1, 0], [1, 1, 2]], np.uint8)
    # label 1: three predicted, four true, two in common
    found = [score(predicted, truth, LESION) for score in OVERLAPS]
    assert found == pytest.approx([4 / 7, 2 / 5, 2 / 4, 2 / 3])
    assert m.dice(predicted, truth, (1, 2)) == pytest.approx(6 / 9)
    assert m.dice(predicted, truth, (2,)) == 1


NAN = float("nan")


@pytest.mark.parametrize(
    ("predicted", "truth", "expected"),
    [
        (0, 0, {"dice": 1, "iou": 1, "hd95": 0, "sensitivity": 1, "precision": 1}),
        (1, 0, {"dice": 0, "iou": 0, "hd95": 2.5, "sensitivity": NAN, "precision": 0}),
        (0, 1, {"dice": 0, "iou": 0, "hd95": 2.5, "sensitivity": 0, "precision": NAN}),
        (1, 1, {"dice": 1, "iou": 1, "hd95": 0, "sensitivity": 1, "precision": 1}),
    ],
)
def test_empty_masks_have_stated_scores(predicted, truth, expected):
    maps = (np.full((3, 4), value, np.uint8) for value in (predicted, truth))
    predicted, truth = maps
    found = {name: score(predicted, truth, LESION) for name, score in m.SEGMENTATION.items()}
    assert found == pytest.approx(expected, nan_ok=True)


@pairs
@given(maps, maps, regions)
def test_scores_keep_their_bounds_and_symmetries(predicted, truth, region):
    for score in OVERLAPS:
        value = score(predicted, truth, region)
        assert np.isnan(value) or 0 <= value <= 1
    for score in (m.dice, m.iou, m.hd95):
        assert score(predicted, truth, region) == score(truth, predicted, region)
    d, j = m.dice(predicted, truth, region), m.iou(predicted, truth, region)
    assert d == pytest.approx(2 * j / (1 + j))
    assert 0 <= m.hd95(predicted, truth, region) <= np.hypot(5, 6)


@pairs
@given(maps, regions)
def test_a_perfect_prediction_is_perfect(truth, region):
    assert [score(truth, truth, region) for score in OVERLAPS] == [1, 1, 1, 1]
    assert m.hd95(truth, truth, region) == 0


@pairs
@given(maps, maps)
def test_hd95_is_the_loop_over_all_pairs(predicted, truth):
    if (predicted == 1).any() and (truth == 1).any():
        expected = hd95_by_loops(predicted == 1, truth == 1)
        assert m.hd95(predicted, truth, LESION) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(24, 33), (64, 64), (6, 20, 17)])
def test_scores_are_those_of_monai(shape):
    import torch
    from monai.metrics import compute_dice, compute_iou

    rng = np.random.default_rng(0)
    for _ in range(5):
        p, t = blobs(rng, shape), blobs(rng, shape)
        hot = [torch.from_numpy(mask.astype(np.float32))[None, None] for mask in (p, t)]
        assert m.dice(p, t, LESION) == pytest.approx(float(compute_dice(*hot)), abs=1e-6)
        assert m.iou(p, t, LESION) == pytest.approx(float(compute_iou(*hot)), abs=1e-6)
        assert m.hd95(p, t, LESION) == pytest.approx(monai_hd95(p, t), abs=1e-4)


def test_hd95_by_hand():
    predicted, truth = np.zeros((2, 9, 9), np.uint8)
    predicted[2, 2] = truth[5, 6] = 1
    assert m.hd95(predicted, truth, LESION) == 5
    predicted[:] = 1
    truth[:] = 1
    truth[4, 4] = 0  # a hole adds four surface pixels, at distance 4 or 3 from the border
    assert m.hd95(predicted, truth, LESION) == pytest.approx(np.percentile([0] * 32 + [3] * 4, 95))


def test_a_mask_shifted_by_three_is_three_away():
    predicted, truth = np.zeros((2, 40, 40), np.uint8)
    truth[10:20, 10:20] = 1
    predicted[13:23, 10:20] = 1
    assert m.hd95(predicted, truth, LESION) == pytest.approx(3)


def test_hd95_of_a_128_image_takes_about_a_millisecond():
    rng = np.random.default_rng(1)
    p, t = blobs(rng, (128, 128)), blobs(rng, (128, 128))
    m.hd95(p, t, LESION)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        m.hd95(p, t, LESION)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.004  # typically a tenth of that; room for a busy machine


def test_segmentation_scores_average_regions_case_by_case():
    rng = np.random.default_rng(2)
    predicted, truth = rng.integers(0, 3, (2, 5, 8, 8), dtype=np.uint8)
    united = {"cup": (1,), "disc": (1, 2)}
    scores = m.segmentation_scores(predicted, truth, united, ["dice", "hd95"])
    assert list(scores) == ["dice", "dice/cup", "dice/disc", "hd95", "hd95/cup", "hd95/disc"]
    for i in range(5):
        cup, disc = (m.dice(predicted[i], truth[i], region) for region in united.values())
        assert scores["dice"][i] == pytest.approx((cup + disc) / 2)
        assert scores["dice/disc"][i] == disc
    assert all(row.dtype == np.float64 and row.shape == (5,) for row in scores.values())
    alone = m.segmentation_scores(predicted, truth, {"cup": (1,)}, ["dice"])
    assert list(alone) == ["dice"]
    np.testing.assert_array_equal(alone["dice"], scores["dice/cup"])


def test_an_undefined_region_is_left_out_of_the_case():
    truth = np.array([[[1, 0]], [[0, 0]]], np.uint8)
    predicted = np.array([[[1, 2]], [[2, 1]]], np.uint8)
    both = {"one": (1,), "two": (2,)}
    scores = m.segmentation_scores(predicted, truth, both, ["sensitivity"])
    np.testing.assert_array_equal(scores["sensitivity"], [1, np.nan])


def test_slices_are_scored_as_the_volume_they_come_from():
    rng = np.random.default_rng(3)
    volumes = {"b": (blobs(rng, (4, 12, 12)), blobs(rng, (4, 12, 12)))}
    volumes["a"] = (blobs(rng, (3, 12, 12)), blobs(rng, (3, 12, 12)))
    names = ["b", "a", "b", "a", "b", "a", "b"]  # interleaved, each in its own order
    turn = {name: iter(zip(*pair, strict=True)) for name, pair in volumes.items()}
    predicted, truth = map(np.stack, zip(*(next(turn[name]) for name in names), strict=True))
    scores = m.segmentation_scores(
        predicted, truth, {"lesion": LESION}, ["dice", "hd95"], volume=names
    )
    for row, (p, t) in enumerate(volumes.values()):
        assert scores["dice"][row] == m.dice(p, t, LESION)
        assert scores["hd95"][row] == pytest.approx(monai_hd95(p, t), abs=1e-4)
    assert len(scores["dice"]) == 2


def test_the_diagonal_of_a_volume_is_in_3d():
    truth = np.zeros((2, 3, 6), np.uint8)
    predicted = np.ones_like(truth)
    scores = m.segmentation_scores(predicted, truth, {"x": LESION}, ["hd95"], volume=["v", "v"])
    assert scores["hd95"] == pytest.approx([3.5])


def test_no_cases_make_no_rows():
    nothing = np.zeros((0, 4, 4), np.uint8)
    assert m.segmentation_scores(nothing, nothing, {"x": LESION}, ["dice"])["dice"].shape == (0,)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda x: m.segmentation_scores(x, x, {"x": (1,)}, ["dyce"]), "did you mean 'dice'"),
        (lambda x: m.segmentation_scores(x, x, {}, ["dice"]), "no region to score"),
        (lambda x: m.dice(x[0], x[0], (0, 1)), "0 is background"),
        (lambda x: m.dice(x[0], x[0], ()), "from 1"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call(np.zeros((1, 2, 2), np.uint8))


def test_shapes_must_agree():
    # a broadcast would score one image against all; jaxtyping, where it is on, refuses it first
    with pytest.raises(Exception, match=r"shape|pixels"):
        m.dice(np.zeros((2, 2), np.uint8), np.zeros((1, 2), np.uint8), LESION)
