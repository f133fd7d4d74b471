"""FedAvg on image labels as one plain loop, into which tests put a method's own loss."""

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from consilia.declare import POOLED
from consilia.testing import toy_sites, toy_spec
from consilia.training.batch import orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from consilia.training.site import laid_out

LABELS = ["round", "square", "star"]
SITES = [
    {"name": "anna", "supervision": "image", "annotates": ["round", "square"]},
    {"name": "bo", "supervision": "image", "annotates": ["square"]},
    {"name": "cleo", "supervision": "image", "annotates": ["square", "star"]},
]


@dataclass
class Part:
    """A site's images, its labels, and where they are known; `weak` is one batch, augmented."""

    x: torch.Tensor
    y: torch.Tensor
    known: torch.Tensor
    marks: torch.Tensor
    weak: torch.Tensor | None = None

    @property
    def labeled(self):
        return [i for i in range(len(self.x)) if self.y[i].sum() > 0]


def spec_of(name, task="multi-label", settings=None, **changes):
    """Return a toy run of three sites that mark different labels."""
    training = {"augment": "none", "optimizer": "sgd", "learning_rate": 0.02, "momentum": 0.5}
    training |= changes.pop("training", {})
    method = {"name": name, "settings": settings or {}}
    table = {"labels": LABELS, "sites": SITES, "rounds": 2, **changes}
    return toy_spec(task, method=method, training=training, **table)


def parts_of(spec, pooled=False):
    """Return every site's part, or all of them as one."""
    found = {}
    for name, data in toy_sites(spec).items():
        known = torch.from_numpy(data.view.known_labels.copy())
        y = torch.from_numpy(data.view.target.copy()).float()
        marked = spec.federation.annotated_by(name)
        marks = torch.tensor([label in marked for label in spec.federation.labels])
        found[name] = Part(
            torch.from_numpy(data.train.image.copy()).float() / 255, y * known, known, marks
        )
    if not pooled:
        return found
    every = [found[name] for name in sorted(found)]
    joined = [torch.cat([getattr(p, key) for p in every]) for key in ("x", "y", "known")]
    return {POOLED: Part(*joined, torch.ones(len(LABELS), dtype=torch.bool))}


def new_network(spec, **changes):
    """Return the first network of a run."""
    learner = PlainLearner.of(spec.learner, spec.federation)
    with seeded(spec.seed, "network", "main"):
        return laid_out(PlainLearner(**{**learner.__dict__, **changes}).build())


def augmented(spec, x, randoms):
    """Return the images of a batch as the run file augments them, one by one."""
    left, up = torch.rand(3, len(x), generator=randoms)[:2] < 0.5
    if spec.training.augment == "none":
        return x
    assert spec.training.augment == "flips"
    flipped = [image.flip(-1) if left[i] else image for i, image in enumerate(x)]
    return torch.stack([image.flip(-2) if up[i] else image for i, image in enumerate(flipped)])


def federate(spec, parts, begin, *, rows="all", network=None):
    """Average `rounds` times; return the global weights and each site's last own.

    `begin(name, round, part, world, own)` returns the loss of (network, indices, part) and which
    images are trained on; `own` is what the site sent last. In a step `part.weak` is the batch.
    """
    net = network or new_network(spec)
    world = {k: v.clone() for k, v in net.state_dict().items()}
    moments, own = {}, {}
    for number in range(1, spec.rounds + 1):
        sent, counts = {}, {}
        for name in sorted(parts):
            part = parts[name]
            loss, used = begin(name, number, part, world, own.get(name))
            if not len(used):
                continue
            net.load_state_dict(world)
            net.train()
            t = spec.training
            sgd = torch.optim.SGD(
                net.parameters(), t.learning_rate, t.momentum, weight_decay=t.weight_decay
            )
            if name in moments:
                sgd.load_state_dict(moments[name])
            randoms = generator(spec.seed, name, number, "batches main")
            for positions in orders(len(used), t.batch, t.epochs, t.steps, randoms):
                index = torch.tensor(used)[positions]
                seen = replace(part, weak=augmented(spec, part.x[index], randoms))
                sgd.zero_grad()
                loss(net, index, seen).backward()
                sgd.step()
            moments[name] = copy.deepcopy(sgd.state_dict())
            sent[name] = {k: v.clone() for k, v in net.state_dict().items()}
            own[name], counts[name] = sent[name], len(used)
        world = average(world, sent, counts, parts, rows, spec.federation.exclusive)
    return world, own


def average(world, sent, counts, parts, rows, exclusive):
    result = {}
    for key, old in world.items():
        if not old.is_floating_point():
            result[key] = max(sent[s][key] for s in sent)
            continue
        if not key.startswith("head.") or rows == "all":
            total = sum(counts.values())
            result[key] = (sum(counts[s] * sent[s][key].double() for s in sent) / total).float()
            continue
        new = old.clone()
        for c in range(len(old)):
            n = {s: taught(parts[s], c, exclusive) for s in sent}
            if sum(n.values()):
                new[c] = sum(n[s] * sent[s][key][c].double() for s in sent) / sum(n.values())
        result[key] = new
    return result


def taught(part, c, exclusive):
    """Return how many images of a site know label c."""
    if not part.marks[c]:
        return 0
    return len(part.labeled) if exclusive else int(part.known[:, c].sum())


def known_bce(scores, y, known):
    """Return the binary cross-entropy of known entries, one by one."""
    terms = [
        F.softplus(-scores[i, c]) if y[i, c] else F.softplus(scores[i, c])
        for i in range(len(y))
        for c in range(y.shape[1])
        if known[i, c]
    ]
    return torch.stack(terms).mean() if terms else scores.sum() * 0


def labeled_ce(scores, y):
    """Return the cross-entropy of labeled images, one by one."""
    terms = [
        torch.logsumexp(scores[i], 0) - scores[i, int(y[i].argmax())]
        for i in range(len(y))
        if y[i].sum() > 0
    ]
    return torch.stack(terms).mean() if terms else scores.sum() * 0


def supervised(scores, y, known, exclusive):
    return labeled_ce(scores, y) if exclusive else known_bce(scores, y, known)


def close(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def garbled(data):
    """Replace every label that is not known by garbage, and the hidden truth too."""
    rng = np.random.default_rng(0)
    view = data.view
    noise = rng.integers(0, 2, view.target.shape).astype(np.uint8)
    target = np.where(view.known_labels, view.target, noise)
    train = replace(data.train, truth=rng.permutation(data.train.truth))
    return replace(data, train=train, view=replace(view, target=target))
