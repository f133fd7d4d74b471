"""FedLPPA (Lin et al., IEEE TMI 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch

from consilia.declare import Federation
from consilia.errors import UsageError
from consilia.labels.usable import without_usable_labels
from consilia.methods.contract import Card, Findings, Method, Start, hyper
from consilia.methods.personal.fedlppa_server import (
    Auxiliary,
    Main,
    Server,
    Shared,
    Up,
    Whole,
    auxiliary_decoder,
    averaged,
    findings_of,
)
from consilia.networks.fedlppa import Parts
from consilia.ops.personal import interpolate
from consilia.payload import Weights, picked, united
from consilia.training.dual import FedLPPALearner
from consilia.training.learner import Learner
from consilia.training.local import train_locally
from consilia.training.personal import learn_shares
from consilia.training.settings import Training
from consilia.training.site import Site


@dataclass(frozen=True)
class Intro:
    """Leaves a site once: how many images it trains on, n_i."""

    images: int


@dataclass(frozen=True)
class Down:
    """Travels to a site: the common encoder and decoder, and an auxiliary decoder made for this site."""

    shared: Shared
    main: Main
    aux: Auxiliary


@dataclass(frozen=True)
class Memory:
    """Stays at a site: its decoders, how far each of their numbers follows the server, and rounds.

    `shared` is kept only where the site is judged by the model it trained itself.
    """

    main: Main
    aux: Auxiliary
    follow: Weights
    rounds: int
    shared: Shared | None


@final
@dataclass(frozen=True)
class FedLPPA(Method[Intro, Server, Down, Up | Whole, Memory]):
    """Prompts tell the network whose images come; decoders follow the server number by number.

    Without `tdf`, `pd` and `la` it is FedAvg on partial cross-entropy.
    """

    tdf: bool = hyper(True, "prompts, their fusion and the MLP", source="Table VII")
    pd: bool = hyper(True, "auxiliary decoder and pseudo labels", source="Table VII")
    la: bool = hyper(True, "learnable aggregation W of the decoders", source="Table VII")
    ddp: bool = hyper(True, "data distribution prompt p_D", source="Table VIII")
    asp: bool = hyper(True, "annotation sparsity prompt p_S", source="Table VIII")
    ukp: bool = hyper(True, "universal knowledge prompt p_U", source="Table VIII")
    attention: Literal["dual", "spatial", "channel", "none"] = hyper(
        "dual", "attention on the fused features", source="Fig. 8"
    )
    strategy: Literal["aggregated", "highest", "fixed", "random"] = hyper(
        "aggregated", "whose decoders make a site's auxiliary one", source="Sec. III-C, Eq. 9"
    )
    auxiliary: Literal["main", "own"] = hyper(
        "main",
        "which of their decoders these are: the main or the auxiliary ones, which are then sent too",
        source="Eq. 9; own: the authors' code",
    )
    row_owner: bool = hyper(True, "a site's row of p_D is its own", source="ours; false: Eq. 2")
    pseudo: float = hyper(0.5, "weight λ of the pseudo labels", source="Sec. IV-B, Eq. 15")
    least_main: float = hyper(
        0.7, "least part λ_m of the main decoder in a pseudo label", source="Eq. 14", high=1
    )
    crf: float = hyper(
        0.0,
        "weight of the gated CRF on the main decoder's probabilities",
        source="Eq. 17; the authors' scripts have 0.1",
    )
    eta: float = hyper(1.0, "step size η of W", source="FedALA's code; not in the paper")
    la_batches: int = hyper(2, "batches for W from a site's third round on", source="Sec. IV-B")
    la_passes: int = hyper(30, "most passes for W in its second round", source="ours: a cap", low=1)
    la_threshold: float = hyper(0.1, "spread of losses at convergence", source="FedALA's code")
    judged: Literal["mixture", "trained"] = hyper(
        "mixture",
        "a site's model: the next round's start, or what it trained last",
        source="the authors' code; Algorithm 1 returns the trained one",
    )

    card: ClassVar = Card(
        title="FedLPPA: Learning Personalized Prompt and Aggregation for Federated "
        "Weakly-supervised Medical Image Segmentation",
        authors="L. Lin, Y. Liu, J. Wu, P. Cheng, Z. Cai, K. K. Y. Wong, X. Tang",
        venue="IEEE Transactions on Medical Imaging",
        year=2024,
        bibtex="""@article{lin2024fedlppa,
  title={FedLPPA: Learning Personalized Prompt and Aggregation for Federated
         Weakly-supervised Medical Image Segmentation},
  author={Lin, Li and Liu, Yixiang and Wu, Jiewei and Cheng, Pujin and Cai, Zhiyuan and
          Wong, Kenneth K. Y. and Tang, Xiaoying},
  journal={IEEE Transactions on Medical Imaging},
  year={2024}
}""",
        summary="a model per site from prompts, two decoders and learnable aggregation",
    )

    def __post_init__(self) -> None:
        """Refuse to compare prompts that are not there."""
        alike = self.strategy in {"aggregated", "highest"}
        if self.pd and alike and not (self.tdf and self.ddp):
            msg = (
                f"method.strategy of 'fedlppa' is '{self.strategy}', which compares the sites' "
                "distribution prompts; keep `tdf` and `ddp`, set `pd` to false, or use 'fixed' or 'random'"
            )
            raise UsageError(msg)

    def unmet(self, federation: Federation) -> str | None:
        """Refuse classification, and a federation in which no site marks pixels."""
        if federation.task != "segmentation":
            return "segments, and this is a classification task"
        if len(without_usable_labels(federation)) == len(federation.site):
            return "needs at least one site whose annotations mark pixels; none does"
        return None

    def unmet_by(self, training: Training) -> str | None:
        """Refuse crops, which prompts do not fit."""
        if self.tdf and training.crop:
            return f"has prompts as large as images: training.crop is {training.crop}, set it to 0"
        return None

    def learner(self, chosen: Learner) -> Learner:
        """Put prompts and a second decoder around the U-Net that the run file chose."""
        parts = Parts(self.tdf, self.pd, self.ukp, self.ddp, self.asp, self.attention)
        return FedLPPALearner.around(chosen, parts, self.pseudo, self.least_main, self.crf)

    def introduce(self, site: Site) -> Intro:
        """Count the usable images."""
        return Intro(len(site.train.supervised()))

    def start(self, start: Start, intros: Mapping[str, Intro]) -> Server:
        """Begin from the common weights, with no decoder of any site."""
        images = {site: intro.images for site, intro in intros.items()}
        sites = start.federation.sites
        return Server(start.weights, start.groups, sites, images, {}, {}, {}, 0, start.seed)

    def admit(self, server: Server, site: str, intro: Intro) -> Server:
        """Note a site that joins late; it starts from the global model."""
        return replace(server, images={**server.images, site: intro.images})

    def invite(self, server: Server, present: tuple[str, ...]) -> tuple[str, ...]:
        """Train only where there is something to train on."""
        return tuple(site for site in present if server.images[site])

    def broadcast(self, server: Server, site: str) -> Down:
        """Send what is common, and the auxiliary decoder made for this site."""

        def group(name: str) -> Weights:
            return picked(server.weights, server.groups[name])

        aux = auxiliary_decoder(server, site, self.strategy, self.auxiliary)
        return Down(group("shared"), group("main"), aux)

    def local_update(
        self, down: Down, memory: Memory | None, site: Site
    ) -> tuple[Up | Whole, Memory]:
        """Learn how far to follow the server (from the second round on), then train everything."""
        for part in (down.shared, down.main, down.aux):
            site.load(part)
        rounds = 1 if memory is None else memory.rounds + 1
        follow = self._follow(down, memory, site)
        train_locally(site)
        shared, main, aux = (site.weights(group) for group in ("shared", "main", "aux"))
        up = Whole(shared, main, aux) if self._sends_both else Up(shared, main)
        kept = shared if self.judged == "trained" else None
        return up, Memory(main, aux, follow, rounds, kept)

    def aggregate(self, server: Server, ups: Mapping[str, Up | Whole]) -> Server:
        """Average what is common by images (Eq. 2); keep each site's decoder and prompt apart."""
        return averaged(server, ups, self.auxiliary, self.row_owner)

    def model_for(self, down: Down, memory: Memory | None, site: Site) -> Weights:
        """Use the site's own mixture of decoders, or the global one where a site has none."""
        if memory is None:
            return {**down.shared, **down.main}
        if memory.shared is not None:
            return {**memory.shared, **memory.main}
        follow = {name: share for name, share in memory.follow.items() if name in down.main}
        return {**down.shared, **interpolate(memory.main, down.main, follow)}

    def shares(self, server: Server) -> Mapping[str, float]:
        """Return each site's part in the last average."""
        return server.last

    def findings(self, server: Server) -> Findings:
        """Return the sites' affinities and prompts."""
        return findings_of(server)

    def following(self, memory: Memory) -> Weights:
        """Return both W."""
        return memory.follow

    @property
    def _sends_both(self) -> bool:
        return self.pd and self.auxiliary == "own"

    def _follow(self, down: Down, memory: Memory | None, site: Site) -> Weights:
        """Return W after this round's steps, and leave the mixture in the network (Eqs. 10-13)."""
        if not self.la:
            return {}
        server = united(down.main, down.aux)
        if memory is None:  # nothing of its own yet: follow the server in everything
            parameters = dict(site.network.named_parameters())
            return {
                name: torch.ones(parameters[name].shape) for name in server if name in parameters
            }
        first = memory.rounds == 1
        return learn_shares(
            site,
            united(memory.main, memory.aux),
            server,
            memory.follow,
            eta=self.eta,
            batches=None if first else self.la_batches,
            passes=self.la_passes,
            threshold=self.la_threshold,
        )
