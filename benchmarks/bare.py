"""The arithmetic that a method needs at a site, as a careful researcher would write it in one script.

Each function makes one round's local work: forward and backward passes on the same batches as the method,
with plain PyTorch around them, and returns the weights it comes to. Only formulas are shared with the
package (`consilia.ops`, drawn views); its loops, sites, learners and messages are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from consilia.ops.contrast import model_contrast
from consilia.ops.dual import proposal, proposal_loss
from consilia.runs.spec import RunSpec
from consilia.training.batch import ResidentCases, orders
from consilia.training.seeds import derive, generator
from consilia.training.site import images_at_once
from consilia.training.strong import strong_view, weak_view

Weights = dict[str, Tensor]
#: What a batch costs: its images and targets, flipped, and where they are at the site.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Place:
    """What a bare loop starts from: networks of the method's kind, images, and what came down."""

    spec: RunSpec
    site: str
    round: int
    cases: ResidentCases
    networks: dict[str, nn.Module]
    down: Any
    memory: Any

    @property
    def network(self) -> nn.Module:
        """The network that is trained."""
        return self.networks["main"]

    def randoms(self, purpose: str) -> torch.Generator:
        """Return the random numbers that the method draws for a purpose."""
        return generator(self.spec.seed, self.site, self.round, purpose)

    def seed_layers(self, *purpose: str) -> None:
        """Seed what is drawn inside losses."""
        torch.manual_seed(derive(self.spec.seed, self.site, self.round, *purpose))


def load(network: nn.Module, weights: Weights) -> None:
    """Put weights into a network."""
    network.load_state_dict(weights)


def copied(network: nn.Module) -> Weights:
    """Return a copy of a network's weights, as it would be sent."""
    return {name: value.clone() for name, value in network.state_dict().items()}


def flipped(chance: Tensor, *parts: Tensor) -> list[Tensor]:
    """Return images and targets, each flipped left-right and up-down by chance."""
    chance = chance.to(parts[0].device)
    for axis, drawn in ((-1, chance[0]), (-2, chance[1])):
        pick = drawn < 0.5
        parts = tuple(
            torch.where(pick.view(-1, *[1] * (x.dim() - 1)), x.flip(axis), x) for x in parts
        )
    return list(parts)


