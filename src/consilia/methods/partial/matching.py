"""FedMatch's local objective: two sets of weights that are added, each with a loss of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from consilia.methods.contract import hyper
from consilia.ops.agreement import agreed_class, agreed_entries, agreed_loss, apart, consistency
from consilia.payload import Weights
from consilia.training.batch import Batch
from consilia.training.seeds import generator
from consilia.training.site import Site
from consilia.training.strong import strong_view

#: The networks that hold helpers' ψ.
HELPERS = tuple(f"helper-{number}" for number in range(1, 17))


@dataclass(frozen=True)
class Terms:
    """What weighs the terms; all are settings of `FedMatch`."""

    confidence: float = hyper(0.75, "least probability τ of a guess", source="code: 0.75", high=1)
    lambda_s: float = hyper(10.0, "weight of known labels", source="code: 10")
    lambda_i: float = hyper(0.01, "weight of consistency with helpers", source="code: 0.01")
    lambda_a: float = hyper(0.01, "weight of agreed guesses", source="code: 0.01")
    lambda_l2: float = hyper(10.0, "weight that draws ψ to σ", source="code: 10")
    lambda_l1: float = hyper(1e-4, "weight that keeps ψ sparse", source="code: 1e-4")


class Matching:
    """The loss of a site whose σ is in the main network, ψ in "psi", and helpers' ψ in others."""

    def __init__(self, terms: Terms, site: Site, helpers: tuple[str, ...]) -> None:
        self.terms = terms
        self.site = site
        self.helpers = helpers
        self.randoms = site.generator("strong views")
        self.sigma = dict(site.network.named_parameters())
        self.psi = dict(site.bench.network("psi").named_parameters())

    def loss(self, batch: Batch) -> Tensor:
        """Return the sum of both losses: known labels reach only σ, all else only ψ."""
        terms, learner = self.terms, self.site.learner
        fixed_psi = {name: value.detach() for name, value in self.psi.items()}
        fixed_sigma = {name: value.detach() for name, value in self.sigma.items()}
        scores = self.scores(self.sigma, fixed_psi, batch.image)
        known = learner.loss_of(scores, batch, self.site.class_weights)
        open_ = apart(
            [*fixed_sigma.values()], [*self.psi.values()], terms.lambda_l2, terms.lambda_l1
        )
        if batch.known_labels is not None:
            open_ = open_ + self.agreement(fixed_sigma, batch, ~batch.known_labels)
        return terms.lambda_s * known + open_

    def agreement(self, sigma: Weights, batch: Batch, unknown: Tensor) -> Tensor:
        """Return how far ψ is from its helpers, and from what all agree on in a strong view."""
        terms, learner, exclusive = self.terms, self.site.learner, self.site.learner.softmax
        p = learner.probabilities_of(self.scores(sigma, self.psi, batch.image, aside=True))
        with torch.no_grad():
            others = [
                learner.probabilities_of(
                    self.scores(sigma, self._named(name), batch.image, aside=True)
                )
                for name in self.helpers
            ]
            if exclusive:
                agreed = agreed_class(p, others)
                best = p.max(1, keepdim=True).values >= terms.confidence
                told = (best & ((agreed > 0) & unknown).any(1, keepdim=True)).expand_as(unknown)
            else:
                agreed = agreed_entries(p, others)
                sure = (p >= terms.confidence) | (p <= 1 - terms.confidence)
                told = unknown & sure
        strong = strong_view(self.site.train.cut(batch.index).image, self.randoms)
        guessed = agreed_loss(
            self.scores(sigma, self.psi, strong, aside=True), agreed, told, exclusive
        )
        total = terms.lambda_a * guessed
        return total + terms.lambda_i * consistency(p, others, told, exclusive) if others else total

    def scores(self, sigma: Weights, psi: Weights, image: Tensor, *, aside: bool = False) -> Tensor:
        """Return the scores of σ + ψ; `aside` leaves the statistics of batch normalization alone."""
        state: dict[str, Tensor] = {name: sigma[name] + psi[name] for name in self.sigma}
        if aside:
            state |= {name: value.clone() for name, value in self.site.network.named_buffers()}

        def network(x: Tensor) -> Tensor:
            return cast("Tensor", functional_call(self.site.network, state, (x,)))

        return self.site.learner.logits(
            cast("nn.Module", cast("Callable[..., Tensor]", network)), image
        )

    def output(self) -> Tensor:
        """Return the probabilities of one image of noise, the same at all sites of a run."""
        site = self.site
        noise = torch.randn(1, *site.train.image.shape[1:], generator=generator(site.seed, "noise"))
        site.network.eval()
        with torch.no_grad():
            scores = self.scores(self.sigma, self.psi, noise.to(site.bench.device))
        return site.learner.probabilities_of(scores)[0].cpu()

    def _named(self, network: str) -> Mapping[str, Tensor]:
        return dict(self.site.bench.network(network).named_parameters())


def joined(sigma: Weights, psi: Weights, site: Site) -> dict[str, Tensor]:
    """Return σ + ψ as one set of weights; what is no parameter comes from σ."""
    trained = {name for name, _ in site.network.named_parameters()}
    return {name: value + psi[name] if name in trained else value for name, value in sigma.items()}
