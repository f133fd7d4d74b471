"""What a method sees while it runs at a site."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from consilia.declare import Federation, SiteDeclaration
from consilia.errors import UsageError
from consilia.networks.layers import Chain, fuse
from consilia.ops.losses import ClassWeights, Weighs, label_counts, negatives_over_positives
from consilia.payload import Layout, PackedWeights, Packing, Weights
from consilia.training.augment import apply, draw, policy_of
from consilia.training.batch import Batch, ResidentCases
from consilia.training.capture import Captures
from consilia.training.learner import Learner, layout_of
from consilia.training.optimizers import OptimizerState
from consilia.training.seeds import generator, seeded
from consilia.training.settings import Training
from consilia.training.transfer import fetch, fill

LOG = logging.getLogger("consilia")
Precision = Literal["tf32", "float32", "bf16"]

#: The overlay that replaces the declared labels; others are a method's own (temporal targets).
LABELS = "labels"


class Workbench:
    """The network and the device that sites of one process share.

    Its sites run one after another, so one module is enough: weights are copied in place, and no module
    is built twice. Further networks (FedMix trains two) are built when a method first asks.
    """

    def __init__(
        self,
        learner: Learner,
        federation: Federation,
        device: torch.device,
        seed: int,
        *,
        capture: bool = False,
        compile_: bool = False,
        precision: Precision = "tf32",
        fused: bool = False,
    ) -> None:
        self.learner = learner
        self.federation = federation
        self.device = device
        self.seed = seed
        self.precision = precision
        #: Training steps recorded on a GPU; `None` where every step runs eagerly.
        self.captures: Captures | None = None
        #: Whether networks run on kernels of our own where these fit.
        self.fused = fused
        if device.type == "cuda":
            round_factors(precision)
            self.captures = Captures(compile_=compile_) if capture else None
        #: Called where the host would wait for the device, so that others may have it meanwhile.
        self.pause: Callable[[], None] = lambda: None
        self._networks: dict[str, nn.Module] = {}
        self._tensors: dict[str, dict[str, Tensor]] = {}
        self._packings: dict[tuple[str, ...], Packing] = {}
        self._site: str | None = None
        self.groups = learner.groups(self.network())
        self.layout: Layout = layout_of(self.groups, self.network(), federation)

    def network(self, name: str = "main") -> nn.Module:
        """Return the module of this name; its first weights depend on the name and the run's seed."""
        if name not in self._networks:
            with seeded(self.seed, "network", name):
                network = self.learner.build().to(self.device)
            self._networks[name] = laid_out(fuse(network) if self.fused else network)
            self._place(self._networks[name])
        return self._networks[name]

    def tensors(self, name: str = "main") -> Mapping[str, Tensor]:
        """Return the tensors of a network by their names in its state, themselves and not copies."""
        if name not in self._tensors:
            self._tensors[name] = self.network(name).state_dict(keep_vars=True)
        return self._tensors[name]

    def copied(self, name: str, groups: tuple[str, ...]) -> PackedWeights:
        """Return copies of a network's tensors, of some groups; where each goes is worked out once."""
        state = self.tensors(name)
        tensors = {key: state[key] for group in groups for key in self.groups[group]}
        if (name, *groups) not in self._packings:
            self._packings[name, *groups] = Packing.of(tensors)
        return fetch(tensors, self._packings[name, *groups])

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """Every network that has been built, by name."""
        return self._networks

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context in which networks and losses compute: float32, or bf16 by choice."""
        if self.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    def task_loss(self, batch: Batch, held: Mapping[str, Tensor], network: str = "main") -> Tensor:
        """Return the learner's supervised loss of a batch, with what an `Objective` holds."""
        return self.learner.loss(self.network(network), batch, ClassWeights.among(held))

    def enter(self, site: str) -> None:
        """Say whose images come next: a site's, or those of no site (a pool, a common test set)."""
        self._site = site
        for network in self._networks.values():
            self._place(network)

    def close(self) -> None:
        """Let go of what a device holds for this workbench alone; it is not used again."""
        if self.captures is not None:
            self.captures.forget()

    def _place(self, network: nn.Module) -> None:
        if self._site is not None:
            self.learner.place(network, self.federation, self._site)

    def start(self, name: str = "main", init: Path | None = None) -> dict[str, Tensor]:
        """Return the weights a run starts from: drawn from its seed, or read from a file."""
        with seeded(self.seed, "network", name):
            fresh = self.learner.build()
        if init is not None:
            fresh.load_state_dict(read_init(init, fresh.state_dict()))
        return {key: value.detach().clone() for key, value in fresh.state_dict().items()}


def round_factors(precision: Precision) -> None:
    """Let a GPU round the factors of products to TF32, or not; sums stay float32 (decision 0019)."""
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"


