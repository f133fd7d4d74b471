"""Sites of several datasets, each with labels of its own, and one test set of them all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from consilia.datasets.chestxray14 import CHESTXRAY14_FEDPSL, FEDPSL_SITES, SETUP_A
from consilia.datasets.contract import Cases, Dataset, DatasetCard
from consilia.datasets.match import match_cases, places
from consilia.datasets.radiography import RADIOGRAPHY
from consilia.datasets.source import FileDataset
from consilia.declare import ImageShape, SiteDeclaration
from consilia.errors import UsageError, listing, suggestion
from consilia.labels import LabelView


@final
@dataclass(frozen=True)
class UnitedDataset(Dataset):
    """Classification over several datasets; what one of them does not mark, nobody knows of its images.

    Attributes:
        card: Its labels are those of all.
        shape: As the paper has it.
        members: Where the images of each site are.
    """

    card: DatasetCard
    shape: ImageShape
    members: dict[str, tuple[FileDataset, str]]
    exclusive: bool = False

    def load(self, site: str, root: Path, shape: ImageShape, seed: int = 0) -> tuple[Cases, Cases]:
        """Return a site's training and test cases with the labels of all."""
        dataset, place = self._member(site)
        train, test = dataset.load(place, root, shape, seed)
        return self._matched(train, dataset), self._matched(test, dataset)

    def common_test(self, root: Path, shape: ImageShape, seed: int = 0) -> Cases | None:
        """Return the test cases of all datasets; a label is known where its dataset marks it."""
        parts = []
        for dataset, place in {
            d.card.name: (d, place) for d, place in self.members.values()
        }.values():
            shared = dataset.common_test(root, shape, seed)
            own = dataset.load(place, root, shape, seed)[1] if shared is None else shared
            parts.append(self._matched(own, dataset))
        return _joined(parts)

    def annotation(
        self,
        site: str,
        declaration: SiteDeclaration,
        root: Path,
        shape: ImageShape,
        seed: int = 0,
    ) -> LabelView | None:
        """Return the labels that a site declares, as far as its dataset marks them."""
        cases, _ = self.load(site, root, shape, seed)
        assert cases.truth is not None
        assert cases.marked is not None
        declared = self.card.labels if declaration.annotates is None else declaration.annotates
        own = np.array(
            [
                marked and label in declared
                for label, marked in zip(self.card.labels, cases.marked, strict=True)
            ]
        )
        return LabelView(np.where(own, cases.truth, 0), np.tile(own, (len(cases), 1)))

    def _member(self, site: str) -> tuple[FileDataset, str]:
        if site not in self.members:
            near = suggestion(site, self.members)
            msg = f"dataset '{self.card.name}' has no site '{site}'{near} (known: {listing(self.members)})"
            raise UsageError(msg)
        return self.members[site]

    def _matched(self, cases: Cases, dataset: FileDataset) -> Cases:
        at = places(dataset.card.labels, self.card.labels, f"dataset '{dataset.card.name}'")
        return match_cases(cases, at)


def _joined(parts: list[Cases]) -> Cases:
    """Return the cases of several datasets as one."""
    known = [np.tile(np.array(part.marked), (len(part), 1)) for part in parts]
    return Cases(
        np.concatenate([part.image for part in parts]),
        np.concatenate([part.truth for part in parts if part.truth is not None]),
        tuple(case for part in parts for case in part.case),
        tuple(group for part in parts for group in part.group),
        known=np.concatenate(known),
    )


_TB, _COVID = RADIOGRAPHY
_MEMBERS = {
    **{site: (CHESTXRAY14_FEDPSL, site) for site in FEDPSL_SITES},
    "tb": (_TB, "sample-1000"),
    "covid": (_COVID, "sample-1000"),
}
_CARDS = (CHESTXRAY14_FEDPSL.card, _TB.card, _COVID.card)

FEDPSL_SETUP_B = UnitedDataset(
    replace(
        CHESTXRAY14_FEDPSL.card,
        name="fedpsl-b",
        title="The FedPSL study with tuberculosis and COVID-19 as one-label sites (setup B)",
        labels=(
            *dict.fromkeys(label for labels in SETUP_A for label in labels),
            *_TB.card.labels,
            *_COVID.card.labels,
        ),
        sites=tuple(_MEMBERS),
        source="; ".join(card.source for card in _CARDS),
        licence="as chestxray14, tb-xray and covid-xray",
        citation=" ".join(card.citation for card in _CARDS),
        layout="; ".join(card.layout for card in _CARDS),
    ),
    ImageShape(size=(224, 224), channels=1),
    _MEMBERS,
)
