"""The methods, as one table."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from consilia.declare import Federation
from consilia.declare.read import shown
from consilia.errors import DeclarationError, UsageError, listing, suggestion
from consilia.methods.bounds.local import Local
from consilia.methods.bounds.pooled import IML, Central, Oracle
from consilia.methods.contract import AnyMethod, Card, Method, Panel, Start, Wire, hyper, wire_of
from consilia.methods.drift.fedadaptagg import FedAdaptAgg
from consilia.methods.drift.fedavg import FedAvg
from consilia.methods.drift.fedprox import FedProx
from consilia.methods.drift.finetune import FineTune
from consilia.methods.drift.moon import MOON
from consilia.methods.incomplete.adele import ADELE
from consilia.methods.incomplete.elr import ELR
from consilia.methods.incomplete.fedcorr import FedCorr
from consilia.methods.incomplete.fedia import FedIA
from consilia.methods.incomplete.fednoro import FedNoRo
from consilia.methods.incomplete.nrdice import NRDice
from consilia.methods.incomplete.rmd import RMD
from consilia.methods.labelsets.fedlsm import FedLSM
from consilia.methods.labelsets.fedpsl import FedPSL
from consilia.methods.mixed.fedmix import FedMix
from consilia.methods.mixed.fedst import FEDRGD, FedST
from consilia.methods.partial.fedmatch import FedMatch
from consilia.methods.partial.fedpu import FedPU
from consilia.methods.partial.fedrs import FedRS
from consilia.methods.partial.fedssp import FedSSP
from consilia.methods.partial.fixmatch import CentralFixMatch, FixMatch
from consilia.methods.partial.fssl import FSSL
from consilia.methods.partial.mixup_pme import MixUpPME
from consilia.methods.personal.fedala import FedALA
from consilia.methods.personal.fedap import FedAP
from consilia.methods.personal.fedbn import FedBN
from consilia.methods.personal.fedicra import FedICRA
from consilia.methods.personal.fedlc import FedLC
from consilia.methods.personal.fedlppa import FedLPPA
from consilia.methods.personal.fedrep import FedRep
from consilia.methods.personal.metafed import MetaFed
from consilia.training.settings import Training

__all__ = [
    "ADELE",
    "ELR",
    "FSSL",
    "METHODS",
    "MOON",
    "RMD",
    "AnyMethod",
    "Card",
    "Central",
    "CentralFixMatch",
    "Entry",
    "FedALA",
    "FedAP",
    "FedAdaptAgg",
    "FedAvg",
    "FedBN",
    "FedCorr",
    "FedIA",
    "FedICRA",
    "FedLC",
    "FedLPPA",
    "FedLSM",
    "FedMatch",
    "FedMix",
    "FedNoRo",
    "FedPSL",
    "FedPU",
    "FedProx",
    "FedRS",
    "FedRep",
    "FedSSP",
    "FedST",
    "FineTune",
    "FixMatch",
    "Local",
    "MetaFed",
    "Method",
    "MixUpPME",
    "NRDice",
    "Oracle",
    "Panel",
    "Start",
    "Wire",
    "hyper",
    "labels_seen",
    "make_method",
    "refuse_unfit",
    "why_not",
    "wire_of",
]


@dataclass(frozen=True)
class Entry:
    """A line of the table: a class, the values a named preset sets, and its own card if it has one."""

    method: type[AnyMethod]
    preset: Mapping[str, Any] = field(default_factory=dict)
    own_card: Card | None = None

    @property
    def card(self) -> Card:
        """Where the method, or the preset, comes from."""
        return self.own_card or self.method.card


METHODS: dict[str, Entry] = {
    "local": Entry(Local),
    "central": Entry(Central),
    "oracle": Entry(Oracle),
    "iml": Entry(Central, own_card=IML),
    "central-fixmatch": Entry(CentralFixMatch),
    "mixup-pme": Entry(MixUpPME),
    "fedavg": Entry(FedAvg),
    "fedavg-masked": Entry(
        FedAvg,
        {"unknown": "masked", "rows": "labelled"},
        dataclasses.replace(
            FedAvg.card, summary="FedAvg on known labels; a row is taught by who marks it"
        ),
    ),
    "fedprox": Entry(FedProx),
    "moon": Entry(MOON),
    "finetune": Entry(FineTune),
    "fedadaptagg": Entry(FedAdaptAgg),
    "fedmix": Entry(FedMix),
    "fedst": Entry(FedST),
    "fedrgd": Entry(FedST, {"labeled_share": 0.5}, FEDRGD),
    "fedia": Entry(FedIA),
    "nr-dice": Entry(NRDice),
    "elr": Entry(ELR),
    "adele": Entry(ADELE),
    "fedcorr": Entry(FedCorr),
    "rmd": Entry(RMD),
    "fednoro": Entry(FedNoRo),
    "fedlppa": Entry(FedLPPA),
    "fedbn": Entry(FedBN),
    "fedap": Entry(FedAP),
    "fedrep": Entry(FedRep),
    "metafed": Entry(MetaFed),
    "fedala": Entry(FedALA),
    "fedlc": Entry(FedLC),
    "fedicra": Entry(FedICRA),
    "fedpsl": Entry(FedPSL),
    "fedlsm": Entry(FedLSM),
    "fedrs": Entry(FedRS),
    "fedpu": Entry(FedPU),
    "fixmatch": Entry(FixMatch),
    "fssl": Entry(FSSL),
    "fedssp": Entry(FedSSP),
    "fedmatch": Entry(FedMatch),
    "fedmatch-plus": Entry(
        FedMatch,
        {"pretraining": 0.5},
        dataclasses.replace(
            FedMatch.card, summary="FedMatch on features learned from images alone first"
        ),
    ),
}


def make_method(name: str, values: Mapping[str, Any] | None = None) -> AnyMethod:
    """Return a method by name with its hyper-parameters, or refuse with the nearest name."""
    if name not in METHODS:
        near = suggestion(name, METHODS)
        msg = f"no method named '{name}'{near} (`consilia methods` lists all {len(METHODS)})"
        raise UsageError(msg)
    entry = METHODS[name]
    known = {f.name: f for f in dataclasses.fields(entry.method)}  # type: ignore[arg-type]  # all are dataclasses
    hints = typing.get_type_hints(entry.method)
    chosen = {**entry.preset, **(values or {})}
    for key, value in chosen.items():
        if key not in known:
            listed = ", ".join(sorted(known)) or "none"
            msg = (
                f"method '{name}' has no setting '{key}'{suggestion(key, known)} (it has: {listed})"
            )
            raise UsageError(msg)
        chosen[key] = _checked(name, key, value, hints[key])
        _within(name, known[key], chosen[key])
    return entry.method(**chosen)


KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def _checked(name: str, key: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is typing.Literal:
        if value not in get_args(kind):
            options = ", ".join(f"'{option}'" for option in get_args(kind))
            near = suggestion(str(value), get_args(kind))
            msg = f"method.{key} of '{name}' is {shown(value)}; expected one of {options}{near}"
            raise UsageError(msg)
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        wanted = KINDS.get(kind, kind.__name__)
        msg = f"method.{key} of '{name}' is {shown(value)}; expected {wanted}"
        raise UsageError(msg)
    return value


def _within(name: str, field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse a number outside the range its hyper-parameter declares, and any that is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, high = field.metadata.get("low"), field.metadata.get("high")
    if math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high):
        return
    bounds = [f"at least {low:g}"] if low is not None else []
    bounds += [f"at most {high:g}"] if high is not None else []
    wanted = ", ".join(["a finite number", *bounds])
    msg = f"method.{field.name} of '{name}' is {value}; expected {wanted}"
    raise UsageError(msg)


def labels_seen(method: AnyMethod, federation: Federation) -> Federation:
    """Return the federation as a method sees it: as declared, or with full labels for the oracle."""
    return federation.with_full_labels() if method.labels == "full" else federation


def why_not(name: str, federation: Federation) -> str | None:
    """Return why a method with its defaults cannot serve a federation, or `None` if it can."""
    return _unmet(make_method(name), federation)


def _unmet(method: AnyMethod, federation: Federation) -> str | None:
    lacking = federation.without_full_labels() if method.labels == "full" else ()
    if lacking:
        return f"needs every label of every image in full, which the folder of {listing(lacking)} lacks"
    return method.unmet(labels_seen(method, federation))


def refuse_unfit(name: str, method: AnyMethod, federation: Federation, training: Training) -> None:
    """Refuse what does not meet a method's needs: a federation, with methods that fit it, or settings."""
    odd = method.unmet_by(training)
    if odd is not None:
        msg = f"method '{name}' {odd}"
        raise UsageError(msg)
    reason = _unmet(method, federation)
    if reason is None:
        return
    declared = [other for other in METHODS if METHODS[other].method.labels == "declared"]
    fitting = [other for other in declared if why_not(other, federation) is None]
    way_out = f"use {' or '.join(repr(o) for o in fitting[:3])}" if fitting else "add annotations"
    msg = f"method '{name}' does not fit federation '{federation.name}': it {reason}; {way_out}"
    raise DeclarationError(msg)
