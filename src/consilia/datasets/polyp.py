"""Polyps on endoscopy, four sources as sites (FedLPPA)."""

from __future__ import annotations

from consilia.datasets.contract import DatasetCard
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
COUNTS = (
    ("cvc-clinicdb", 550, 62),
    ("cvc-colondb", 327, 63),
    ("etis", 170, 26),
    ("kvasir-seg", 900, 100),
)


def index(place: Place, site: str) -> list[Exam]:
    """Return the frames of one source."""
    home = place.find(*FOLDERS[site])
    images = place.find("images", "Original", "image", "CVC-ColonDB", within=home)
    return paired(place, images, place.find("masks", "Ground Truth", "GT", "mask", within=home))


POLYP = FileDataset(
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
    index,
    test=0.1,
    counts=COUNTS,
)
