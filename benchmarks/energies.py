"""What FedICRA's objective says of an empty prediction beside the true one, at each site of `faz`.

A loss that is lower for an empty prediction than for the truth teaches to mark nothing. The parts are
those of a prediction that is sure to 1 - ε: cross-entropy on marked pixels, gated CRF, tree energy on the
image alone. Needs the pack `faz128`::

    CONSILIA_DATA=packs python -m benchmarks.energies
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import write
from consilia.engines.inprocess import load_own
from consilia.methods.personal.fedicra import FedICRA
from consilia.ops.crf import gated_crf
from consilia.ops.tree import tree_energy
from consilia.runs.spec import read_spec

IMAGES = 24


def parts(zone: Tensor, image: Tensor, target: Tensor, known: Tensor, unsure: float) -> Tensor:
    """Return cross-entropy on known pixels, gated CRF and tree energy of a prediction of this zone."""
    marked = zone * (1 - 2 * unsure) + unsure
    p = torch.stack((1 - marked, marked), 1)
    surprise = -p.log().gather(1, target[:, None])[:, 0]
    crossed = surprise[known].mean()
    return torch.stack((crossed, gated_crf(p, image), tree_energy(p, image, [], ~known)))


def main(unsure: float = 0.005) -> None:
    """Print and write, for each site, the parts of the empty prediction less those of the true one."""
    spec = read_spec("faz")
    weights = torch.tensor([1.0, FedICRA().crf, FedICRA().tree])
    rng = np.random.default_rng(1)
    rows = {}
    print(
        "site          marked foreground   cross-entropy       CRF      tree     total   CRF halved"
    )
    for name in spec.federation.sites:
        site = load_own(spec, spec.federation, name, Path(os.environ.get("CONSILIA_DATA", ".")))
        assert site.train.truth is not None
        assert site.view.known_pixels is not None
        every = site.view.target[site.view.known_pixels] > 0
        some = rng.choice(len(site.train), min(IMAGES, len(site.train)), replace=False)
        image = torch.from_numpy(site.train.image[some]).float() / 255
        truth = torch.from_numpy(site.train.truth[some] > 0).float()
        target = torch.from_numpy(site.view.target[some].astype(np.int64))
        known = torch.from_numpy(site.view.known_pixels[some])
        empty, true = (
            parts(zone, image, target, known, unsure) for zone in (torch.zeros_like(truth), truth)
        )
        crossed, crf, tree = ((empty - true) * weights).tolist()
        rows[name] = {
            "marked_foreground": float(every.mean()),
            "cross_entropy": crossed,
            "crf": crf,
            "tree": tree,
        }
        print(
            f"{name:12s} {every.mean():17.2%} {crossed:+15.3f} {crf:+9.3f} {tree:+9.3f} "
            f"{crossed + crf + tree:+9.3f} {crossed + crf / 2 + tree:+12.3f}",
            flush=True,
        )
    write("energies", {"unsure": unsure, "images": IMAGES, "sites": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unsure", type=float, default=0.005)
    main(parser.parse_args().unsure)
