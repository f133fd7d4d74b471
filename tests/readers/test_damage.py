"""Whatever happens to a file, it is read or refused with one sentence, and nothing else."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.readers.conftest import SIZE, declare
from tests.readers.test_dicom import nifti_mask, stack

from consilia.datasets.contract import Cases
from consilia.readers.inspect import inspect_folder
from consilia.readers.write import write_folder
from consilia.weaken import weaken

FORMS = {
    "coco": "mask",
    "yolo": "box",
    "voc": "box",
    "labelme": "mask",
    "cvat": "rotated-box",
    "nifti": "mask",
    "parquet": "image",
    "dicom": "mask",
}
FILES = {
    "coco": "annotations.json",
    "yolo": "labels/a.txt",
    "voc": "annotations/a.xml",
    "labelme": "images/a.json",
    "cvat": "annotations.xml",
    "nifti": "images/a.nii.gz",
    "parquet": "labels.parquet",
    "dicom": "images/a/IM0000.dcm",
}
COUNTER = itertools.count()


@cache
def folder(way: str) -> tuple[Path, bytes]:
    """Return a folder that is right, and the file in it that is damaged."""
    root = Path(mkdtemp()) / "x"
    rng = np.random.default_rng(0)
    truth = np.zeros((2, *SIZE), dtype=np.uint8)
    truth[:, 2:5, 3:7] = 1
    cases = Cases(
        rng.integers(0, 256, (2, 1, *SIZE)).astype(np.uint8), truth, ("a", "b"), ("1", "2")
    )
    if way == "dicom":
        stack(root / "images/a")
        nifti_mask(root, "a")
        (root / "cases.csv").write_text("image,patient,split\na,1,train\n")
    else:
        declared = declare(supervision=FORMS[way])
        view, provenance = weaken(cases, declared.labels, declared["x"], seed=0)
        write_folder(root, cases, view, declared["x"], declared.labels, way, provenance=provenance)
    return root, (root / FILES[way]).read_bytes()


@pytest.mark.parametrize("way", FORMS)
def test_the_folder_is_right_before_it_is_damaged(way):
    root, data = folder(way)
    (root / FILES[way]).write_bytes(data)
    assert inspect_folder(root, declare(supervision=FORMS[way]), "x").errors == ()


@settings(max_examples=160, deadline=None)
@given(
    way=st.sampled_from(sorted(FORMS)),
    cut=st.one_of(st.just(1.0), st.floats(0.0, 1)),
    changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=6),
)
def test_damaged_files_are_read_or_refused_and_nothing_else(way, cut, changes):
    root, data = folder(way)
    damaged = bytearray(data[: int(cut * len(data))])
    for place, value in changes:
        if damaged:
            damaged[int(place * len(damaged))] = value
    (root / FILES[way]).write_bytes(damaged)
    for sentence in inspect_folder(root, declare(supervision=FORMS[way]), "x").errors:
        assert sentence.isprintable()
