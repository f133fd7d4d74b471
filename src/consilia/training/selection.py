"""A learner whose network selects channels by site, around any segmentation learner (FedLC, FedICRA)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from consilia.declare import Federation
from consilia.networks.selection import ChannelSelection, SelectingEncoder, SideHead
from consilia.networks.unet import UNETS
from consilia.ops.crf import gated_crf
from consilia.ops.losses import UNWEIGHTED, ClassWeights
from consilia.ops.tree import tree_energy
from consilia.training.batch import Batch
from consilia.training.dual import TwoDecoders
from consilia.training.learner import Learner, PlainLearner
from consilia.training.site import Workbench
from consilia.training.taps import tapped

#: The decoder levels, from the top, that have a side head.
SCALES = 3


@final
@dataclass(frozen=True)
class SelectionLearner(Learner):
    """Another learner, with channel selection at its bottleneck and, where asked, side heads.

    Attributes:
        inner: What learns otherwise: its loss, its outputs and the rest of its network.
        plain: The one-decoder learner at its core.
        sides: Hidden width of the score maps that the decoder's upper levels have; 0 for none.
    """

    network: str
    objective: str
    inner: Learner
    plain: PlainLearner
    sides: int

    @classmethod
    def around(cls, chosen: Learner, sides: int = 0) -> SelectionLearner:
        """Return the learner for what a run file chose."""
        plain = chosen.plain if isinstance(chosen, TwoDecoders) else chosen
        assert isinstance(plain, PlainLearner), "run files choose plain learners or two decoders"
        return cls(chosen.network, chosen.objective, chosen, plain, sides)

    def build(self) -> nn.Module:
        """Return the inner network with its encoder wrapped; the inner start stays the same."""
        network, widths = self.inner.build(), UNETS[self.network].channels
        network.encoder = SelectingEncoder(
            network.get_submodule("encoder"), widths[-1], self.plain.sites
        )
        if self.sides:
            network.sides = nn.ModuleList(
                SideHead(_out_width(level), len(self.head_rows()), self.sides)
                for level in self._levels(network)
            )
        return network

    def groups(self, network: nn.Module) -> dict[str, tuple[str, ...]]:
        """Return the inner learner's groups; selection and side heads join its `body` and `norm`."""
        return self.inner.groups(network)

    def logits(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Tensor:
        """Return the inner learner's scores."""
        return self.inner.logits(network, image)

    def loss_of(
        self, logits: Tensor, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return the inner learner's loss of scores."""
        return self.inner.loss_of(logits, batch, weights)

    def loss(
        self, network: nn.Module, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return the inner learner's loss."""
        return self.inner.loss(network, batch, weights)

    def probabilities_of(self, logits: Tensor) -> Tensor:
        """Return one probability per label."""
        return self.inner.probabilities_of(logits)

    def head_rows(self) -> tuple[int | None, ...]:
        """Return the label of each output row; `None` is background."""
        return self.inner.head_rows()

    def embed(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """Return the inner learner's features, of images as it prepares them."""
        return self.inner.embed(network, image)

    def upper(self, network: nn.Module) -> tuple[str, ...]:
        """Return the names of the tensors above the features, side heads left out."""
        return self.inner.upper(network)

    def place(self, network: nn.Module, federation: Federation, site: str) -> None:
        """Tell the selection whose images come; images of no site get the mean of all."""
        self.inner.place(network, federation, site)
        here = (site,) if site in federation.sites else federation.sites
        rows = torch.tensor([float(name in here) for name in federation.sites])
        selection_of(network).place(rows / len(here))

    def separated_loss(
        self, bench: Workbench, batch: Batch, held: Mapping[str, Tensor], alpha: float
    ) -> Float[Tensor, ""]:
        """Return the inner loss minus α times how far the sites' channel weights are apart."""
        selection = selection_of(bench.network())
        with tapped((selection,), "in") as features:
            loss = bench.task_loss(batch, held)
        return loss - alpha * selection.separation(features[selection])

    def structured_loss(
        self,
        bench: Workbench,
        batch: Batch,
        held: Mapping[str, Tensor],
        *,
        alpha: float,
        tree: float,
        crf: float,
    ) -> Float[Tensor, ""]:
        """Return the separated loss with the tree energy at all scales and the gated CRF (FedICRA)."""
        network = bench.network()
        head, levels = network.get_submodule("head"), self._levels(network)
        with tapped((head, *levels)) as made:
            loss = self.separated_loss(bench, batch, held, alpha)
        p = every_class(self.probabilities_of(made[head].float()))
        if tree and batch.known_pixels is not None:
            sides = zip(cast(nn.ModuleList, network.sides), levels, strict=True)
            maps = [side(made[level]).float() for side, level in sides]
            loss = loss + tree * tree_energy(p, batch.image, maps, ~batch.known_pixels)
        return loss + crf * gated_crf(p, batch.image) if crf else loss

    def _levels(self, network: nn.Module) -> tuple[nn.Module, ...]:
        return tuple(cast(nn.ModuleList, network.get_submodule("decoder.ups")))[-SCALES:]


def selection_of(network: nn.Module) -> ChannelSelection:
    """Return the channel selection of a network that has one."""
    return cast(ChannelSelection, network.get_submodule("encoder.selection"))


def every_class(p: Float[Tensor, "b k h w"]) -> Float[Tensor, "b c h w"]:
    """Return probabilities of background and labels that sum to one, from those of the labels."""
    whole = torch.cat(((1 - p.sum(1, keepdim=True)).clamp(min=0), p), 1)
    return whole / whole.sum(1, keepdim=True)


def _out_width(up: nn.Module) -> int:
    last = [layer for layer in up.modules() if isinstance(layer, nn.Conv2d)][-1]
    return last.out_channels
