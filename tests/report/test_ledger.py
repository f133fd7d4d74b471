from __future__ import annotations

import json
from typing import Any

import pytest

from consilia.report.ledger import sent_fields, statement
from consilia.report.record import Record


def with_field(run, **entry: Any) -> Record:
    """Return the record of a run whose site 'bergen' sent one more field."""
    head = {"round": 1, "site": "bergen", "direction": "up", "verb": "train", "message": "Up"}
    line = {**head, "field": "extra", "dtype": "float32", "shape": "[]", "numbers": 1, "bytes": 4}
    with (run / "ledger.jsonl").open("a") as handle:
        handle.write(json.dumps(line | entry) + "\n")
    return Record.read(run)


def test_fields_are_summed_over_sites_and_rounds(make_run):
    rows = {(r.direction, r.message, r.field): r for r in sent_fields(Record.read(make_run()))}
    weights = rows["up", "Up", "weights"]
    assert (weights.times, weights.total, weights.numbers) == (3, 12_000, "1,000")
    assert weights.what == "model weights: 74 tensors, float32"
    assert list(rows)[-1][0] == "down"


def test_a_plain_run_says_what_left(make_run):
    said = statement(Record.read(make_run()))
    assert not said.alert
    assert said.text.startswith(
        "No image and no label is among them: what left is model weights (1,000"
    )
    assert "names of test cases and patients" in said.text


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": "[8, 16, 16]", "numbers": 2048},
        {"dtype": "uint8", "shape": "[5, 9]", "numbers": 45},
        {"dtype": "float32+uint8", "shape": "3 tensors", "numbers": 700},
        {"dtype": "int64", "shape": "[8, 2]", "numbers": 16},  # bergen has 8 images
    ],
    ids=["image size", "raw type", "raw type in a group", "a row per image"],
)
def test_what_could_be_an_image_or_a_label_is_pointed_out(make_run, entry):
    said = statement(with_field(make_run(), **entry))
    assert said.alert
    assert "Up.extra" in said.text


def test_harmless_arrays_are_not(make_run):
    said = statement(with_field(make_run(), shape="[2, 64]", numbers=128))
    assert not said.alert
    assert "Up.extra" in said.text


def test_truths_of_classified_test_cases_are_labels_that_left(make_run):
    said = statement(Record.read(make_run(task="classification")))
    assert said.alert
    assert "true labels of the test cases" in said.text


def test_a_pooled_run_claims_no_privacy(make_run):
    said = statement(Record.read(make_run(method={"name": "central"})))
    assert said.alert
    assert "in one place" in said.text


def test_no_ledger_no_statement(make_run):
    run = make_run()
    (run / "ledger.jsonl").unlink()
    assert statement(Record.read(run)) is None
