"""The plan: what a run will do and what will leave each site, before it happens."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, get_args, get_origin

import torch
from torch import Tensor

from consilia.declare import Federation
from consilia.engines.portrait import BINS, DIRECTIONS
from consilia.evaluate.metrics import METRICS
from consilia.evaluate.segmentation import SEGMENTATION
from consilia.methods import METHODS, labels_seen, make_method, refuse_unfit
from consilia.methods.contract import AnyMethod, Wire, wire_of
from consilia.payload import Group, Layout, Shape
from consilia.runs.spec import RunSpec
from consilia.training.learner import layout_of
from consilia.training.learners import make_learner, refuse_crop


@dataclass(frozen=True)
class PlannedSite:
    """What a site declares, and whether it will train."""

    site: str
    supervision: str
    annotates: str
    complete: str
    part: str


@dataclass(frozen=True)
class PlannedHyper:
    """A hyper-parameter with where its value is from."""

    name: str
    value: str
    meaning: str
    source: str


@dataclass(frozen=True)
class PlannedField:
    """A field of a message: how many numbers, how many bytes."""

    direction: str
    message: str
    field: str
    numbers: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """Everything `consilia plan` prints."""

    summary: str
    sites: tuple[PlannedSite, ...]
    hypers: tuple[PlannedHyper, ...]
    fields: tuple[PlannedField, ...]
    network: str
    objective: str
    parameters: int
    work: str

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return asdict(self)


def make_plan(spec: RunSpec) -> Plan:
    """Return the plan of a run, or refuse a federation that the method does not fit."""
    method = make_method(spec.method.name, spec.method.settings)
    refuse_unfit(spec.method.name, method, spec.federation, spec.training)
    federation = labels_seen(method, spec.federation)
    learner = method.learner(make_learner(spec.learner, federation))
    refuse_crop(learner, spec.training.crop)
    with torch.device("meta"):
        network = learner.build()
    layout = layout_of(learner.groups(network), network, federation)
    training = spec.training
    count, unit = (training.steps, "step") if training.steps else (training.epochs, "local epoch")
    work = f"{count} {unit}{'s' * (count > 1)}"
    return Plan(
        summary=METHODS[spec.method.name].card.summary,
        sites=tuple(_site(method, federation, name) for name in federation.sites),
        hypers=tuple(_hypers(method)),
        fields=(*_fields(method, layout), *_judged_fields(spec, federation)),
        network=learner.network,
        objective=learner.objective,
        parameters=sum(p.numel() for p in network.parameters()),
        work=f"{work}, batch {training.batch}, {training.optimizer} {training.learning_rate:g}",
    )


def _site(method: AnyMethod, federation: Federation, name: str) -> PlannedSite:
    site, marked = federation[name], federation.annotated_by(name)
    part = "its images join the pool" if method.data == "pooled" else "trains"
    return PlannedSite(
        name,
        str(site.supervision),
        "all" if marked == federation.labels else ", ".join(marked) or "nothing",
        "yes" if site.complete else "may miss objects",
        part
        if method.trains_at(federation, name)
        else "judged only: nothing a supervised loss can use",
    )


def _hypers(method: AnyMethod) -> typing.Iterator[PlannedHyper]:
    for field in dataclasses.fields(method):  # type: ignore[arg-type]  # every method is a dataclass
        meta = field.metadata
        value = str(getattr(method, field.name))
        yield PlannedHyper(field.name, value, meta.get("meaning", ""), meta.get("source", ""))


def _fields(method: AnyMethod, layout: Layout) -> typing.Iterator[PlannedField]:
    wire = wire_of(type(method))
    for direction, kind in (("once, up", wire.intro), ("down", wire.down), ("up", wire.up)):
        for member in Wire.members(kind):
            hints = typing.get_type_hints(member, include_extras=True)
            for field in dataclasses.fields(member):
                numbers, size = _measure(hints[field.name], layout)
                yield PlannedField(direction, member.__name__, field.name, numbers, size)


def _judged_fields(spec: RunSpec, federation: Federation) -> typing.Iterator[PlannedField]:
    """Yield what leaves a site when it is judged: scores, and rows per case where the study asks."""
    labels = len(federation.labels)
    parts = len(federation.regions) or labels
    if federation.task == "segmentation":
        metrics = columns = len(SEGMENTATION) * (1 + (parts if parts > 1 else 0))
    else:
        scored = sum(metric.task != "segmentation" for metric in METRICS.values())
        metrics, columns = scored + labels, 2 * labels
    name = "Examination" if spec.evaluate.per_case else "Scores"
    for field in ("test", *(["validation"] if spec.evaluate.validation else [])):
        yield PlannedField("judged, up", name, field, metrics, 8 * metrics)
    if spec.evaluate.per_case:
        yield PlannedField("judged, up", name, "values, per test case", columns, 8 * columns)
    if spec.evaluate.portraits:
        yield PlannedField("once, up", "Portrait", "points, per image", DIRECTIONS, 4 * DIRECTIONS)
        yield PlannedField("once, up", "Portrait", "follow, per decoder", BINS, 8 * BINS)


def _measure(hint: Any, layout: Layout) -> tuple[int, int]:
    """Return how many numbers and bytes a field holds at most, once."""
    if get_origin(hint) is Annotated:
        for marker in hint.__metadata__:
            if isinstance(marker, Group):
                specs = layout.of(marker).values()
                counts = [(torch.Size(shape).numel(), dtype.itemsize) for shape, dtype in specs]
                return sum(n for n, _ in counts), sum(n * b for n, b in counts)
            if isinstance(marker, Shape):
                count = torch.Size(
                    [layout.dims[d] if isinstance(d, str) else d for d in marker.dims]
                ).numel()
                return count, count * marker.dtype.itemsize
    inner = [_measure(arg, layout) for arg in get_args(hint) if arg not in (type(None), Ellipsis)]
    if inner and get_origin(hint) not in (Mapping, Tensor):
        return max(inner)
    return 1, 8
