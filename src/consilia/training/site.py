"""What a method sees while it runs at a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from consilia.declare import Federation, SiteDeclaration
from consilia.errors import UsageError
from consilia.ops.losses import positive_weights
from consilia.payload import Layout, Weights
from consilia.training.augment import POLICIES, apply, draw
from consilia.training.batch import Batch, ResidentCases
from consilia.training.learner import Learner, layout_of
from consilia.training.seeds import generator, seeded
from consilia.training.settings import Training

#: The overlay that replaces the declared labels; others are a method's own (temporal targets).
LABELS = "labels"

#: Per parameter, what its optimiser remembers (Adam's moments and step count).
OptimizerState = Mapping[str, Mapping[str, Tensor]]


class Workbench:
    """The network and the device that all sites of one process share.

    Sites run one after another, so one module is enough: weights are copied in place, and no module
    is built twice. Further networks (FedMix trains two) are built when a method first asks.
    """

    def __init__(
        self, learner: Learner, federation: Federation, device: torch.device, seed: int
    ) -> None:
        self.learner = learner
        self.federation = federation
        self.device = device
        self.seed = seed
        self._networks: dict[str, nn.Module] = {}
        self._site: str | None = None
        self.groups = learner.groups(self.network())
        self.layout: Layout = layout_of(self.groups, self.network(), federation)

    def network(self, name: str = "main") -> nn.Module:
        """Return the module of this name; its first weights depend on the name and the run's seed."""
        if name not in self._networks:
            with seeded(self.seed, "network", name):
                self._networks[name] = self.learner.build().to(self.device)
            self._place(self._networks[name])
        return self._networks[name]

    def enter(self, site: str) -> None:
        """Make a site the one whose images come next."""
        self._site = site
        for network in self._networks.values():
            self._place(network)

    def _place(self, network: nn.Module) -> None:
        if self._site in self.federation.sites:
            self.learner.place(network, self.federation, self._site)

    def start(self, name: str = "main", init: Path | None = None) -> dict[str, Tensor]:
        """Return the weights a run starts from: drawn from its seed, or read from a file."""
        with seeded(self.seed, "network", name):
            fresh = self.learner.build()
        if init is not None:
            fresh.load_state_dict(read_init(init, fresh.state_dict()))
        return {key: value.detach().clone() for key, value in fresh.state_dict().items()}


def read_init(path: Path, wanted: Weights) -> dict[str, Tensor]:
    """Return the start weights of a file: a network's own, or those in a checkpoint's server state.

    Args:
        path: A .safetensors file.
        wanted: The network's weights, whose names and shapes the file must have.
    """
    try:
        held = load_file(path)
    except FileNotFoundError:
        msg = f"learner.init is '{path}', but there is no such file; paths begin where you run this"
        raise UsageError(msg) from None
    except (OSError, SafetensorError):
        msg = f"learner.init '{path}' is not a .safetensors file of weights; name another one"
        raise UsageError(msg) from None
    inner = {name.partition("weights/")[2]: value for name, value in held.items()}
    found = {name: value for name, value in inner.items() if name} or held
    for name in sorted({*wanted, *found}):
        shapes = [tuple(each[name].shape) if name in each else None for each in (found, wanted)]
        if shapes[0] != shapes[1]:
            has, needs = (f"shape {shape}" if shape is not None else "none" for shape in shapes)
            msg = (
                f"learner.init '{path}' does not fit the network: of '{name}' it has {has} and the "
                f"network {needs}; start from a run with the same network, labels and channels"
            )
            raise UsageError(msg)
    return found


@dataclass
class Site:
    """A hospital taking part: its declaration, its training images and the tools to train.

    Attributes:
        optimizers: Optimiser states kept from the last round, by network name.
        overlays: Corrected labels that replace what was declared, by name; the site keeps them.
    """

    name: str
    federation: Federation
    bench: Workbench
    train: ResidentCases
    training: Training
    seed: int
    round: int
    rounds: int
    weigh_positives: bool = False
    optimizers: dict[str, OptimizerState] = field(default_factory=dict)
    overlays: dict[str, Tensor] = field(default_factory=dict)

    @property
    def declaration(self) -> SiteDeclaration:
        """What this site promised about its annotations."""
        return self.federation[self.name]

    @property
    def marks(self) -> Tensor:
        """Whether this site marks each label; a pool of sites marks all."""
        names = self.federation.labels
        if self.name not in self.federation.sites:
            return torch.ones(len(names), dtype=torch.bool)
        marked = self.federation.annotated_by(self.name)
        return torch.tensor([name in marked for name in names])

    @property
    def network(self) -> nn.Module:
        """The main network."""
        return self.bench.network()

    @property
    def learner(self) -> Learner:
        """The network's loss and predictions."""
        return self.bench.learner

    def generator(self, purpose: str) -> torch.Generator:
        """Return random numbers of this site, this round and this purpose alone."""
        return generator(self.seed, self.name, self.round, purpose)

    def load(self, weights: Weights, network: str = "main") -> None:
        """Copy weights into a network, in place; tensors that are not named stay as they are."""
        state = self.bench.network(network).state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                state[name].copy_(value)

    def weights(self, *groups: str, network: str = "main") -> dict[str, Tensor]:
        """Return copies of a network's tensors, of some groups or of all."""
        state = self.bench.network(network).state_dict()
        chosen = groups or tuple(self.bench.groups)
        return {
            name: state[name].detach().to("cpu", copy=True)
            for group in chosen
            for name in self.bench.groups[group]
        }

    def views(self, purpose: str = "views") -> Batch:
        """Return every training image once, augmented as the run file says, as this round sees it."""
        whole = self.train.cut(torch.arange(len(self.train), device=self.bench.device))
        return apply(
            draw(POLICIES[self.training.augment], len(whole), self.generator(purpose)), whole
        )

    def probabilities(self, image: Tensor, network: str = "main") -> Tensor:
        """Return a network's probabilities in evaluation mode, without a gradient."""
        module = self.bench.network(network)
        module.eval()
        with torch.no_grad():
            parts = [self.learner.probabilities(module, part) for part in torch.split(image, 32)]
        return torch.cat(parts)

    def foreground(self, network: str = "main") -> Tensor:
        """Return the first label's probability in every training image, not augmented."""
        return self.probabilities(self.train.image.float() / 255, network)[:, 0]

    def task_loss(self, batch: Batch) -> Tensor:
        """Return the learner's supervised loss of a batch on the main network."""
        return self.learner.loss(self.network, batch, self.positive_weight)

    @property
    def positive_weight(self) -> Tensor | None:
        """Negatives over positives per label on this site's known entries, where the run asks for it."""
        if not self.weigh_positives or self.train.segments:
            return None
        known = self.train.known_labels
        target = self.train.target.float()
        known = torch.ones_like(target) if known is None else known.float()
        return positive_weights((target * known).sum(0), ((1 - target) * known).sum(0))

    def correct_labels(self, target: Tensor) -> None:
        """Replace the training targets from now on; the site remembers them as an overlay."""
        self.overlays = {**self.overlays, LABELS: target}
        self.train = self.train.corrected(target)
