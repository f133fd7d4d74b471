"""What a method's own arithmetic costs, against a bare PyTorch loop that does the same and no more.

`python -m benchmarks.costs` (a minute on one core). FedPSL's second-order step: two half batches forward
and backward, and backward once more through the first. The loop must reach the same weights.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import write
from consilia.datasets.phantoms import load_phantom
from consilia.labels import LabelView
from consilia.labels.view import labels_known
from consilia.methods import make_method
from consilia.methods.averaging import Down
from consilia.networks.classifiers import SmallCNN
from consilia.runs.spec import RunSpec, read_spec
from consilia.training.batch import ResidentCases, orders
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator
from consilia.training.site import Site, Workbench

STEPS, BATCH, ALPHA = 8, 32, 1e-3
SITE = "kyoto"


def spec_of() -> RunSpec:
    """Return FedPSL's setup A on drawn films, a few steps of it."""
    changes = {
        "training.steps": STEPS,
        "training.batch": BATCH,
        "training.augment": "none",
        "engine.device": "cpu",
    }
    return read_spec("phantom-findings@a", changes)


def cases_of(spec: RunSpec) -> ResidentCases:
    """Return a site's images with the labels that it marks."""
    cases = load_phantom("phantom-findings", SITE)[0]
    assert cases.truth is not None
    labels = spec.federation.labels
    marked = tuple(labels.index(name) for name in spec.federation.annotated_by(SITE))
    view = LabelView(cases.truth, labels_known(len(cases), len(labels), marked))
    return ResidentCases.of(cases, view, torch.device("cpu"), exclusive=False)


def bare_loop(spec: RunSpec, bench: Workbench, cases: ResidentCases) -> dict[str, Tensor]:
    """Make the same steps as a careful researcher would write them in one script."""
    network = bench.learner.build()
    assert isinstance(network, SmallCNN)
    network.load_state_dict(bench.start())
    network.train()
    adam = torch.optim.Adam(network.parameters(), lr=spec.training.learning_rate, fused=True)
    target = cases.target.float()
    known = torch.ones_like(target) if cases.known_labels is None else cases.known_labels.float()
    positives = (target * known).sum(0)
    negatives = ((1 - target) * known).sum(0)
    usable = (positives > 0) & (negatives > 0)
    weight = torch.where(usable, negatives / positives.clamp(min=1), 1.0)
    names, body = zip(
        *((n, p) for n, p in network.named_parameters() if not n.startswith("head.")), strict=True
    )
    head = network.head

    def loss(logits: Tensor, index: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(
            logits, target[index] * known[index], reduction="none", pos_weight=weight
        )
        return (each * known[index]).sum() / known[index].sum()

    randoms = generator(spec.seed, SITE, 1, "batches main")
    drawn = orders(len(cases), BATCH, 1, STEPS, randoms)
    for index in [part for part in drawn if torch.rand(3, len(part), generator=randoms).numel()]:
        fit, check = index.chunk(2)
        x = cases.image[index].float() / 255
        old = [p.detach().clone().requires_grad_() for p in head.parameters()]
        train = loss(F.linear(network.features(x[: len(fit)]), *old), fit)
        steps = torch.autograd.grad(train, [*body, *old], create_graph=True)
        virtual = [p - ALPHA * g for p, g in zip(body, steps, strict=False)]
        adam.zero_grad()
        for p, g in zip(head.parameters(), steps[len(body) :], strict=True):
            p.grad = g.detach()
        adam.step()
        adam.zero_grad()
        kept = {n: b.clone() for n, b in network.named_buffers()}
        named = {**dict(zip(names, virtual, strict=True)), **kept}
        named |= {f"head.{n}": p.detach() for n, p in head.named_parameters()}
        logits = torch.func.functional_call(network, named, (x[len(fit) :],))
        for p, g in zip(body, torch.autograd.grad(loss(logits, check), body), strict=True):
            p.grad = g
        adam.step()
    return dict(network.state_dict())


def consilia_step(
    spec: RunSpec, bench: Workbench, cases: ResidentCases, **settings: object
) -> dict[str, Tensor]:
    """Make them as the method does at a site, from the received weights to those it sends."""
    site = Site(SITE, spec.federation, bench, cases, spec.training, spec.seed, 1, spec.rounds)
    method = make_method("fedpsl", settings)
    return dict(method.local_update(Down(bench.start()), None, site)[0].weights)


def main(repeats: int = 7) -> None:
    """Print and write the ratio; one thread and processor seconds, for the machine may be shared."""
    torch.set_num_threads(1)
    spec = spec_of()
    cases = cases_of(spec)
    learner = PlainLearner.of(spec.learner, spec.federation)
    bench = Workbench(learner, spec.federation, torch.device("cpu"), spec.seed)
    runs = {
        "bare": lambda: bare_loop(spec, bench, cases),
        "fedpsl": lambda: consilia_step(spec, bench, cases),
        "first_order": lambda: consilia_step(spec, bench, cases, second_order=False),
        "coupled": lambda: consilia_step(spec, bench, cases, decoupled=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    weights = {}
    for turn in range(repeats + 1):
        for name in [*runs][:: 1 if turn % 2 else -1]:
            began = time.process_time()
            weights[name] = runs[name]()
            if turn:
                seconds[name].append(time.process_time() - began)
    for key, value in weights["bare"].items():
        torch.testing.assert_close(weights["fedpsl"][key], value, atol=1e-4, rtol=1e-3)
    ratios = [a / b for a, b in zip(seconds["fedpsl"], seconds["bare"], strict=True)]
    result = {
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "pairs": repeats,
        "steps": STEPS,
        "batch": BATCH,
        "network": spec.learner.network,
        "against_coupled": statistics.median(seconds["fedpsl"])
        / statistics.median(seconds["coupled"]),
        "first_order_against_coupled": statistics.median(seconds["first_order"])
        / statistics.median(seconds["coupled"]),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "clock": "processor seconds, one thread",
    }
    write("second_order", result)
    print(
        f"FedPSL's second-order step / bare loop: {result['ratio']:.3f} (lowest {min(ratios):.3f}, "
        f"highest {max(ratios):.3f}, {repeats} pairs); against a plain step on the same images: "
        f"{result['against_coupled']:.2f}, first order {result['first_order_against_coupled']:.2f}"
    )


if __name__ == "__main__":
    main()