def batches(
    place: Place, randoms: torch.Generator, used: Tensor | None = None, *, whole: bool = False
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield images, targets and positions, augmented as the run file says (flips, or not at all)."""
    training, cases = place.spec.training, place.cases
    used = torch.arange(len(cases)) if used is None else used
    steps = None if whole else training.steps
    drawn = orders(len(used), training.batch, 1, steps, randoms)
    plan = [(used[part], torch.rand(3, len(part), generator=randoms)) for part in drawn]
    if cases.image.is_cuda:  # once for all batches, so that no step waits
        plan = [(index.to(cases.image.device), chance.cuda()) for index, chance in plan]
    for index, chance in plan:
        x, y = cases.image[index].float() / 255, cases.target[index]
        if training.augment == "flips" and y.dim() == 3:
            x, y = flipped(chance, x, y)
        elif training.augment == "flips":
            (x,) = flipped(chance, x)
        yield x, y, index


def train(
    place: Place,
    loss: Loss,
    network: str = "main",
    after: Callable[[], None] | None = None,
    stream: Iterator[tuple[Tensor, Tensor, Tensor]] | None = None,
) -> None:
    """Train a network by Adam."""
    module, training = place.networks[network], place.spec.training
    module.train()
    adam = torch.optim.Adam(
        module.parameters(),
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        betas=training.betas,
        fused=True,
    )
    stream = stream or batches(place, place.randoms(f"batches {network}"))
    place.seed_layers("layers", network)
    total = torch.zeros((), device=place.cases.image.device)
    for x, y, index in stream:
        adam.zero_grad()
        value = loss(x, y, index)
        value.backward()  # type: ignore[no-untyped-call]
        adam.step()
        if after is not None:
            after()
        total += value.detach()
    float(total)


@torch.no_grad()
def infer(network: nn.Module, image: Tensor) -> Tensor:
    """Return the scores of many images, some at a time."""
    network.eval()
    parts = torch.split(image, images_at_once(image.shape[-2:], image.device))
    return torch.cat([network(part) for part in parts])


# --- losses ---


def foreground(scores: Tensor) -> Tensor:
    """Return the probability of the first label, from its own scores or beside those of the background."""
    return scores[:, 0].sigmoid() if scores.shape[1] == 1 else scores.softmax(1)[:, 1]


def dice_foreground(scores: Tensor, y: Tensor) -> Tensor:
    """Return FedIA's Dice loss."""
    p, y = foreground(scores).flatten(1), (y > 0).float().flatten(1)
    return (1 - 2 * (p * y).sum(1) / (p.sum(1) + y.sum(1) + 1e-4)).mean()


def dice_flat(p: Tensor, y: Tensor) -> Tensor:
    """Return FedMix's Dice loss of probabilities."""
    p, y = p.flatten(1), y.flatten(1)
    return (1 - (2 * (p * y).sum(1) + 1e-4) / (p.sum(1) + y.sum(1) + 1e-4)).mean()


def class_weights(cases: ResidentCases) -> tuple[Tensor, Tensor]:
    """Return which entries are known, and negatives over positives of each label."""
    target = cases.target.float()
    known = torch.ones_like(target) if cases.known_labels is None else cases.known_labels.float()
    positives, negatives = (target * known).sum(0), ((1 - target) * known).sum(0)
    usable = (positives > 0) & (negatives > 0)
    return known, torch.where(usable, negatives / positives.clamp(min=1), 1.0)


def masked_bce(scores: Tensor, y: Tensor, known: Tensor, weight: Tensor | None) -> Tensor:
    """Return the binary cross-entropy of known entries."""
    each = F.binary_cross_entropy_with_logits(
        scores, y * known, reduction="none", pos_weight=weight
    )
    return (each * known).sum() / known.sum().clamp(min=1)


# --- one round of each method at a site ---


def fedavg(place: Place) -> Weights:
    """Train; FedBN does the same arithmetic."""
    network = place.network
    load(network, place.down.weights)
    train(place, lambda x, y, _: dice_foreground(network(x), y))
    return copied(network)


def fedbn(place: Place) -> Weights:
    """Train on pixels' cross-entropy from the server's weights and the site's own normalisation."""
    network = place.network
    network.load_state_dict({**place.memory.own, **place.down.weights})
    train(place, lambda x, y, _: F.cross_entropy(network(x), y.long()))
    return copied(network)


def fedprox(place: Place) -> Weights:
    """Train with the squared distance to the weights that came down."""
    network = place.network
    load(network, place.down.weights)
    anchor = [place.down.weights[name] for name, _ in network.named_parameters()]

    def loss(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
        far = torch._foreach_norm(torch._foreach_sub([*network.parameters()], anchor))
        return dice_foreground(network(x), y) + 0.0005 * torch.stack(far).square().sum()

    train(place, loss)
    return copied(network)


def fedia(place: Place) -> Weights:
    """Train, then look once at every image."""
    network, cases = place.network, place.cases
    weights = fedavg(place)
    p, y = foreground(infer(network, cases.image.float() / 255)), cases.target > 0
    dice_foreground(torch.stack((1 - p, p), 1).log(), y)
    sure = p > 0.5
    float((sure & y).sum() / (sure | y).sum().clamp(min=1))
    return weights


def fedmix(place: Place) -> Weights:
    """Two inference passes over this round's views, and two networks trained on each other's labels."""
    first, second = place.networks["main"], place.networks["second"]
    load(first, place.down.first)
    load(second, place.down.second)
    cases = place.cases
    chance = torch.rand(3, len(cases), generator=place.randoms("views"))
    (view,) = flipped(chance, cases.image.float() / 255)
    guesses = [(infer(network, view).sigmoid() > 0.5).float() for network in (first, second)]
    for name, network, labels in (("main", first, guesses[1]), ("second", second, guesses[0])):
        randoms = place.randoms(f"batches {name}")
        training = place.spec.training
        parts = orders(len(cases), training.batch, 1, training.steps, randoms)

        def loss(
            x: Tensor, y: Tensor, _: Tensor, module: nn.Module = network
        ) -> Tensor:  # bound here, for the loop goes on
            return dice_flat(module(x).sigmoid(), y)

        train(place, loss, name, stream=((view[part], labels[part], part) for part in parts))
    copied(second)
    return copied(first)


def fedmix_masks(place: Place) -> Weights:
    """Where there are masks: two networks trained."""
    for name, weights in (("main", place.down.first), ("second", place.down.second)):
        network = place.networks[name]
        load(network, weights)

        def loss(
            x: Tensor, y: Tensor, _: Tensor, module: nn.Module = network
        ) -> Tensor:  # bound here, for the loop goes on
            return dice_flat(module(x).sigmoid(), y.float())

        train(place, loss, name)
    copied(place.networks["second"])
    return copied(place.network)


def fedst(place: Place) -> Weights:
    """In each step, look at the batch, then train on a second view of it."""
    network = place.network
    load(network, place.down.weights)

    def loss(x: Tensor, _: Tensor, __: Tensor) -> Tensor:
        network.eval()
        with torch.no_grad():
            guess = network(x).sigmoid()
        network.train()
        gamma = 2.0 * torch.rand(len(x), 1, 1, 1)
        p = network(x.clamp(min=1e-6) ** gamma).sigmoid()
        sure = (guess > 0.9) | (guess < 0.1)
        each = F.binary_cross_entropy(p, (guess > 0.5).float(), reduction="none")
        value: Tensor = (each * sure).sum() / sure.sum().clamp(min=1)
        return value

    train(place, loss)
    return copied(network)


def mixed(
    place: Place,
    own: Weights,
    server: Weights,
    share: Weights,
    stream: list[tuple[Tensor, Tensor, Tensor]],
    loss: Loss,
) -> Weights:
    """Learn how far to follow the server: forward and backward, and one step of the shares."""
    network = place.network
    named = {name: p for name, p in network.named_parameters() if name in share}
    buffers = {name: b.clone() for name, b in network.named_buffers()}
    device = place.cases.image.device
    own, server = ({n: each[n].to(device) for n in named} for each in (own, server))
    share = {name: share[name].to(device, copy=True) for name in named}

    def mix() -> None:
        with torch.no_grad():
            for name, p in named.items():
                p.copy_(torch.lerp(own[name], server[name], share[name]))

    mix()
    network.train()
    place.seed_layers("shares")
    for x, y, index in stream:
        slopes = torch.autograd.grad(loss(x, y, index), [*named.values()], allow_unused=True)
        for name, slope in zip(named, slopes, strict=True):
            if slope is not None:
                share[name] = (share[name] - slope * (server[name] - own[name])).clamp(0, 1)
        mix()
    network.load_state_dict(buffers, strict=False)
    return share


def fedala(place: Place) -> Weights:
    """One pass over four fifths of the images for the shares, then train."""
    network, memory = place.network, place.memory
    load(network, place.down.weights)

    def loss(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
        return F.cross_entropy(network(x), y.long())

    randoms = place.randoms("shares")
    count = int(0.8 * len(place.cases))
    used = torch.arange(len(place.cases))
    used = used[torch.randperm(len(used), generator=randoms)[:count]]
    stream = [*batches(place, randoms, used, whole=True)]
    mixed(place, memory.own, place.down.weights, memory.follow, stream, loss)
    train(place, loss)
    return copied(network)


def fedlppa(place: Place) -> Weights:
    """Two batches for the shares of both decoders, then train encoder, prompts and decoders."""
    network, down, memory = place.network, place.down, place.memory
    network.load_state_dict({**down.shared, **down.main, **down.aux}, strict=False)

    def loss(x: Tensor, y: Tensor, _: Tensor) -> Tensor:
        main, auxiliary = network.both(x)  # type: ignore[operator]  # nn.Module
        known = 0.5 * F.cross_entropy(main, y.long()) + 0.5 * F.cross_entropy(auxiliary, y.long())
        p, q = main.softmax(1), auxiliary.softmax(1)
        proposed = proposal(p, q, 0.7 + 0.3 * torch.rand(()))
        return known + 0.25 * (proposal_loss(p, proposed) + proposal_loss(q, proposed))

    stream = [*batches(place, place.randoms("shares"), whole=True)][:2]
    own, server = {**memory.main, **memory.aux}, {**down.main, **down.aux}
    mixed(place, own, server, memory.follow, stream, loss)
    train(place, loss)
    return copied(network)


def moon(place: Place) -> Weights:
    """Train, with two more networks looking at every batch."""
    network = place.network
    others = [place.networks["global"].eval(), place.networks["previous"].eval()]
    for module, weights in zip(
        (network, *others),
        (place.down.weights, place.down.weights, place.memory.previous),
        strict=True,
    ):
        load(module, weights)
    known, weight = class_weights(place.cases)

    def loss(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        z = network.features(x)  # type: ignore[operator]  # nn.Module
        with torch.no_grad():
            near, far = (module.features(x) for module in others)  # type: ignore[operator]
        task = masked_bce(network.head(z), y.float(), known[index], weight)  # type: ignore[operator]
        return task + model_contrast(z, near, far, 0.5)

    train(place, loss)
    return copied(network)


def sure_loss(scores: Tensor, p: Tensor, unknown: Tensor, high: float, low: float) -> Tensor:
    """Return the loss of what is surely present or surely absent among unknown labels."""
    told = ((p >= high) | (p <= low)) & unknown
    return masked_bce(scores, (p >= high).float(), told.float(), None)


def fixmatch(place: Place) -> Weights:
    """In each step, train on known labels of a weak view and on sure guesses in a strong one."""
    network, cases = place.network, place.cases
    load(network, place.down.weights)
    known, weight = class_weights(cases)
    randoms = place.randoms("strong views")

    def loss(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        scores = network(x)
        task = masked_bce(scores, y.float(), known[index], weight)
        p = scores.detach().sigmoid()
        again = network(strong_view(cases.image[index].float() / 255, randoms))
        return task + sure_loss(again, p, known[index] == 0, 0.85, 0.01)

    train(place, loss)
    return copied(network)


def fedlsm(place: Place) -> Weights:
    """One look at every image; in each step a teacher's look, a strong view, blends and an average."""
    network, teacher, cases = place.network, place.networks["teacher"], place.cases
    for module in (network, teacher):
        load(module, place.down.weights)
    known, weight = class_weights(cases)
    p = infer(network, cases.image.float() / 255).sigmoid()
    unsure = (F.binary_cross_entropy(p, p, reduction="none") * (1 - known)).sum(1)
    order = unsure.argsort(descending=True)
    uncertain, confident = order[:50], order[-50:]
    randoms, teacher = place.randoms("weak and strong views"), teacher.eval()
    blends = place.randoms("blend")

    def loss(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        weak, strong = weak_view(x, randoms), strong_view(x, randoms)
        one, two = (
            part[torch.randperm(len(part), generator=blends)[:4]] for part in (confident, uncertain)
        )
        a, b = cases.image[one].float() / 255, cases.image[two].float() / 255
        with torch.no_grad():
            guess = teacher(torch.cat((weak, a, b))).sigmoid()
        p, p_one, p_two = guess[: len(x)], guess[len(x) : -4], guess[-4:]
        scores = network(torch.cat((strong, 0.9 * a + 0.1 * b)))
        labels = 0.9 * (p_one > 0.85).float() + 0.1 * (p_two > 0.7).float()
        task = masked_bce(scores[: len(x)], y.float(), known[index], weight)
        task = task + sure_loss(scores[: len(x)], p, known[index] == 0, 0.85, 0.01)
        told = (p_one > 0.85) | (p_one < 0.01) | (p_two > 0.7) | (p_two < 0.005)
        return task + 0.1 * masked_bce(scores[len(x) :], labels, told.float(), None)

    def follow() -> None:
        with torch.no_grad():
            torch._foreach_lerp_([*teacher.parameters()], [*network.parameters()], 0.001)
            for mine, theirs in zip(teacher.buffers(), network.buffers(), strict=True):
                mine.copy_(theirs)

    train(place, loss, after=follow)
    return copied(network)


def fedpsl(place: Place) -> Weights:
    """Two half batches forward and backward, and backward once more through the first."""
    network, spec, cases = place.network, place.spec, place.cases
    load(network, place.down.weights)
    network.train()
    adam = torch.optim.Adam(network.parameters(), lr=spec.training.learning_rate, fused=True)
    known, weight = class_weights(cases)
    named = [*network.named_parameters()]
    names, body = zip(*((n, p) for n, p in named if not n.startswith("head.")), strict=True)
    head: Any = network.head

    def loss(scores: Tensor, index: Tensor) -> Tensor:
        return masked_bce(scores, cases.target[index].float(), known[index], weight)

    for x, _, index in batches(place, place.randoms("batches main")):
        fit, check = index.chunk(2)
        old = [p.detach().clone().requires_grad_() for p in head.parameters()]
        features = network.features(x[: len(fit)])  # type: ignore[operator]  # nn.Module
        slopes = torch.autograd.grad(
            loss(F.linear(features, *old), fit), [*body, *old], create_graph=True
        )
        virtual = [p - 1e-3 * g for p, g in zip(body, slopes, strict=False)]
        adam.zero_grad()
        for p, g in zip(head.parameters(), slopes[len(body) :], strict=True):
            p.grad = g.detach()
        adam.step()
        adam.zero_grad()
        kept = {n: b.clone() for n, b in network.named_buffers()}
        moved = {**dict(zip(names, virtual, strict=True)), **kept}
        moved |= {f"head.{n}": p.detach() for n, p in head.named_parameters()}
        scores = torch.func.functional_call(network, moved, (x[len(fit) :],))
        for p, g in zip(body, torch.autograd.grad(loss(scores, check), body), strict=True):
            p.grad = g
        adam.step()
    return copied(network)
