"""What FedLSM learns from at a site: labels, pseudo labels its teacher is sure of, and blends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from consilia.ops.confident import class_loss, entry_loss, sure_class, sure_entries, unweighted
from consilia.ops.losses import UNWEIGHTED, ClassWeights, labelled_cross_entropy
from consilia.ops.mixup import draw_share, mixed, mixed_labels
from consilia.ops.uncertainty import binary_entropy, entropy, split, split_sizes
from consilia.training.batch import Batch, orders
from consilia.training.site import Site
from consilia.training.strong import strong_view, weak_view

ENDLESS = 10**9
LOG = logging.getLogger("consilia")


@dataclass(frozen=True)
class Thresholds:
    """When a pseudo label is accepted: a single label, a present one, an absent one."""

    single: float
    positive: float
    negative: float


@dataclass(frozen=True)
class Blend:
    """How confident and uncertain images are blended: how many a step, α, and the loss's weight λ."""

    count: int
    alpha: float
    lam: float


@dataclass(frozen=True)
class Terms:
    """How labels and pseudo labels enter the loss.

    Attributes:
        weights: Of labels that may co-occur; what is present is weighed where an annotator says so.
        soft: Where labels may co-occur, what the teacher is unsure of is learned from its probability.
        together: With exclusive labels, one mean over all images, not one for labels and one for guesses.
    """

    weights: ClassWeights = UNWEIGHTED
    soft: bool = False
    together: bool = False


@dataclass(frozen=True)
class Parts:
    """Positions of a site's images: the uncertain, the confident, and those that get pseudo labels."""

    uncertain: Tensor
    confident: Tensor
    stream: Tensor


@dataclass(frozen=True)
class Said:
    """Labels of a batch and where they hold; labels that exclude each other hold row by row."""

    target: Tensor
    told: Tensor

    def or_else(self, other: Said) -> Said:
        """Return these labels, completed by others where these say nothing."""
        return Said(torch.where(self.told, self.target, other.target), self.told | other.told)


def excludes(site: Site) -> bool:
    """Return whether a site's learner lets labels compete (softmax)."""
    return site.learner.softmax


def unknown_labels(batch: Batch) -> Tensor:
    """Return which labels of each image nobody has marked."""
    if batch.known_labels is None:
        return torch.zeros_like(batch.target, dtype=torch.bool)
    return ~batch.known_labels


def marked_present(site: Site) -> Tensor:
    """Return which labels an annotator says each image of a site shows."""
    known, shown = site.train.known_labels, site.train.target > 0
    return shown if known is None else shown & known


def said_by_annotator(batch: Batch, exclusive: bool) -> Said:
    """Return the labels a batch came with; with exclusive ones a row holds if it has a positive."""
    known = ~unknown_labels(batch)
    target = torch.where(known, batch.target, 0.0)
    return Said(target, target.any(1, keepdim=True).expand_as(known) if exclusive else known)


def said_by_teacher(p: Tensor, batch: Batch, limits: Thresholds, exclusive: bool) -> Said:
    """Return pseudo labels for what is unknown, where the teacher's probabilities are sure."""
    unknown = unknown_labels(batch)
    if exclusive:
        return Said(*sure_class(p, unknown, limits.single))
    return Said(*sure_entries(p, unknown, limits.positive, limits.negative))


def everyone(site: Site) -> Parts:
    """Return all images for every part."""
    every = torch.arange(len(site.train), device=site.bench.device)
    return Parts(every, every, every)


def part_by_uncertainty(
    site: Site, uncertain: int, confident: int, undo: Tensor | None = None
) -> Parts:
    """Return a site's images parted by how unsure its network is of what is unknown.

    Images are not augmented, and the network is in evaluation mode. `undo` as in `Lesson`.
    """
    scores = []
    for index in torch.split(everyone(site).stream, 256):
        batch = site.train.cut(index)
        p = judged(site.probabilities(batch.image), undo)
        scores.append(entropy(p) if excludes(site) else binary_entropy(p, unknown_labels(batch)))
    sizes = split_sizes(len(site.train), uncertain, confident)
    return Parts(*split(torch.cat(scores), *sizes))


def judged(p: Tensor, undo: Tensor | None) -> Tensor:
    """Return probabilities as thresholds and entropies read them."""
    return p if undo is None else unweighted(p, undo.to(p.device))


def told_or_own(site: Site, weight: Tensor | None) -> Tensor | None:
    """Return the positive weights a site was told; its own, with a warning, if it has lost them."""
    if weight is not None or excludes(site):
        return weight
    LOG.warning(
        "site '%s' has lost the class weights of the federation; it weighs its labels by its own "
        "counts until it is told again",
        site.name,
    )
    return site.imbalance()


