"""A case is a volume, or each of its slices, as the study says."""

from dataclasses import replace

import numpy as np
import pytest

from consilia.runs.cases import cases_of
from consilia.runs.store import RunFolder
from consilia.testing import run_toy, toy_sites, toy_spec


def judged(unit, path):
    """Return the test cases of a run on three volumes of two slices, and its mean scores."""
    spec = toy_spec(
        labels=["round"], rounds=1, evaluate={"unit": unit, "validation": 0.2, "pictures": 2}
    )
    sites = {
        name: replace(
            data,
            test=replace(data.test, volume=tuple("aabbcc"), group=tuple("ppppqq")),
            validation=replace(data.validation, volume=tuple("xxyy")),
        )
        for name, data in toy_sites(spec).items()
    }
    metrics = run_toy(spec, path, sites)
    return cases_of(RunFolder.open(path), [1])["anna"], metrics["sites"]["anna"], sites["anna"].test


def test_slices_of_a_volume_are_one_case_or_each_its_own(tmp_path):
    whole, *_ = judged("volume", tmp_path / "volumes")
    assert whole["case"] == ["a", "b", "c"]
    assert whole["group"] == ["p", "p", "q"]
    each, means, test = judged("image", tmp_path / "images")
    assert each["case"] == list(test.case)
    assert each["group"] == list("ppppqq")  # patients stay together in intervals and tests
    assert means["dice"] == pytest.approx(np.mean(each["values"]["dice"]))
    assert len(whole["values"]["dice"]) == 3 < len(each["values"]["dice"]) == 6
    assert (tmp_path / "images/predictions/anna.npz").is_file()
