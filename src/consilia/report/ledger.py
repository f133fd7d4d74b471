"""What left each site: the ledger, summed up, and what it lets one say about privacy."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from consilia.engines import messages
from consilia.methods.contract import Wire, wire_of
from consilia.report.record import Record
from consilia.report.words import between, count, plural, sentence_list, size

ENGINE_FIELDS = {
    ("Examination", "scores"): "mean scores over test images",
    ("Examination", "case"): "names of test cases",
    ("Examination", "group"): "names of patients or groups",
    ("Examination", "columns"): "names of the columns",
    ("Examination", "values"): "one row of numbers per test case",
    ("Scores", "test"): "mean scores over test images",
    ("Scores", "validation"): "mean scores over held-out images",
    ("Portrait", "points"): "features of training images, projected to a few numbers each",
    ("Portrait", "follow"): "histograms of how far decoders follow the server",
    ("Failed", "reason"): "one sentence: what went wrong",
}
SCALARS = {
    "int": "one whole number",
    "float": "one number",
    "bool": "yes or no",
    "str": "text",
    "NoneType": "nothing",
    "table": "a table of numbers or names",
}
COUNTS = {
    "images": "image counts",
    "labelled": "counts per label",
    "counts": "positives and negatives per label",
    "positives": "images per label, by label or pseudo label",
    "loss": "loss values",
    "points": "projected features of training images",
    "follow": "histograms of how far decoders follow the server",
}
RAW = ("uint8", "bool", "int16", "uint16")  # how images and label maps are stored


@dataclass(frozen=True)
class Sent:
    """A field of a message, over all its sendings."""

    direction: str
    message: str
    field: str
    what: str
    numbers: str
    bytes: str
    times: int
    total: int


@dataclass(frozen=True)
class Statement:
    """What can be said about privacy, and whether a reader should look closely."""

    text: str
    alert: bool


def sent_fields(record: Record) -> list[Sent]:
    """Return one row per direction, message and field; what left the sites comes first."""
    rows = []
    for (direction, message, field), lines in _grouped(record).items():
        sizes = [line["bytes"] for line in lines]
        row = Sent(
            direction=direction,
            message=message,
            field=field,
            what=_what(record, message, field, lines),
            numbers=between(line["numbers"] for line in lines),
            bytes=between(sizes, size),
            times=len(lines),
            total=sum(sizes),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: row.direction != "up")


def _grouped(record: Record) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in record.ledger:
        key = (line["direction"], line["message"], line["field"])
        groups.setdefault(key, []).append(line)
    return groups


def _what(record: Record, message: str, field: str, lines: list[dict[str, Any]]) -> str:
    if (message, field) == ("Examination", "values") and not record.segments:
        return "per test case, the probability and the truth of each label"
    known = ENGINE_FIELDS.get((message, field))
    if known:
        return known
    kinds = dict.fromkeys(_kind(line) for line in lines)
    return " or ".join(kinds)


def _kind(line: dict[str, Any]) -> str:
    shape, dtype = str(line["shape"]), str(line["dtype"])
    if shape.endswith("tensors"):
        return f"model weights: {shape}, {dtype}"
    if shape == "[]":
        return SCALARS.get(dtype, dtype)
    return f"array {shape}, {dtype}"


def descriptions(record: Record) -> dict[str, str]:
    """Return what each message says of itself, by the first line of its docstring."""
    kinds = [kind for _, kind in inspect.getmembers(messages, inspect.isclass)]
    if record.entry is not None:
        wire = wire_of(record.entry.method)
        kinds += [k for kind in (wire.intro, wire.down, wire.up) for k in Wire.members(kind)]
    sent = {line["message"] for line in record.ledger}
    return {
        kind.__name__: (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ")
        for kind in kinds
        if kind.__name__ in sent
    }


def statement(record: Record) -> Statement | None:
    """Return the privacy statement that follows from the fields of the ledger."""
    if record.pooled:
        return Statement(
            "This method pools: all sites' images and labels were in one place before training began. "
            "It is a bound to compare with, not a federated run, and the messages below are only "
            "those between the pool and the server.",
            alert=True,
        )
    up = [line for line in record.ledger if line["direction"] == "up"]
    if not up:
        return None
    odd = list(dict.fromkeys(_image_like(record, up)))
    if odd:
        return Statement(
            f"Look closely: {sentence_list(odd)} {'has' if len(odd) == 1 else 'have'} the size of an "
            "image, the type of raw pixels, or a row for every image of a site.",
            alert=True,
        )
    per_case = any(line["message"] == "Examination" for line in up)
    if per_case and not record.segments:
        return Statement(
            "No image is among them, but labels are: the per-case rows hold the true labels of the "
            "test cases beside their names. Set evaluate.per_case = false to send mean scores only.",
            alert=True,
        )
    names = (
        " The names of test cases and patients left with the per-case scores." if per_case else ""
    )
    return Statement(
        f"No image and no label is among them: what left is {_named(up)}.{names}", False
    )


def _named(up: list[dict[str, Any]]) -> str:
    """Return what left, in words, each thing once."""
    things: dict[str, None] = {}
    weights = max((line["numbers"] for line in up if _is_weights(line)), default=0)
    if weights:
        things[f"model weights ({count(weights)} numbers a message)"] = None
    for line in up:
        if not _is_weights(line) and line["message"] not in {"Examination", "Scores", "Failed"}:
            things[COUNTS.get(line["field"], f"{line['message']}.{line['field']}")] = None
    scores = {
        "Examination": "scores of test cases",
        "Scores": "mean scores",
        "Failed": "error sentences",
    }
    sent = {line["message"] for line in up}
    return sentence_list([*things, *(text for name, text in scores.items() if name in sent)])


def _is_weights(line: dict[str, Any]) -> bool:
    return str(line["shape"]).endswith("tensors")


def _image_like(record: Record, up: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the fields that could hold images or labels, by their shape or their type."""
    size_ = list(record.federation.image.size)
    held = {
        (s, told.get("images")) for r in record.rounds for s, told in r.get("sites", {}).items()
    }
    for line in up:
        shape = _dims(str(line["shape"]))
        images = any(shape[i : i + 2] == size_ for i in range(len(shape) - 1))
        raw = any(kind in RAW for kind in str(line["dtype"]).split("+")) and line["numbers"] > 1
        rows = len(shape) > 0 and shape[0] > 1 and (line["site"], shape[0]) in held
        if images or raw or (rows and line["message"] != "Examination"):
            yield f"{line['message']}.{line['field']}"


def _dims(shape: str) -> list[int]:
    found: list[int] = json.loads(shape) if re.fullmatch(r"\[[\d, ]*\]", shape) else []
    return found


def totals(record: Record) -> str:
    """Return how much went each way, in words."""
    ways = {"up": 0, "down": 0}
    for line in record.rounds:
        for way in ways:
            ways[way] += line.get(f"bytes_{way}") or 0
    rounds = plural(len(record.rounds), "round")
    return f"In {rounds}, {size(ways['up'])} left the sites and {size(ways['down'])} went to them."