def images_at_once(size: Sequence[int], device: torch.device) -> int:
    """Return how many images to look at together: more on a GPU, where few small ones leave it idle."""
    if device.type != "cuda":
        return 32
    return max(32, min(256, 2**21 // math.prod(size)))


def laid_out(network: nn.Module) -> nn.Module:
    """Return the network with its weights in the order that computes fastest.

    Convolutions want channels last, on a GPU and on a CPU; PyTorch's group norm does not: a GPU would copy
    back and forth, and a CPU gains nothing. Our own does.
    """
    plain = not any(isinstance(module, Chain) and module.fused for module in network.modules())
    if plain and any(isinstance(module, nn.GroupNorm) for module in network.modules()):
        return network
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]  # torch


def read_init(path: Path, wanted: Weights) -> dict[str, Tensor]:
    """Return the start weights of a file: a network's own, or those in a checkpoint's server state.

    A file without a head, or with one for other labels, gives all but the head, which stays as drawn. A
    first layer for color images serves gray ones, summed over its channels.

    Args:
        path: A .safetensors file.
        wanted: The network's weights as drawn, whose names and shapes the file must have.
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
    found = summed_over_color(
        {name: value for name, value in inner.items() if name} or held, wanted
    )
    shapes = {
        name: [tuple(each[name].shape) if name in each else None for each in (found, wanted)]
        for name in sorted({*wanted, *found})
    }
    unfit = [name for name, (has, needs) in shapes.items() if has != needs]
    heads = {name for name in shapes if name.startswith("head.")}
    if unfit and heads.issuperset(unfit):
        return {name: wanted[name] if name in heads else found[name] for name in wanted}
    for name in unfit:
        has, needs = (f"shape {s}" if s is not None else "none" for s in shapes[name])
        msg = (
            f"learner.init '{path}' does not fit the network: of '{name}' it has {has} and the "
            f"network {needs}; start from a run with the same network and channels"
        )
        raise UsageError(msg)
    return found


def summed_over_color(found: Weights, wanted: Weights) -> dict[str, Tensor]:
    """Return weights whose kernels for three channels are summed where the network has one.

    A gray image given three times has the same scores from the one as from the other.
    """
    summed = {
        name: value.sum(1, keepdim=True)
        for name, value in found.items()
        if value.dim() == 4 and value.shape[1] == 3
        if name in wanted and tuple(wanted[name].shape) == (len(value), 1, *value.shape[2:])
    }
    for name in summed:
        LOG.warning(
            "learner.init has start weights for color images and these are gray; '%s' is summed over "
            "its three channels",
            name,
        )
    return {**found, **summed}


Pure = Callable[[Workbench, Batch, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Objective:
    """A loss that says which tensors it reads, so that a GPU can record it once for all sites.

    It is called with a batch, like any loss. The function must be pure: its value depends on the batch,
    on what it is handed and on the networks, never on Python values that change from call to call.
    A method of a frozen method object is recognised again in the next round and at the next site; so
    is a `functools.partial` of one.

    Attributes:
        function: Returns the loss of a batch; it is handed the workbench and the tensors by name.
        held: Tensors that stay the same while a site trains (an anchor, a weight that changes by round).
        rows: Tensors with one row per image of the site (pseudo labels); the function gets the batch's.
    """

    bench: Workbench
    function: Pure
    held: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        rows = {name: value[batch.index] for name, value in self.rows.items()}
        return self.function(self.bench, batch, {**self.held, **rows})


@dataclass
class Site:
    """A hospital taking part: its declaration, its training images and the tools to train.

    Attributes:
        optimizers: Optimiser states kept from the last round, by network name.
        weighs: What class weights weigh in the supervised loss.
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
    weighs: Weighs = "none"
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
        fill(self.bench.tensors(network), weights)

    def weights(self, *groups: str, network: str = "main") -> Weights:
        """Return copies of a network's tensors, of some groups or of all."""
        return self.bench.copied(network, groups or tuple(self.bench.groups))

    def views(self, purpose: str = "views") -> Batch:
        """Return every training image once, augmented as the run file says, as this round sees it."""
        whole = self.train.cut(torch.arange(len(self.train), device=self.bench.device))
        return apply(draw(policy_of(self.training), len(whole), self.generator(purpose)), whole)

    def probabilities(self, image: Tensor, network: str = "main") -> Tensor:
        """Return a network's probabilities in evaluation mode, without a gradient."""
        module = self.bench.network(network)
        module.eval()
        with torch.no_grad(), self.bench.arithmetic():
            parts = torch.split(image, images_at_once(image.shape[-2:], self.bench.device))
            return torch.cat([self.learner.probabilities(module, part) for part in parts])

    def foreground(self, network: str = "main") -> Tensor:
        """Return the first label's probability in every training image, not augmented."""
        return self.probabilities(self.train.image.float() / 255, network)[:, 0]

    def objective(
        self,
        function: Pure,
        held: Mapping[str, Tensor] | None = None,
        rows: Mapping[str, Tensor] | None = None,
        weights: ClassWeights | None = None,
    ) -> Objective:
        """Return a loss of this site from a pure function and the tensors it reads; see `Objective`.

        Class weights are the run file's, unless the method has its own.
        """
        weights = self.class_weights if weights is None else weights
        every = {**weights.named(), **(held or {})}

        def here(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: value.to(self.bench.device) for name, value in named.items()}

        return Objective(self.bench, function, here(every), here(rows or {}))

    def task_loss(self, batch: Batch) -> Tensor:
        """Return the learner's supervised loss of a batch on the main network."""
        return self.learner.loss(self.network, batch, self.class_weights)

    @property
    def class_weights(self) -> ClassWeights:
        """How the run file weighs labels here."""
        return self.weighed(self.weighs)

    def weighed(self, weighs: Weighs) -> ClassWeights:
        """Return negatives over positives per label on what is known here, read as told."""
        return ClassWeights.read(weighs, None if weighs == "none" else self.imbalance())

    def imbalance(self) -> Tensor | None:
        """Return negatives over positives per label on known entries; `None` for segmentation."""
        if self.train.segments:
            return None
        positives, negatives = label_counts(self.train.target, self.train.known_labels)
        return negatives_over_positives(positives.float(), negatives.float())

    def correct_labels(self, target: Tensor) -> None:
        """Replace the training targets from now on; the site remembers them as an overlay."""
        self.overlays = {**self.overlays, LABELS: target}
        self.train = self.train.corrected(target)
