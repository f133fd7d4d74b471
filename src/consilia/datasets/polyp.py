"""Polyps on endoscopy, four sources as sites (FedLPPA)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from consilia.datasets.contract import Cases, Dataset, DatasetCard
from consilia.datasets.files import paired
from consilia.datasets.source import Exam, FileDataset, Place
from consilia.declare import ImageShape

FOLDERS = {
    "cvc-clinicdb": ("CVC-ClinicDB",),
    "cvc-colondb": ("CVC-ColonDB",),
    "etis": ("ETIS-LaribPolypDB", "ETIS"),
    "kvasir-seg": ("Kvasir-SEG",),
}
#: How many images the paper trains and tests on.
COUNTS = {
    "cvc-clinicdb": (550, 62),
    "cvc-colondb": (327, 63),
    "etis": (170, 26),
    "kvasir-seg": (900, 100),
}


def index(place: Place, site: str) -> list[Exam]:
    """Return the frames of one source."""
    home = place.find(*FOLDERS[site])
    images = place.find("images", "Original", "image", "CVC-ColonDB", within=home)
    return paired(place, images, place.find("masks", "Ground Truth", "GT", "mask", within=home))


@final
@dataclass(frozen=True)
class PolypDataset(Dataset):
    """Sources that are tested on as many images as in the paper, where they have as many as there.

    Attributes:
        card: Its layout is what a user is told to put on disk.
        shape: As the paper has it.
        share: Of the images of a source that has more or fewer, the part that is tested on.
    """

    card: DatasetCard
    shape: ImageShape
    share: float
    exclusive: bool = True

    def load(self, site: str, root: Path, shape: ImageShape, seed: int = 0) -> tuple[Cases, Cases]:
        """Return a site's training and test cases; see `Dataset.load`."""
        files = FileDataset(self.card, self.shape, index, test=self.share)
        train, test = COUNTS.get(site, (0, 0))
        if test and len(index(Place(self.card, root), site)) == train + test:
            files = replace(files, test=test)
        return files.load(site, root, shape, seed)

    def common_test(self, root: Path, shape: ImageShape, seed: int = 0) -> Cases | None:
        """Return nothing: each source has test images of its own."""
        return None


POLYP = PolypDataset(
    DatasetCard(
        "polyp",
        "Polyps on endoscopy, the FedLPPA study",
        "segmentation",
        ("polyp",),
        tuple(FOLDERS),
        source="polyp.grand-challenge.org; datasets.simula.no/kvasir-seg",
        licence="research and education use, each source with terms of its own",
        citation="Bernal et al. 2015 (ClinicDB), 2012 (ColonDB); Silva et al. 2014 (ETIS); Jha et al. "
        "2020 (Kvasir-SEG).",
        layout="polyp/{CVC-ClinicDB,CVC-ColonDB,ETIS-LaribPolypDB,Kvasir-SEG}/{images,masks}/* with "
        "equal names (or Original and Ground Truth); frames of one video are not told apart by file "
        "names: splits go by frame, as in the paper",
    ),
    ImageShape(size=(384, 384), channels=3),
    share=0.1,
)
