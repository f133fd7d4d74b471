"""A learner: a network, its named parameter groups, the loss on a batch and what it predicts.

Methods never name a network or a loss; they call the learner that the run file chose. So a learner
runs under every method without a line in them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, cast, final

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from consilia.declare import Federation
from consilia.errors import UsageError, unknown
from consilia.networks.classifiers import DenseNet121, Projected, SmallCNN
from consilia.networks.unet import UNETS, UNet
from consilia.ops.losses import (
    UNWEIGHTED,
    ClassWeights,
    dice_foreground,
    labelled_cross_entropy,
    marginal_cross_entropy,
    masked_bce,
    masked_dice_loss,
)
from consilia.payload import Layout
from consilia.training.batch import Batch
from consilia.training.settings import LearnerSettings

#: Networks for image-level labels, and the least side of images on which each can train on one at a time:
#: batch norm wants more than one number of a channel.
CLASSIFIERS = {"cnn-small": 16, "densenet121": 64}
NETWORKS = (*UNETS, *CLASSIFIERS)
#: What ImageNet's images have per channel, on a scale from 0 to 1: means and deviations.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "deviation": (0.229, 0.224, 0.225)}
NORMALISATION = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


class Learner(ABC):
    """What learns at a site; concrete learners are final.

    Attributes:
        network: The name of its architecture.
        objective: The name of its supervised loss.
    """

    network: str
    objective: str

    @property
    def softmax(self) -> bool:
        """Whether outputs compete, with a background channel for segmentation."""
        return self.objective in {"dice-foreground", "partial-ce", "ce"}

    @abstractmethod
    def build(self) -> nn.Module:
        """Return a new network; its start is drawn from torch's global generator."""

    @abstractmethod
    def groups(self, network: nn.Module) -> dict[str, tuple[str, ...]]:
        """Return the names of the tensors in each parameter group, every tensor in one group."""

    @abstractmethod
    def logits(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Tensor:
        """Return the scores a prediction is made of, one plane or number per output row."""

    @abstractmethod
    def loss_of(
        self, logits: Tensor, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return the supervised loss of scores, reading only what is known."""

    @abstractmethod
    def probabilities_of(self, logits: Tensor) -> Tensor:
        """Return one probability per label: `(b, k, h, w)` for segmentation, else `(b, k)`."""

    @abstractmethod
    def head_rows(self) -> tuple[int | None, ...]:
        """Return, for each output row of group `head`, the label it predicts; `None` is background."""

    def loss(
        self, network: nn.Module, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return what is minimised on a batch; learners with several outputs say how they join."""
        return self.loss_of(self.logits(network, batch.image), batch, weights)

    def probabilities(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Tensor:
        """Return one probability per label: `(b, k, h, w)` for segmentation, else `(b, k)`."""
        return self.probabilities_of(self.logits(network, image))

    def embed(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """Return one feature vector per image: the mean over positions of what the encoder ends with."""
        encoder = cast(nn.Module, network.encoder)
        return encoder(image)[-1].mean((2, 3))  # type: ignore[no-any-return]  # nn.Module

    def upper(self, network: nn.Module) -> tuple[str, ...]:
        """Return the names of the tensors above the features: decoders and head."""
        return tuple(n for n in network.state_dict() if n.startswith(("decoder.", "head.")))

    def place(self, network: nn.Module, federation: Federation, site: str) -> None:  # noqa: B027  # most need not know
        """Tell a network whose images come next, for those that keep something apart per site.

        What it tells is written into tensors that stay where they are: one recorded step serves all sites.
        """

    def decide(self, probability: Float[Tensor, "b k h w"]) -> UInt8[Tensor, "b h w"]:
        """Return the index map: the likeliest label where it beats its rival, else background.

        The rival is the background's probability, or one half where outputs do not compete.
        """
        best, label = probability.max(1)
        rival: Tensor | float = 1 - probability.sum(1) if None in self.head_rows() else 0.5
        return torch.where(best > rival, label + 1, 0).to(torch.uint8)


@final
@dataclass(frozen=True)
class PlainLearner(Learner):
    """One network and one supervised loss.

    Attributes:
        size: Height and width of the images, for networks built around this one.
        sites: How many sites the federation has, for the same.
        mean: What is subtracted from each channel where `normalise` is "fixed".
        deviation: What each channel is divided by then.
        projection: Width of a projection between a classifier's features and its head; 0 for none.
    """

    network: str
    objective: str
    normalise: str
    inputs: int
    labels: int
    size: tuple[int, int]
    sites: int
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    projection: int = 0

    @classmethod
    def of(cls, settings: LearnerSettings, federation: Federation) -> PlainLearner:
        """Return the learner that the run file asks for, checked against the task."""
        segments = federation.task == "segmentation"
        network, objective = settings.network, settings.objective
        if network == "auto":
            network = "unet-small" if segments else "cnn-small"
        if network not in NETWORKS:
            raise UsageError(unknown("network", network, NETWORKS))
        if (network in UNETS) != segments:
            msg = (
                f"network '{network}' does not fit a {federation.task} task; choose one of "
                f"{', '.join(UNETS if segments else CLASSIFIERS)}"
            )
            raise UsageError(msg)
        if min(federation.image.size) < least_side(network):
            height, width = federation.image.size
            msg = (
                f"network '{network}' takes images from {least_side(network)} pixels a side, but "
                f"`image.size` is {height} x {width}; choose a larger size or a smaller network"
            )
            raise UsageError(msg)
        fitting = ("dice", "dice-foreground", "partial-ce") if segments else ("ce", "bce")
        if objective == "auto":
            objective = "dice" if segments else ("ce" if federation.exclusive else "bce")
        if objective not in fitting or (objective == "ce" and not federation.exclusive):
            msg = (
                f"objective '{objective}' does not fit a {federation.task} task with "
                f"{'exclusive' if federation.exclusive else 'overlapping'} labels; choose one of "
                f"{', '.join(f for f in fitting if f != 'ce' or federation.exclusive)}"
            )
            raise UsageError(msg)
        if segments and settings.class_weight != "none":
            msg = "learner.class_weight is for classification; leave it out of a segmentation study"
            raise UsageError(msg)
        if objective == "dice-foreground" and len(federation.labels) > 1:
            count = len(federation.labels)
            msg = f"objective 'dice-foreground' is for one label, the federation has {count}; use 'dice'"
            raise UsageError(msg)
        return cls(
            network,
            objective,
            settings.normalise,
            federation.image.channels,
            len(federation.labels),
            federation.image.size,
            len(federation.site),
            per_channel("mean", settings, federation.image.channels),
            per_channel("deviation", settings, federation.image.channels),
        )

    @property
    def background(self) -> bool:
        """Whether output row 0 is background."""
        return self.objective in {"dice-foreground", "partial-ce"}

    def build(self) -> nn.Module:
        """Return a new network; its start is drawn from torch's global generator."""
        outputs = self.labels + self.background
        if self.network in UNETS:
            return UNet(UNETS[self.network], self.inputs, outputs)
        kind = DenseNet121 if self.network == "densenet121" else SmallCNN
        classifier = kind(self.inputs, outputs)
        return Projected(classifier, self.projection) if self.projection else classifier

    def groups(self, network: nn.Module) -> dict[str, tuple[str, ...]]:
        """Return `body`, `norm` and `head`; the head's tensors have one row per output."""
        return split_groups(network)

    def head_rows(self) -> tuple[int | None, ...]:
        """Return the label of each output row; `None` is background."""
        return (*([None] if self.background else []), *range(self.labels))

    def logits(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Tensor:
        """Return the network's scores of normalised images."""
        return network(self.prepared(image)).float()  # type: ignore[no-any-return]  # nn.Module

    def features(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Tensor:
        """Return a classifier's feature vectors, from which its head makes scores."""
        return network.features(self.prepared(image))  # type: ignore[no-any-return, operator]  # nn.Module

    def embed(self, network: nn.Module, image: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """Return one feature vector per image: a classifier's features, or a pooled bottleneck."""
        if self.network in UNETS:
            return super().embed(network, self.prepared(image))
        return self.features(network, image)

    def loss_of(
        self, logits: Tensor, batch: Batch, weights: ClassWeights = UNWEIGHTED
    ) -> Float[Tensor, ""]:
        """Return the objective of the run file."""
        if self.objective == "dice":
            return masked_dice_loss(logits.sigmoid(), batch.planes(), batch.known_planes())
        if self.objective == "dice-foreground":
            p, y = logits.softmax(1)[:, 1], (batch.target > 0).float()
            known = batch.known_planes()
            if known is not None:
                p, y = p * known[:, 0], y * known[:, 0]
            return (1 - dice_foreground(p, y)).mean()
        if self.objective == "partial-ce":
            return marginal_cross_entropy(
                logits, batch.target, batch.known_pixels, batch.known_labels
            )
        if self.objective == "ce":
            return labelled_cross_entropy(logits, batch.target)
        known = batch.known_labels
        known = torch.ones_like(batch.target, dtype=torch.bool) if known is None else known
        return masked_bce(logits, batch.target, known, weights)

    def probabilities_of(self, logits: Tensor) -> Tensor:
        """Return one probability per label, background left out."""
        if not self.softmax:
            return torch.sigmoid(logits)
        p = torch.softmax(logits, 1)
        return p[:, 1:] if self.background else p

    def prepared(self, image: Tensor) -> Tensor:
        """Return images as the network wants them."""
        if self.normalise == "unit":
            return image
        if self.normalise == "fixed":
            # By plain numbers: a tensor of them would be copied to a GPU within a recorded step.
            each = zip(image.unbind(1), self.mean, self.deviation, strict=True)
            return torch.stack([(plane - mean) / std for plane, mean, std in each], 1)
        over = (1, 2, 3)
        mean = image.mean(over, keepdim=True)
        std = image.std(over, correction=0, keepdim=True)
        return (image - mean) / std.clamp(min=1e-6)


def least_side(network: str) -> int:
    """Return the least height and width of the images that a network takes; a U-Net must halve them."""
    return (
        CLASSIFIERS[network] if network in CLASSIFIERS else 2 ** (len(UNETS[network].channels) - 1)
    )


def per_channel(
    key: Literal["mean", "deviation"], settings: LearnerSettings, channels: int
) -> tuple[float, ...]:
    """Return the run file's numbers for fixed normalisation, or ImageNet's; a gray image has their mean."""
    given: tuple[float, ...] | None = getattr(settings, key)
    if settings.normalise != "fixed":
        if given is not None:
            msg = (
                f"learner.{key} is for fixed normalisation, but learner.normalise is "
                f"'{settings.normalise}'; set it to 'fixed', or leave out learner.{key}"
            )
            raise UsageError(msg)
        return ()
    numbers = IMAGENET[key] if given is None else given
    if len(numbers) == channels:
        return numbers
    if given is None and channels == 1:
        return (sum(numbers) / len(numbers),)
    has = f"learner.{key} has {len(numbers)}" if given is not None else "ImageNet has 3"
    msg = (
        f"fixed normalisation needs a {key} for each channel, and `image.channels` is {channels}, but "
        f"{has}; give learner.{key} {channels} number{'s' * (channels > 1)}"
    )
    raise UsageError(msg)


def split_groups(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return a network's tensors as `body`, `norm` (its normalisation layers) and `head`."""
    norm = {
        f"{where}.{name}" if where else name
        for where, module in network.named_modules()
        if isinstance(module, NORMALISATION)
        for name in module.state_dict()
    }
    groups: dict[str, list[str]] = {"body": [], "norm": [], "head": []}
    for name in network.state_dict():
        group = "head" if name.startswith("head.") else "norm" if name in norm else "body"
        groups[group].append(name)
    return {group: tuple(names) for group, names in groups.items()}


def layout_of(
    groups: dict[str, tuple[str, ...]], network: nn.Module, federation: Federation
) -> Layout:
    """Return what the tensors of a run look like, for checking messages."""
    state = network.state_dict()
    specs = {
        group: {name: (tuple(state[name].shape), state[name].dtype) for name in names}
        for group, names in groups.items()
    }
    return Layout(specs, {"labels": len(federation.labels), "sites": len(federation.site)})
