"""Pooled training: all images in one place, the bound a federation tries to reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card, hyper


def _card(title: str, summary: str) -> Card:
    return Card(title=title, authors="", venue="", year=0, bibtex="", summary=summary)


@final
@dataclass(frozen=True)
class Central(Averaging):
    """Train on all sites' images together, with the labels they declared (never across hospitals)."""

    data: ClassVar[Literal["own", "pooled"]] = "pooled"
    unknown: Literal["negative", "masked"] = hyper(
        "masked",
        "what a label that a site does not mark means in its loss",
        source="FedPSL Sec. VII-C, IML",
    )
    card: ClassVar = _card("Central training", "all images in one place, labels as declared")


@final
@dataclass(frozen=True)
class Oracle(Averaging):
    """Train on all sites' images together, as if every site had marked everything."""

    data: ClassVar[Literal["own", "pooled"]] = "pooled"
    labels: ClassVar[Literal["declared", "full"]] = "full"
    card: ClassVar = _card("Oracle", "all images in one place, complete labels: the upper bound")


IML = Card(
    title="Multi-structure Segmentation from Partially Labeled Datasets. Application to Body "
    "Composition Measurements on CT Scans",
    authors="G. González, G. R. Washko, R. San José Estépar",
    venue="Image Analysis for Moving Organ, Breast, and Thoracic Images (MICCAI Workshops)",
    year=2018,
    bibtex="""@inproceedings{gonzalez2018multi,
  title={Multi-structure Segmentation from Partially Labeled Datasets. Application to Body
         Composition Measurements on {CT} Scans},
  author={Gonz{\\'a}lez, Germ{\\'a}n and Washko, George R and San Jos{\\'e} Est{\\'e}par, Ra{\\'u}l},
  booktitle={Image Analysis for Moving Organ, Breast, and Thoracic Images},
  pages={215--224},
  publisher={Springer},
  year={2018}
}""",
    summary="all images in one place, missing labels ignored",
)
