"""Learners with two decoders that label for each other: alone (`dual`), and FedLPPA's with prompts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from consilia.declare import Federation, Sparsity
from consilia.errors import UsageError
from consilia.networks.dual import DualUNet
from consilia.networks.fedlppa import FedLPPANet, Parts
from consilia.networks.unet import UNETS
from consilia.ops.crf import gated_crf
from consilia.ops.dual import proposal, proposal_loss
from consilia.ops.losses import UNWEIGHTED, ClassWeights
from consilia.training.batch import Batch
from consilia.training.learner import Learner, PlainLearner, split_groups
from consilia.training.settings import LearnerSettings

LEVELS = (Sparsity.SPARSE, Sparsity.MEDIUM, Sparsity.DENSE)


@dataclass(frozen=True)
class TwoDecoders(Learner):
    r"""Partial cross-entropy of both decoders, and Dice with what they propose together (Eqs. 14-17).

    .. math:: L_{wss} = \tfrac12 \sum_{d \in \{M, A\}} L_{pCE}(p_d, y)
              + \lambda \, \tfrac12 \sum_{d \in \{M, A\}} L_{Dice}(p_d, \tilde y)

    The main decoder alone predicts.

    Attributes:
        plain: The same task with one decoder: outputs, normalisation and partial cross-entropy.
        pseudo: The weight λ of the proposals.
        least: The least part λ_m of the main decoder in a proposal; the most is 1.
        crf: The weight of a gated CRF on the main decoder's probabilities; not in the equations.
    """

    network: str
    objective: str
    plain: PlainLearner
    pseudo: float = 0.5
    least: float = 0.7
    crf: float = 0.0

    @abstractmethod
    def both(self, network: nn.Module, image: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the scores of the main and of the auxiliary decoder, where there is one."""

    def loss(
        self, network: nn.Module, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return the loss of both decoders, or of the only one, with the gated CRF where it counts."""
        main, auxiliary = self.both(network, self.plain.prepared(batch.image))
        loss = self._labeled(main, auxiliary, batch)
        if not self.crf:
            return loss
        return loss + self.crf * gated_crf(main.float().softmax(1), batch.image)

    def _labeled(self, main: Tensor, auxiliary: Tensor | None, batch: Batch) -> Tensor:
        """Return Eq. 17; with one decoder, its partial cross-entropy."""
        if auxiliary is None:
            return self.loss_of(main, batch)
        supervised = 0.5 * self.loss_of(main, batch) + 0.5 * self.loss_of(auxiliary, batch)
        p_main, p_auxiliary = main.softmax(1), auxiliary.softmax(1)
        mix = self.least + (1 - self.least) * torch.rand((), device=main.device)
        proposed = proposal(p_main, p_auxiliary, mix)
        led = 0.5 * proposal_loss(p_main, proposed) + 0.5 * proposal_loss(p_auxiliary, proposed)
        return supervised + self.pseudo * led

    def logits(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Tensor:
        """Return the main decoder's scores."""
        return self.plain.logits(network, image)

    def loss_of(
        self, logits: Tensor, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return the partial cross-entropy of one decoder."""
        return self.plain.loss_of(logits, batch)

    def probabilities_of(self, logits: Tensor) -> Tensor:
        """Return one probability per label, background left out."""
        return self.plain.probabilities_of(logits)

    def head_rows(self) -> tuple[int | None, ...]:
        """Return the label of each output row; `None` is background."""
        return self.plain.head_rows()

    def embed(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """Return the encoder's features, before any prompt, averaged over positions."""
        return self.plain.embed(network, image)

    def upper(self, network: nn.Module) -> tuple[str, ...]:
        """Return the names of the tensors above the shared features: both decoders and heads."""
        above = ("decoder.", "head.", "mlp.", "aux.")
        return tuple(n for n in network.state_dict() if n.startswith(above))


@final
@dataclass(frozen=True)
class DualLearner(TwoDecoders):
    """A plain U-Net with a second decoder, for any method (the paper's Table VI)."""

    @classmethod
    def of(cls, settings: LearnerSettings, federation: Federation) -> DualLearner:
        """Return the learner that the run file asks for, checked against the task."""
        if federation.task != "segmentation":
            msg = (
                "learner 'dual' has two decoders and segments, but this federation's task is "
                f"{federation.task}; use learner 'plain'"
            )
            raise UsageError(msg)
        if settings.objective not in {"auto", "partial-ce"}:
            msg = (
                f"learner 'dual' minimises partial cross-entropy and proposals, but learner.objective "
                f"is '{settings.objective}'; leave it out or use 'partial-ce'"
            )
            raise UsageError(msg)
        plain = PlainLearner.of(settings.model_copy(update={"objective": "partial-ce"}), federation)
        return cls(plain.network, plain.objective, plain)

    def build(self) -> nn.Module:
        """Return a new network; its start is drawn from torch's global generator."""
        return DualUNet(UNETS[self.network], self.plain.inputs, len(self.head_rows()))

    def groups(self, network: nn.Module) -> dict[str, tuple[str, ...]]:
        """Return `body`, `norm` and `head`; both heads are in `head`, row for row alike."""
        groups = split_groups(network)
        second = tuple(n for n in network.state_dict() if n.startswith("aux.head."))
        body = tuple(n for n in groups["body"] if n not in second)
        return {**groups, "body": body, "head": (*groups["head"], *second)}

    def both(self, network: nn.Module, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of both decoders."""
        return cast(DualUNet, network).both(image)


@final
@dataclass(frozen=True)
class FedLPPALearner(TwoDecoders):
    """FedLPPA's network, in the groups that its method sends and keeps apart.

    Attributes:
        parts: Which parts of the network there are.
    """

    parts: Parts = field(default_factory=Parts)

    @classmethod
    def around(
        cls, chosen: Learner, parts: Parts, pseudo: float, least: float, crf: float = 0.0
    ) -> FedLPPALearner:
        """Return the learner for what a run file chose: its U-Net, with prompts and decoders."""
        plain = chosen.plain if isinstance(chosen, TwoDecoders) else chosen
        assert isinstance(plain, PlainLearner), (
            "every learner of a run file is plain or has two decoders"
        )
        plain = replace(plain, objective="partial-ce")
        return cls(plain.network, plain.objective, plain, pseudo, least, crf, parts)

    def build(self) -> nn.Module:
        """Return a new network; its start is drawn from torch's global generator."""
        plain, shape, outputs = self.plain, UNETS[self.network], len(self.head_rows())
        return FedLPPANet(shape, plain.inputs, outputs, plain.sites, plain.size, self.parts)

    def groups(self, network: nn.Module) -> dict[str, tuple[str, ...]]:
        """Return `shared` (encoder, fusion, prompts), `main` (decoder, head, MLP) and `aux`."""
        starts = {
            "shared": ("encoder.", "fusion."),
            "main": ("decoder.", "head.", "mlp."),
            "aux": ("aux.",),
        }
        names = tuple(network.state_dict())
        return {g: tuple(n for n in names if n.startswith(start)) for g, start in starts.items()}

    def both(self, network: nn.Module, image: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the scores of the main and of the auxiliary decoder, where there is one."""
        return cast(FedLPPANet, network).both(image)

    def place(self, network: nn.Module, federation: Federation, site: str) -> None:
        """Choose a site's prompts; for images of no site, the mean over all sites."""
        fusion = cast(FedLPPANet, network).fusion
        if fusion is None:
            return
        sites = federation.sites
        here = (site,) if site in sites else sites
        rows = torch.tensor([float(name in here) for name in sites])
        levels = torch.tensor(
            [float(sum(federation[name].density is level for name in here)) for level in LEVELS]
        )
        fusion.prompts.place(rows / len(here), levels / len(here))
