"""Datasets of volumes: prostate MRI, retinal fluid on OCT, MS lesions on FLAIR, COVID-19 on CT."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from consilia.datasets.contract import DatasetCard
from consilia.datasets.files import natural, read_metaimage, volume_exam
from consilia.datasets.source import Exam, FileDataset, Place
from consilia.declare import ImageShape

NIFTI = (".nii.gz", ".nii")
#: Hounsfield units that become 0 and 255: the usual window for lungs.
LUNG = (-1350.0, 150.0)
PROSTATE_FOLDERS = {
    "isbi-siemens": ("RUNMC",),
    "isbi-philips": ("BMC",),
    "i2cvb": ("I2CVB",),
    "ucl": ("UCL",),
    "bidmc": ("BIDMC",),
    "hk": ("HK",),
}
RETOUCH_VENDORS = {"cirrus": "Cirrus", "topcon": "Topcon", "spectralis": "Spectralis"}


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: natural(str(path)))


def _nifti(place: Place, folder: Path, *names: str) -> Path:
    """Return the first of some NIfTI files in a folder, compressed or not."""
    return place.find(*(name + end for name in names for end in NIFTI), within=folder)


def index_prostate(place: Place, site: str) -> list[Exam]:
    """Return the volumes of one hospital."""
    home = place.find(*PROSTATE_FOLDERS[site])
    exams = []
    for image in _sorted(path for end in NIFTI for path in home.glob(f"*{end}")):
        name = image.name.partition(".")[0]
        if "segmentation" in name.lower():
            continue
        mask = _nifti(place, home, f"{name}_Segmentation", f"{name}_segmentation")
        exams.append(volume_exam(place, image, mask, name=f"{site}-{name}", group=name))
    return exams


def index_retouch(place: Place, site: str) -> list[Exam]:
    """Return the volumes of one vendor; each has a whole number for a name."""
    vendor = RETOUCH_VENDORS[site]
    home = place.find(f"RETOUCH-TrainingSet-{vendor}", vendor)
    return [
        volume_exam(
            place,
            folder / "oct.mhd",
            place.find("reference.mhd", within=folder),
            name=str(int(folder.name.upper().removeprefix("TRAIN"))),
            group=folder.name,
            read=read_metaimage,
            values={1: 1, 2: 2, 3: 3},
        )
        for folder in _sorted(home.glob("TRAIN[0-9]*"))
    ]


def index_ms(place: Place, site: str) -> list[Exam]:
    """Return the volumes of MSSEG-1, or those of the Ljubljana set (3D-MR-MS)."""
    exams = []
    if site == "msseg1":
        for folder in _sorted(place.find("MSSEG-1", "MSSEG-Training").glob("**/[Pp]atient*")):
            if not (folder / "Masks").is_dir():
                continue
            image = _nifti(place, folder / "Preprocessed_Data", "FLAIR_preprocessed")
            mask = _nifti(place, folder / "Masks", "Consensus")
            name = f"msseg1-{folder.parent.name}-{folder.name}".lower()
            exams.append(volume_exam(place, image, mask, name=name, group=name))
        return exams
    for folder in _sorted(place.find("3D-MR-MS", "lesjak").glob("patient[0-9]*")):
        image = _nifti(place, folder, f"{folder.name}_FLAIR")
        mask = _nifti(place, folder, f"{folder.name}_consensus_gt")
        name = f"lesjak-{folder.name}"
        exams.append(volume_exam(place, image, mask, name=name, group=name))
    return exams


def index_lung(place: Place, site: str) -> list[Exam]:
    """Return the training volumes of the COVID-19-20 challenge."""
    del site
    home = place.find("Train", "COVID-19-20_v2/Train")
    exams = []
    for image in _sorted(path for end in NIFTI for path in home.glob(f"*_ct{end}")):
        name = image.name.partition("_ct.")[0]
        mask = _nifti(place, home, f"{name}_seg")
        exams.append(volume_exam(place, image, mask, name=name, group=name, window=LUNG))
    return exams


VOLUMES = (
    FileDataset(
        DatasetCard(
            "prostate",
            "Prostate on T2 MRI of six hospitals, the FedLPPA study",
            "segmentation",
            ("prostate",),
            tuple(PROSTATE_FOLDERS),
            source="liuquande.github.io/SAML (NCI-ISBI 2013, I2CVB, PROMISE12 in one layout)",
            licence="each source with terms of its own; research use",
            citation="Liu et al. Shape-aware meta-learning (SAML). MICCAI 2020.",
            layout="prostate/{RUNMC,BMC,I2CVB,UCL,BIDMC,HK}/Case*.nii.gz with "
            "Case*_Segmentation.nii.gz; slices without prostate are left out",
        ),
        ImageShape(size=(384, 384), channels=1),
        index_prostate,
    ),
    FileDataset(
        DatasetCard(
            "retouch",
            "Three kinds of retinal fluid on OCT of three vendors, the FedMix study",
            "segmentation",
            ("irf", "srf", "ped"),
            tuple(RETOUCH_VENDORS),
            source="retouch.grand-challenge.org",
            licence="research use, by agreement",
            citation="Bogunović et al. RETOUCH. IEEE TMI 2019.",
            layout="retouch/RETOUCH-TrainingSet-{Cirrus,Topcon,Spectralis}/TRAIN*/{oct,reference}"
            ".{mhd,raw}; slices without fluid are left out",
        ),
        ImageShape(size=(256, 256), channels=1),
        index_retouch,
    ),
    FileDataset(
        DatasetCard(
            "ms",
            "MS lesions on FLAIR, the FedIA study",
            "segmentation",
            ("lesion",),
            ("msseg1", "lesjak"),
            source="portal.fli-iam.irisa.fr/msseg-challenge; lit.fe.uni-lj.si/en/research/resources/3D-MR-MS",
            licence="MSSEG-1: by agreement; 3D-MR-MS: CC BY",
            citation="Commowick et al. Scientific Reports 2018; Lesjak et al. Neuroinformatics 2018.",
            layout="ms/MSSEG-1/Center_*/Patient_*/{Preprocessed_Data/FLAIR_preprocessed,Masks/"
            "Consensus}.nii.gz and ms/3D-MR-MS/patient*/patient*_{FLAIR,consensus_gt}.nii.gz; "
            "slices without a lesion are left out",
            parts=4,
        ),
        ImageShape(size=(256, 256), channels=1),
        index_ms,
        common=True,
    ),
    FileDataset(
        DatasetCard(
            "lung",
            "COVID-19 lesions on CT (COVID-19-20), the FedIA study",
            "segmentation",
            ("lesion",),
            ("covid-19-20",),
            source="covid-segmentation.grand-challenge.org",
            licence="CC BY 4.0 (TCIA CT Images in COVID-19)",
            citation="Roth et al. Rapid artificial intelligence solutions in a pandemic. MedIA 2022.",
            layout="lung/Train/*_ct.nii.gz with *_seg.nii.gz; slices without a lesion are left out",
            parts=4,
        ),
        ImageShape(size=(256, 256), channels=1),
        index_lung,
        common=True,
    ),
)
