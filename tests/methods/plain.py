"""Plain pieces from which second implementations are written: torch and loops, no method code."""

from dataclasses import dataclass, field

import pytest
import torch
from safetensors.torch import load_file, save_file

from consilia.engines.inprocess import run_in_process
from consilia.testing import run_toy, toy_sites, toy_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator, seeded
from tests.methods.support import final_state, server_weights

CPU = torch.device("cpu")
NAMES = ("anna", "bo", "cleo")


def lesion_spec(method, rounds, settings=None, **changes):
    """Return a toy run of one label with masks that may miss some, unmoved images, plain descent.

    Unlike Adam, plain descent does not enlarge differences in the last digit.
    """
    training = {"augment": "none", "optimizer": "sgd", "learning_rate": 0.5}
    learner = {"network": "unet-tiny", "objective": "dice-foreground"}
    return toy_spec(
        labels=["round"],
        sites=[{"name": name, "supervision": "mask", "complete": False} for name in NAMES],
        rounds=rounds,
        method={"name": method, "settings": settings or {}},
        learner={**learner, **changes.pop("learner", {})},
        training={**training, **changes.pop("training", {})},
        **changes,
    )


def lesion_sites(spec):
    """Return sites of unequal size, two of which overlook whole objects."""
    sites = {**toy_sites(spec), "cleo": toy_sites(spec, train=7)["cleo"]}
    for name, missed in (("anna", 4), ("bo", 7)):
        sites[name].view.target[:missed] = 0
    return sites


def half_trained(path, objective="dice-foreground", steps=60):
    """Write first weights of a network that finds most objects, so that corrections have a sense."""
    spec = lesion_spec("fedavg", 1, learner={"objective": objective})
    run = Plain(spec, toy_sites(spec))
    adam = torch.optim.Adam(run.net.parameters(), 0.01)
    image, target = run.images("cleo"), run.labels["cleo"].long()
    for _ in range(steps):
        adam.zero_grad()
        dice_loss(run.scores(image), target).backward()
        adam.step()
    save_file(copied(run.net), path)
    return str(path)


@dataclass
class Plain:
    """A run in plain loops: networks, labels, gradient descent and averages written out."""

    spec: object
    sites: dict
    names: tuple = ("main",)
    labels: dict = field(default_factory=dict)

    def __post_init__(self):
        self.learner = PlainLearner.of(self.spec.learner, self.spec.federation)
        self.nets = {}
        for name in self.names:
            with seeded(self.spec.seed, "network", name):
                self.nets[name] = self.learner.build()
            if name == "main" and self.spec.learner.init:
                self.nets[name].load_state_dict(load_file(self.spec.learner.init))
        self.net = self.nets["main"]
        self.world = {n: copied(net) for n, net in self.nets.items()}
        self.labels = {n: torch.from_numpy(s.view.target.copy()) for n, s in self.sites.items()}

    def load(self):
        for name, net in self.nets.items():
            net.load_state_dict(self.world[name])

    def cases(self, site):
        found = ResidentCases.of(self.sites[site].train, self.sites[site].view, CPU)
        return found.corrected(self.labels[site])

    def images(self, site):
        return self.cases(site).image.float() / 255

    def scores(self, image, net=None):
        """Return two rows of scores, background first."""
        found = (net or self.net)(image)
        return found if found.shape[1] == 2 else torch.cat((torch.zeros_like(found), found), 1)

    def foreground(self, site):
        self.net.eval()
        with torch.no_grad():
            return self.scores(self.images(site)).softmax(1)[:, 1]

    def train(self, site, number, loss, drawn=True):
        """Train one epoch; `loss` gets images, labels and positions."""
        settings, cases = self.spec.training, self.cases(site)
        parameters = [p for net in self.nets.values() for p in net.parameters()]
        descent = torch.optim.SGD(
            parameters, settings.learning_rate, weight_decay=settings.weight_decay
        )
        for net in self.nets.values():
            net.train()
        randoms = generator(self.spec.seed, site, number, f"batches {' '.join(self.names)}")
        with seeded(self.spec.seed, site, number, "layers", *self.names):
            for index in orders(len(cases), settings.batch, 1, None, randoms):
                if drawn:
                    torch.rand(3, len(index), generator=randoms)  # the augmentation's draw
                descent.zero_grad()
                loss(self.images(site)[index], self.labels[site][index].long(), index).backward()
                descent.step()

    def sent(self, name="main"):
        return copied(self.nets[name])

    def average(self, sent, shares, name="main"):
        total = sum(shares.values())
        self.world[name] = {
            k: (sum(shares[s] * sent[s][k].double() for s in sorted(sent)) / total).to(v.dtype)
            for k, v in self.world[name].items()
        }

    @property
    def counts(self):
        return {name: len(site.train) for name, site in self.sites.items()}


def run_twice_with_a_stop(spec, sites, path, after):
    """Run whole, and again with a stop after a round; return both final states."""

    class StopError(Exception):
        pass

    def stop(line):
        if line["round"] == after:
            raise StopError

    run_toy(spec, path / "whole", sites)
    with pytest.raises(StopError):
        run_in_process(spec, path / "cut", data=path, sites=sites, listeners=(stop,))
    run_toy(spec, path / "cut", sites)
    return final_state(path / "cut"), final_state(path / "whole")


def copied(net):
    return {k: v.detach().clone() for k, v in net.state_dict().items()}


def dice_loss(scores, target):
    """Return FedIA's Dice loss of the label, image by image."""
    q, y = scores.softmax(1)[:, 1].flatten(1), (target > 0).float().flatten(1)
    return (1 - 2 * (q * y).sum(1) / (q.sum(1) + y.sum(1) + 1e-4)).mean()


def assert_close(path, expected, tensors="weights", rtol=1e-4, atol=1e-5):
    """Compare the weights of a run's server with those of the plain run."""
    if tensors == "weights":
        found = server_weights(path)
    else:
        prefix = f"server.safetensors:{tensors}/"
        found = {
            k.removeprefix(prefix): v for k, v in final_state(path).items() if k.startswith(prefix)
        }
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=atol)
