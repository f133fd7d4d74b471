"""The table of datasets: phantoms and what is on disk, found in one way."""

from pathlib import Path

import numpy as np
import pytest

from consilia.datasets.phantoms import PHANTOMS, load_phantom
from consilia.datasets.registry import DATASETS, federation_of, find_dataset, parse_reference
from consilia.declare import ImageShape
from consilia.errors import DeclarationError, UsageError

NOWHERE = Path("/nowhere")


def test_phantoms_come_first_and_are_the_same_as_before():
    assert list(DATASETS)[: len(PHANTOMS)] == list(PHANTOMS)
    drawn = DATASETS["phantom-mixed"]
    train, _ = drawn.load("cusco", NOWHERE, ImageShape(size=(32, 32)), seed=3)
    assert np.array_equal(
        train.image, load_phantom("phantom-mixed", "cusco", size=32, seed=3)[0].image
    )
    assert drawn.common_test(NOWHERE, drawn.shape) is None
    assert len(DATASETS["phantom-findings"].common_test(NOWHERE, ImageShape(size=(32, 32)))) == 160


@pytest.mark.parametrize(
    "shape", [ImageShape(size=(32, 48)), ImageShape(size=(32, 32), channels=3)]
)
def test_phantoms_refuse_shapes_that_are_not_drawn(shape):
    with pytest.raises(DeclarationError, match="is drawn in squares with 1 channel"):
        DATASETS["phantom-mixed"].load("cusco", NOWHERE, shape)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(UsageError, match=r"no dataset named 'faz129'; did you mean 'faz128'\?"):
        find_dataset("faz129")
    dataset, site = parse_reference("dataset:prostate/hk")
    assert (dataset.card.name, site) == ("prostate", "hk")


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_is_a_valid_federation(name):
    federation = federation_of(DATASETS[name])
    assert set(federation.sites) == set(DATASETS[name].card.sites)
    assert federation.image == DATASETS[name].shape
