"""Batches: what a target, a known plane and an order of images are."""

import numpy as np
import torch

from consilia.datasets.contract import Cases
from consilia.labels import LabelView, labels_known
from consilia.training.batch import ResidentCases, orders

CPU = torch.device("cpu")


def resident(target, annotates=(0, 1), pixels=None, exclusive=True):
    count = len(target)
    names = tuple(map(str, range(count)))
    image = np.full((count, 1, 4, 4), 255, np.uint8)
    view = LabelView(np.array(target, np.uint8), labels_known(count, 2, annotates), pixels)
    return ResidentCases.of(Cases(image, None, names, names), view, CPU, exclusive)


MASK = np.zeros((1, 4, 4), np.uint8)
MASK[0, 0, 0], MASK[0, 1, 1] = 1, 2


def test_intensities_are_between_zero_and_one_and_planes_follow_the_labels():
    batch = resident(MASK).cut(torch.tensor([0]))
    assert batch.image.max() == 1
    assert batch.planes()[0, 0].nonzero().tolist() == [[0, 0]]
    assert batch.planes()[0, 1].nonzero().tolist() == [[1, 1]]
    assert batch.known_planes() is None


def test_a_label_the_site_does_not_mark_is_unknown_except_where_another_label_is():
    batch = resident(MASK * (MASK == 1), annotates=(0,)).cut(torch.tensor([0]))
    known = batch.known_planes()
    assert known[0, 0].all()
    assert known[0, 1].nonzero().tolist() == [[0, 0]]  # a marked pixel excludes every other label
    assert batch.unknown_as_negative().known_planes() is None


def test_sparse_pixels_bound_what_is_known():
    pixels = np.zeros((1, 4, 4), bool)
    pixels[0, 0] = True
    known = resident(MASK, pixels=pixels).cut(torch.tensor([0])).known_planes()
    assert known.shape == (1, 2, 4, 4)
    assert known[0, 0].sum() == 4


def test_supervised_images():
    assert resident(np.zeros((3, 4, 4))).supervised().tolist() == [0, 1, 2]
    assert resident(np.zeros((3, 4, 4)), annotates=()).supervised().tolist() == []
    pixels = np.zeros((3, 4, 4), bool)
    pixels[1, 0, 0] = True
    assert resident(np.zeros((3, 4, 4)), pixels=pixels).supervised().tolist() == [1]
    tags = [[0, 0], [1, 0], [0, 0]]
    assert resident(tags).supervised().tolist() == [1]
    assert resident(tags, exclusive=False).supervised().tolist() == [0, 1, 2]


def seen(count, batch, epochs, steps, seed=0):
    return [
        p.tolist() for p in orders(count, batch, epochs, steps, torch.Generator().manual_seed(seed))
    ]


def test_epochs_show_every_image_once():
    found = seen(10, 4, 2, None)
    assert [len(part) for part in found] == [4, 4, 2, 4, 4, 2]
    assert sorted(i for part in found[:3] for i in part) == list(range(10))
    assert found[:3] != found[3:]


def test_steps_are_full_batches_without_end():
    found = seen(10, 4, 1, 5)
    assert [len(part) for part in found] == [4] * 5
    assert [len(part) for part in seen(3, 12, 1, 4)] == [3] * 4
    assert seen(10, 4, 1, 5) == found
    assert seen(10, 4, 1, 5, seed=1) != found
