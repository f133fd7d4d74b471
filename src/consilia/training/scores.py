"""A network's scores as a function of its tensors, for steps that need weights it does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from consilia.training.learner import Learner


class Scores(nn.Module):
    """A learner's scores of a network; `at` computes them with other tensors in their places."""

    def __init__(self, learner: Learner, network: nn.Module) -> None:
        super().__init__()
        self.learner = learner
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        """Return the scores of images with the network's own tensors."""
        return self.learner.logits(self.network, image)

    def at(self, tensors: Mapping[str, Tensor], image: Tensor) -> Tensor:
        """Return the scores with these tensors; what is not named is the network's own.

        Statistics of normalisation layers are updated in the tensors that are given for them.
        """
        named = {f"network.{name}": tensor for name, tensor in tensors.items()}
        scores: Any = functional_call(self, named, (image,))
        return scores  # type: ignore[no-any-return]  # nn.Module