class Lesson:
    """One round at a site: the loss of each step, and which image was taken to show which label.

    Args:
        site: Where; its main network is the student.
        teacher: The network that makes pseudo labels; it follows elsewhere.
        parts: Which images are blended.
        terms: How labels and pseudo labels are weighed.
        sure: Thresholds for pseudo labels.
        looser: Thresholds for uncertain images that are to be blended.
        blend: How to blend; `None` for not at all.
        undo: The positive weights to take out of the teacher's probabilities; `None` leaves them in.
        everything: Count annotators' positives of all images, also of those that are not drawn.
    """

    def __init__(
        self,
        site: Site,
        teacher: nn.Module,
        parts: Parts,
        terms: Terms,
        *,
        sure: Thresholds,
        looser: Thresholds,
        blend: Blend | None,
        undo: Tensor | None = None,
        everything: bool = False,
    ) -> None:
        self.site = site
        self.teacher = teacher.eval()
        self.terms = terms
        self.sure, self.looser, self.blend, self.undo = sure, looser, blend, undo
        self.exclusive = excludes(site)
        self.shows = marked_present(site) & everything
        self.views = site.generator("weak and strong views")
        self.shares = site.generator("blend")
        count = min(blend.count, len(parts.uncertain), len(parts.confident)) if blend else 0
        self.pairs = self._pairs(parts, count) if count else None

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of plain images: labels, sure pseudo labels, and blends (Sec. 2.3)."""
        weak, strong = weak_view(batch.image, self.views), strong_view(batch.image, self.views)
        if self.blend is None or self.pairs is None:
            (p,) = self._ask(weak)
            logits = self.site.learner.logits(self.site.network, strong)
            return self._labelled(logits, batch, p)
        confident, uncertain = next(self.pairs)
        p, p_confident, p_uncertain = self._ask(weak, confident.image, uncertain.image)
        share = draw_share(self.blend.alpha, self.shares)
        blended = mixed(confident.image, uncertain.image, share)
        logits = self.site.learner.logits(self.site.network, torch.cat((strong, blended)))
        one = self._completed(confident, p_confident, self.sure)
        two = self._completed(uncertain, p_uncertain, self.looser)
        soft = Said(*mixed_labels(one.target, one.told, two.target, two.told, share))
        loss = self._labelled(logits[: len(strong)], batch, p)
        return loss + self.blend.lam * self._blended(logits[len(strong) :], soft)

    def positives(self) -> Tensor:
        """Return per label how many images were taken to show it, each image counted once."""
        return self.shows.sum(0).cpu()

    def _labelled(self, logits: Tensor, batch: Batch, p: Tensor) -> Tensor:
        told = said_by_annotator(batch, self.exclusive)
        guess = said_by_teacher(p, batch, self.sure, self.exclusive)
        self.shows[batch.index] = (told.target > 0) | (guess.target > 0)  # the last decision wins
        if self.exclusive and self.terms.together:
            said = told.or_else(guess)
            return class_loss(logits, said.target, said.told, float(len(logits)))
        if self.exclusive:
            unlabelled = (~told.told[:, 0]).sum().clamp(min=1).to(logits.dtype)
            known = labelled_cross_entropy(logits, told.target)
            return known + class_loss(logits, guess.target, guess.told, unlabelled)
        if self.terms.soft:
            guess = guess.or_else(Said(p, unknown_labels(batch)))
        known = entry_loss(logits, told.target, told.told, self.terms.weights)
        of_all = replace(self.terms.weights, positive=None)
        return known + entry_loss(logits, guess.target, guess.told, of_all)

    def _blended(self, logits: Tensor, soft: Said) -> Tensor:
        if self.exclusive:
            return class_loss(logits, soft.target, soft.told, float(len(logits)))
        return entry_loss(logits, soft.target, soft.told)

    def _completed(self, batch: Batch, p: Tensor, limits: Thresholds) -> Said:
        guess = said_by_teacher(p, batch, limits, self.exclusive)
        return said_by_annotator(batch, self.exclusive).or_else(guess)

    @torch.no_grad()
    def _ask(self, *images: Tensor) -> tuple[Tensor, ...]:
        p = self.site.learner.probabilities(self.teacher, torch.cat(images))
        return torch.split(judged(p, self.undo), [len(part) for part in images])

    def _pairs(self, parts: Parts, count: int) -> Iterator[tuple[Batch, Batch]]:
        """Yield confident and uncertain images without end, each in its own shuffled order."""
        streams = [
            (part, orders(len(part), count, 0, ENDLESS, self.site.generator(name)))
            for name, part in (("confident", parts.confident), ("uncertain", parts.uncertain))
        ]
        while True:
            one, two = (
                self.site.train.cut(part[next(order).to(part.device)]) for part, order in streams
            )
            yield one, two
