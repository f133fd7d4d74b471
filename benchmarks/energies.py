"""What FedICRA's objective says of an empty prediction beside the true one, at each site of `faz`.

A loss that is lower for an empty prediction than for the truth teaches to mark nothing. Which of the two
is lower depends on how sure they are: the parts (cross-entropy on marked pixels, gated CRF, tree energy
on the image alone) are those of predictions that are sure to 1 - ε, for several ε. `best` lets each of
the two have the ε at which it costs least; `barrier` is the most that the empty one is ahead by, and
where. Needs the pack `faz128`::

    CONSILIA_DATA=packs python -m benchmarks.energies
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
UNSURE = (0.1, 0.02, 0.005, 0.001, 0.0005)
#: Where `best` and `barrier` are looked for, from sure to undecided.
EVERY = torch.logspace(-6, float(np.log10(0.5)), 1000)


def parts(zone: Tensor, image: Tensor, target: Tensor, known: Tensor, unsure: Tensor) -> Tensor:
    """Return cross-entropy on known pixels, gated CRF and tree energy of this zone at each ε, (ε, 3).

    What a prediction without doubt costs says it for every ε: with probabilities ε and 1 - ε, neighbors of
    one side differ by 2ε(1 - ε), those across an edge by (1 - 2ε)² more, and tree energy is linear.
    """
    sure = torch.stack((1 - zone, zone), 1)
    wrong = (zone != target)[known].float().mean()
    crossed = -wrong * unsure.log() - (1 - wrong) * (-unsure).log1p()
    doubt = 2 * gated_crf(torch.full_like(sure, 0.5), image)
    edges = gated_crf(sure, image)
    crf = 2 * unsure * (1 - unsure) * doubt + (1 - 2 * unsure).square() * edges
    return torch.stack(
        (crossed, crf, (1 - 2 * unsure) * tree_energy(sure, image, [], ~known)), dim=1
    )


def beyond(empty: Tensor, true: Tensor, unsure: Tensor) -> dict[str, float]:
    """Return what the empty prediction costs more with each at its best ε, and least at a common one."""
    apart = empty - true
    return {
        "best": float(empty.min() - true.min()),
        "barrier": float(apart.min()),
        "barrier_at": float(unsure[apart.argmin()]),
    }


def main(unsure: Sequence[float] = UNSURE) -> None:
    """Print and write, for each site, what the empty prediction costs more than the true one."""
    spec = read_spec("faz", {"method.name": "fedicra"})
    weights = (FedICRA().crf, float(spec.method.settings["crf"]))
    rng = np.random.default_rng(1)
    shown = torch.tensor([*unsure])
    rows: dict[str, dict[str, Any]] = {}
    told = " ".join(f"{e:>8g}" for e in unsure)
    print(f"site          marked foreground    CRF x {told}     best  barrier (at)")
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
            parts(zone, image, target, known, torch.cat((shown, EVERY)))
            for zone in (torch.zeros_like(truth), truth)
        )
        rows[name] = {"marked_foreground": float(every.mean()), "crf": {}}
        rows[name] |= {"empty": empty[: len(shown)].tolist(), "true": true[: len(shown)].tolist()}
        for crf in weights:
            weight = torch.tensor([1.0, crf, FedICRA().tree])
            one, two = empty @ weight, true @ weight
            apart = (one - two)[: len(shown)].tolist()
            found = beyond(one[len(shown) :], two[len(shown) :], EVERY)
            rows[name]["crf"][str(crf)] = {"apart": apart, **found}
            told = " ".join(f"{value:+8.3f}" for value in [*apart, found["best"], found["barrier"]])
            print(
                f"{name:12s} {every.mean():18.2%} {crf:8g} {told} ({found['barrier_at']:.3f})",
                flush=True,
            )
    write("energies", {"unsure": list(unsure), "images": IMAGES, "sites": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unsure", type=float, nargs="+", default=UNSURE)
    main(parser.parse_args().unsure)
