"""FedPSL's partition of ChestX-ray14, against the counts of the paper's Table I."""

import os
from pathlib import Path

import numpy as np
import pytest

from consilia.datasets.chestxray14 import (
    FIRST,
    LATER,
    PER_LABEL,
    SETUP_A,
    Table,
    archive_of,
    fedpsl_partition,
    fedpsl_test,
)
from consilia.datasets.pack import FINDINGS, read_pack
from consilia.errors import DataError, UsageError
from consilia.weaken import FEDPSL_A

PAPER = (
    {"infiltration": 141, "effusion": 131, "atelectasis": 78},
    {"effusion": 98, "atelectasis": 91, "nodule": 45},
    {"atelectasis": 121, "nodule": 67, "consolidation": 40},
    {"nodule": 55, "consolidation": 49, "pneumothorax": 45},
)


@pytest.fixture(scope="module")
def drawn():
    """A table of the right length with random findings, in no order."""
    rng = np.random.default_rng(0)
    count = FIRST + 5 * LATER
    order = rng.permutation(count)
    label = (rng.random((count, 14)) < 0.05).astype(np.uint8)
    patients = tuple(str(n // 4) for n in order)
    return Table(tuple(f"{n // 4:08d}_{n % 4:03d}.png" for n in order), label, patients)


def test_archives_follow_the_order_of_file_names(drawn):
    assert [archive_of(n) for n in (0, 4998, 4999, 14998, 14999)] == [1, 1, 2, 2, 3]
    names = sorted(drawn.filename)
    for site, archive in zip(fedpsl_partition(drawn), (2, 3, 4, 5), strict=True):
        first = FIRST + (archive - 2) * LATER
        assert [drawn.filename[row] for row in site.rows] == names[first : first + 1000]


def test_label_sets_are_those_that_weaken_knows():
    assert SETUP_A == FEDPSL_A


def test_the_test_set_shares_no_patient_and_no_archive_with_the_sites(drawn):
    rows = fedpsl_test(drawn)
    sites = fedpsl_partition(drawn)
    seen = {drawn.patient[row] for site in sites for row in site.rows}
    assert not seen & {drawn.patient[row] for row in rows}
    names = {name: at for at, name in enumerate(sorted(drawn.filename))}
    assert {archive_of(names[drawn.filename[row]]) for row in rows} <= {1, 6}
    for name in {name for site in SETUP_A for name in site}:
        positives = drawn.label[list(rows), FINDINGS.index(name)].sum()
        assert PER_LABEL <= positives <= len(rows) - PER_LABEL
    assert rows == fedpsl_test(drawn)
    assert rows != fedpsl_test(drawn, seed=1)


def test_short_tables_and_other_setups_are_refused(drawn):
    with pytest.raises(DataError, match="112,120"):
        fedpsl_partition(Table(drawn.filename[:100], drawn.label[:100], drawn.patient[:100]))
    with pytest.raises(UsageError, match="'B' is no partition"):
        fedpsl_partition(drawn, "B")


def test_counts_of_table_one():
    root = os.environ.get("CONSILIA_DATA")
    if not root or not (Path(root) / "nih_labels.npz").is_file():
        pytest.skip("needs the pack nih_labels in CONSILIA_DATA")
    table = Table.from_arrays(read_pack(Path(root), "nih_labels")[0])
    found = [site.positives(table) for site in fedpsl_partition(table)]
    assert tuple(found[1:]) == PAPER[1:]
    assert all(abs(found[0][name] - count) <= 1 for name, count in PAPER[0].items())
