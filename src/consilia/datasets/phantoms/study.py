"""From a drawing to a study: who is drawn, with what, at which site, from which random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Bool, UInt8
from numpy.random import Generator

from consilia.datasets.contract import Cases, DatasetCard
from consilia.datasets.phantoms.canvas import Examination
from consilia.datasets.phantoms.scanner import Scanner
from consilia.declare import Task

Split = Literal["train", "test", "common"]
Diagnosis = Bool[np.ndarray, " k"]

#: Views per patient where patients may come back: every fourth one does.
RETURNS = (1, 1, 2, 1)


@dataclass(frozen=True)
class Site:
    """What makes a site's images its own.

    Attributes:
        train: Training images; patients where a patient is a volume.
        test: Images to be judged on, likewise.
        scanner: The machine.
        zoom: How large the anatomy appears.
        habit: A site's position (0 to 1) between two extremes of anatomy that each kind defines.
        prevalence: Share of the patients who have each label.
        healthy: Share of the training patients who have none.
    """

    train: int
    test: int
    scanner: Scanner
    zoom: float = 1.0
    habit: float = 0.5
    prevalence: tuple[float, ...] = ()
    healthy: float = 0.0


#: Which labels each patient has: (random numbers, patients, prevalence of each label) -> n x k.
Diagnose = Callable[[Generator, int, tuple[float, ...]], Bool[np.ndarray, "n k"]]
#: All images of one patient: (random numbers, diagnosis, site, views, size) -> examination.
Draw = Callable[[Generator, Diagnosis, Site, int, int], Examination]


@dataclass(frozen=True)
class Phantom:
    """One kind of drawn study.

    Attributes:
        card: Name, labels and origin.
        task: Segmentation or classification.
        sites: The sites in their order.
        diagnose: Decides who has what.
        draw: Draws a patient.
        channels: Of an image.
        exclusive: Whether an image or a pixel has at most one label.
        regions: Unions of labels that are judged together.
        common_test: Images of a test set drawn from all sites alike; 0 where there is none.
        slices: Per volume, where a patient is a volume; else 0.
        returning: Whether some training patients have two images.
        shared_pool: Whether patients come from one pool and are dealt out to the sites at random.
    """

    card: DatasetCard
    task: Task
    sites: Mapping[str, Site]
    diagnose: Diagnose
    draw: Draw
    channels: int = 1
    exclusive: bool = True
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    common_test: int = 0
    slices: int = 0
    returning: bool = False
    shared_pool: bool = False

    def cases(self, site: str, split: Split, size: int, seed: int) -> Cases:
        """Return the cases of one site and split; the arrays cannot be written to."""
        views = self._views(site, split)
        origin, everyone, patients = self._patients(site, split, len(views), seed)
        diagnoses = self._diagnoses(site, split, origin, everyone, seed)
        seen = [
            self.draw(
                generator(self.card.name, origin, split, seed, f"patient {patient}"),
                diagnoses[patient],
                self.sites[site],
                count,
                size,
            )
            for patient, count in zip(patients, views, strict=True)
        ]
        group = tuple(
            f"{origin}-{split}-p{patient:03d}"
            for patient, drawn in zip(patients, seen, strict=True)
            for _ in drawn.truth
        )
        image = np.concatenate([drawn.image for drawn in seen])
        truth = np.concatenate([drawn.truth for drawn in seen])
        image.flags.writeable = truth.flags.writeable = False
        names = tuple(f"{site}-{split}-{number:03d}" for number in range(len(image)))
        return Cases(image, truth, names, group, group if self.slices else None)

    def _views(self, site: str, split: Split) -> list[int]:
        """Return how many images each patient has."""
        plan = self.sites[site]
        images = {"train": plan.train, "test": plan.test, "common": self._common(site)}[split]
        if self.slices:
            return [self.slices] * images
        if not self.returning or split != "train":
            return [1] * images
        views: list[int] = []
        while (left := images - sum(views)) > 0:
            views.append(min(left, RETURNS[len(views) % len(RETURNS)]))
        return views

    def _common(self, site: str) -> int:
        """Return a site's part of the common test set."""
        position = list(self.sites).index(site)
        return (self.common_test + position) // len(self.sites)

    def _patients(
        self, site: str, split: Split, count: int, seed: int
    ) -> tuple[str, int, list[int]]:
        """Return where the patients come from, how many there are, and which come to the site."""
        if not self.shared_pool:
            return site, count, list(range(count))
        per_site = [len(self._views(name, split)) for name in self.sites]
        first = sum(per_site[: list(self.sites).index(site)])
        dealt = generator(self.card.name, "pool", split, seed, "deal").permutation(sum(per_site))
        return "pool", len(dealt), dealt[first : first + count].tolist()

    def _diagnoses(
        self, site: str, split: Split, origin: str, patients: int, seed: int
    ) -> Bool[np.ndarray, "n k"]:
        plan = self.sites[site]
        rng = generator(self.card.name, origin, split, seed, "diagnoses")
        diagnoses = self.diagnose(rng, patients, plan.prevalence)
        if split == "train" and plan.healthy:
            diagnoses[rng.permutation(patients)[: round(plan.healthy * patients)]] = False
        return diagnoses


