"""Every dataset by name: a table. `dataset:NAME/SITE` in a declaration is looked up here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from consilia.datasets.breast import BREAST
from consilia.datasets.chestxray14 import CHESTXRAY14, CHESTXRAY14_FEDPSL
from consilia.datasets.contract import Cases, Dataset, DatasetCard
from consilia.datasets.fedicra import FEDICRA
from consilia.datasets.ham10000 import HAM10000, HAM10000_MASKS
from consilia.datasets.medmnist import MEDMNIST
from consilia.datasets.pack import PACKS
from consilia.datasets.phantoms import PHANTOMS, load_common_test, load_phantom, phantom_federation
from consilia.datasets.polyp import POLYP
from consilia.datasets.radiography import RADIOGRAPHY
from consilia.datasets.united import FEDPSL_SETUP_B
from consilia.datasets.volumes import VOLUMES
from consilia.declare import DATASET, Federation, ImageShape, SiteDeclaration, Supervision
from consilia.errors import DeclarationError, UsageError, suggestion


@final
@dataclass(frozen=True)
class DrawnDataset(Dataset):
    """A phantom: drawn from the seed, in any size, square."""

    card: DatasetCard
    shape: ImageShape
    exclusive: bool

    def load(self, site: str, root: Path, shape: ImageShape, seed: int = 0) -> tuple[Cases, Cases]:
        """Return a site's training and test cases, drawn from the seed."""
        del root
        return load_phantom(self.card.name, site, size=self._side(shape), seed=seed)

    def common_test(self, root: Path, shape: ImageShape, seed: int = 0) -> Cases | None:
        """Return the common test set, drawn from the seed."""
        del root
        return load_common_test(self.card.name, size=self._side(shape), seed=seed)

    def _side(self, shape: ImageShape) -> int:
        """Return the side of the images, or refuse a shape that is not drawn."""
        if shape.size[0] != shape.size[1] or shape.channels != self.shape.channels:
            msg = (
                f"dataset '{self.card.name}' is drawn in squares with {self.shape.channels} "
                f"channel{'s' * (self.shape.channels > 1)}, but the federation's images are "
                f"{shape.size[0]} x {shape.size[1]} with {shape.channels}; change `image`"
            )
            raise DeclarationError(msg)
        return shape.size[0]


def _drawn(name: str, card: DatasetCard) -> DrawnDataset:
    federation = phantom_federation(name)
    return DrawnDataset(card, federation.image, federation.exclusive)


DATASETS: dict[str, Dataset] = {
    **{name: _drawn(name, card) for name, card in PHANTOMS.items()},
    **{
        dataset.card.name: dataset
        for dataset in (
            BREAST,
            HAM10000_MASKS,
            *VOLUMES,
            POLYP,
            *FEDICRA,
            HAM10000,
            CHESTXRAY14,
            CHESTXRAY14_FEDPSL,
            *RADIOGRAPHY,
            FEDPSL_SETUP_B,
            *MEDMNIST,
            *PACKS,
        )
    },
}


def find_dataset(name: str) -> Dataset:
    """Return a dataset by name."""
    if name not in DATASETS:
        near = suggestion(name, DATASETS)
        msg = f"no dataset named '{name}'{near} (`consilia datasets` lists all {len(DATASETS)})"
        raise UsageError(msg)
    return DATASETS[name]


def parse_reference(reference: str) -> tuple[Dataset, str]:
    """Return the dataset and the site of 'dataset:NAME/SITE'."""
    name, _, site = reference.removeprefix(DATASET).partition("/")
    return find_dataset(name), site


def federation_of(
    dataset: Dataset, sites: tuple[str, ...] = (), shape: ImageShape | None = None
) -> Federation:
    """Return the federation of some or all sites of a dataset, each marking every label."""
    card = dataset.card
    segments = card.task == "segmentation"
    return Federation(
        name=card.name,
        task="segmentation" if segments else "classification",
        labels=card.labels,
        exclusive=dataset.exclusive,
        image=shape or dataset.shape,
        site=tuple(
            SiteDeclaration(
                name=site,
                data=f"{DATASET}{card.name}/{site}",
                supervision=Supervision.MASK if segments else Supervision.IMAGE,
            )
            for site in sites or card.sites
        ),
    )
