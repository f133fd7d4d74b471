"""Local training as a plain loop, for the second implementations of the personal methods."""

import math

import torch

from consilia.testing import toy_sites, toy_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learners import make_learner
from consilia.training.seeds import generator, seeded
from consilia.training.site import laid_out
from tests.methods.support import final_state

CPU = torch.device("cpu")
SPARSE = [
    {"name": "anna", "supervision": "scribble"},
    {"name": "bo", "supervision": "point"},
    {"name": "cleo", "supervision": "block"},
]


def spec_of(name, task="segmentation", settings=None, **changes):
    """Return a toy run by plain SGD, without augmentation and without anything kept but by the method."""
    training = {
        "augment": "none",
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "momentum": 0.5,
        "keep_optimizer": False,
        **changes.pop("training", {}),
    }
    method = {"name": name, "settings": settings or {}}
    return toy_spec(task, method=method, training=training, **changes)


def uneven(spec):
    """Return the sites' data, with fewer images at the second."""
    sites, few = toy_sites(spec), toy_sites(spec, train=5)
    return {name: few[name] if name == "bo" else sites[name] for name in sites}


class Plain:
    """A network, every site's images, and a loop over batches."""

    def __init__(self, spec, sites, learner=None):
        self.spec = spec
        self.learner = learner or make_learner(spec.learner, spec.federation)
        with seeded(spec.seed, "network", "main"):
            self.net = laid_out(self.learner.build())
        self.start = self.state()
        self.cases = {
            name: ResidentCases.of(data.train, data.view, CPU, spec.federation.exclusive)
            for name, data in sorted(sites.items())
        }

    def state(self):
        return {name: value.clone() for name, value in self.net.state_dict().items()}

    def norm_names(self):
        kinds = (torch.nn.BatchNorm2d, torch.nn.GroupNorm)
        return {
            f"{where}.{name}"
            for where, layer in self.net.named_modules()
            if isinstance(layer, kinds)
            for name in layer.state_dict()
        }

    def task(self, batch):
        return self.learner.loss(self.net, batch)

    def steps(self, name):
        settings = self.spec.training
        return settings.steps or settings.epochs * math.ceil(len(self.cases[name]) / settings.batch)

    def train(self, name, number, loss=None, only=None, names=None, steps=None, purpose="batches"):
        """Train as the run file says; return the mean loss."""
        cases, settings = self.cases[name], self.spec.training
        every = dict(self.net.named_parameters())
        chosen = [every[key] for key in every if names is None or key in names]
        sgd = torch.optim.SGD(
            chosen,
            settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        used = torch.arange(len(cases)) if only is None else only
        randoms = generator(self.spec.seed, name, number, f"{purpose} main")
        plan = []
        for part in orders(len(used), settings.batch, settings.epochs, steps, randoms):
            plan.append(used[part])
            torch.rand(3, len(part), generator=randoms)  # the augmentation's draw
        self.net.train()
        total = 0.0
        with seeded(self.spec.seed, name, number, "layers", "main"):
            for index in plan:
                self.net.zero_grad()
                value = (loss or self.task)(cases.cut(index))
                value.backward()
                sgd.step()
                total += float(value.detach())
        return total / len(plan)

    def average(self, sent, names):
        """Average by number of images, in double precision."""
        n = {name: len(self.cases[name]) for name in sent}
        return {
            key: (sum(n[s] * sent[s][key].double() for s in sorted(sent)) / sum(n.values())).float()
            for key in names
        }


def kept(path, site, field):
    """Return what a site remembers under a field, by name."""
    prefix = f"memories/{site}/memory.safetensors:{field}/"
    state = final_state(path)
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def at_server(path, field="weights"):
    """Return what the server keeps under a field, by name."""
    prefix = f"server.safetensors:{field}/"
    state = final_state(path)
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def close(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], **{"rtol": 2e-4, "atol": 2e-6, **tolerance}
        )
