"""FedAvg (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilia.methods.averaging import Averaging
from consilia.methods.contract import Card


@final
@dataclass(frozen=True)
class FedAvg(Averaging):
    """Train everywhere from the same weights, then average by number of images (Algorithm 1).

    With `unknown = "masked"` and `rows = "labelled"` it is the FedAvg* of FedLSM and the base of
    FedPSL; with `unknown = "masked"` and `rows = "all"` the adapted FedAVG of FedPSL.
    """

    card: ClassVar = Card(
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        authors="B. McMahan, E. Moore, D. Ramage, S. Hampson, B. A. y Arcas",
        venue="AISTATS",
        year=2017,
        bibtex="""@inproceedings{mcmahan2017communication,
  title={Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author={McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and y Arcas, Blaise Aguera},
  booktitle={Artificial Intelligence and Statistics},
  pages={1273--1282},
  year={2017}
}""",
        summary="average the sites' weights by number of images",
    )