def generator(name: str, site: str, split: str, seed: int, part: str) -> Generator:
    """Return random numbers that depend on these five alone, whatever was drawn before."""
    text = "/".join((name, site, split, str(seed), part))
    return np.random.default_rng(list(hashlib.sha256(text.encode()).digest()))


def everyone_has_everything(
    rng: Generator, patients: int, prevalence: tuple[float, ...]
) -> Bool[np.ndarray, "n k"]:
    """Return a diagnosis of every label for every patient; no random number is used."""
    del rng
    return np.ones((patients, max(1, len(prevalence))), dtype=bool)


def co_occurring(
    rng: Generator, patients: int, prevalence: tuple[float, ...]
) -> Bool[np.ndarray, "n k"]:
    """Return diagnoses in which sick patients tend to have several labels at once.

    Each label goes to the patients who are worst off by a score that is part shared severity, part
    chance, so that its share is exact and no label is ever missing.
    """
    severity = rng.standard_normal((patients, 1))
    score = 0.6 * severity + 0.8 * rng.standard_normal((patients, len(prevalence)))
    rank = score.argsort(axis=0).argsort(axis=0)  # (n, k), 0 is the healthiest
    wanted = np.maximum(1, np.round(np.array(prevalence) * patients))
    return np.asarray(rank >= patients - wanted)


def one_each(
    rng: Generator, patients: int, prevalence: tuple[float, ...]
) -> Bool[np.ndarray, "n k"]:
    """Return diagnoses with exactly one label per patient, in shares as exact as counts allow."""
    borders = np.round(np.cumsum(prevalence) / sum(prevalence) * patients)
    label = np.searchsorted(borders, np.arange(patients), side="right")
    return np.asarray(np.eye(len(prevalence), dtype=bool)[rng.permutation(label)])


def classified(images: list[UInt8[np.ndarray, "c h w"]], diagnosis: Diagnosis) -> Examination:
    """Return an examination whose truth is the diagnosis itself."""
    truth = np.repeat(diagnosis[None].astype(np.uint8), len(images), axis=0)
    return Examination(np.stack(images), truth)


def drawn_card(
    name: str, title: str, task: Task, labels: tuple[str, ...], sites: Mapping[str, Site]
) -> DatasetCard:
    """Return the card of a drawn study."""
    return DatasetCard(
        name,
        title,
        task,
        labels,
        tuple(sites),
        source="drawn by Consilia from a seed; no patient is behind any image",
        licence="Apache-2.0",
        citation="The Consilia authors. Consilia phantoms.",
    )
