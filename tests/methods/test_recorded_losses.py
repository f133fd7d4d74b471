"""A GPU may record a method's step once and replay it: the losses must not change between calls.

As in `tests/training/test_capture.py`, a recorded step is run here on the fixed memory of a graph.
"""

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.methods.averaging import Down
from consilia.methods.incomplete.fedcorr import Probe
from consilia.methods.incomplete.rmd import Down as Both
from consilia.methods.partial.fssl import Teach
from consilia.testing import toy_sites
from consilia.training.batch import ResidentCases
from consilia.training.capture import Captures
from consilia.training.site import Site
from tests.methods.plain import lesion_sites, lesion_spec
from tests.methods.plain_labels import spec_of
from tests.training.test_capture import RATE, Replayed

LOOSE = {"threshold": 0.36, "high": 0.51, "low": 0.49}
CASES = {
    "moon": {"width": 8},
    "fedrs": {},
    "fedpu": {},
    "fssl": LOOSE,
    "fixmatch": LOOSE,
    "mixup-pme": {},
}
ON_THE_HOST = {"fixmatch", "mixup-pme"}


def trained(name, task, recorder):
    """Return what two sites send in two rounds, eagerly or by recorded steps."""
    spec = spec_of(name, task, CASES[name])
    spec = spec.model_copy(
        update={"training": spec.training.model_copy(update={"epochs": 4, "learning_rate": RATE})}
    )
    method = make_method(name, CASES[name])
    bench = make_bench(spec, method, spec.federation)
    if recorder is not None:
        bench.captures = Captures(recorder)
    data, sent, memories, optimizers = toy_sites(spec), [], {}, {}
    start = bench.start()
    for round_ in (1, 2):
        for site_name in ("anna", "cleo"):
            held = data[site_name]
            train = ResidentCases.of(held.train, held.view, bench.device, spec.federation.exclusive)
            site = Site(
                site_name,
                spec.federation,
                bench,
                train,
                spec.training,
                spec.seed,
                round_,
                2,
                optimizers=optimizers.get(site_name, {}),
            )
            down = Teach(start) if name == "fssl" else Down(start)
            up, memories[site_name] = method.local_update(down, memories.get(site_name), site)
            optimizers[site_name] = site.optimizers
            sent.append({k: v.clone() for k, v in up.weights.items()})
    return sent


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_step_does_what_the_eager_one_does(name):
    task = "single-label" if name == "fedpu" else "multi-label"
    recorder = Replayed()
    eager, recorded = trained(name, task, None), trained(name, task, recorder)
    assert (recorder.recorded == 0) == (name in ON_THE_HOST)
    for one, other in zip(eager, recorded, strict=True):
        for key in one:
            assert torch.equal(one[key], other[key]), key


INCOMPLETE = {"elr": {"beta": 0.7}, "nr-dice": {}, "fedcorr": {}, "rmd": {"distill": 0.1}}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_what_a_loss_keeps_or_draws_is_not_spent_on_recording(name):
    """A warm-up runs a step that does not count: temporal targets and generators must not see it."""
    spec = lesion_spec(name, 1, INCOMPLETE[name], training={"epochs": 24, "learning_rate": RATE})
    method = make_method(name, INCOMPLETE[name])
    data, sent = lesion_sites(spec)["anna"], []
    for captures in (None, Captures(Replayed())):
        bench = make_bench(spec, method, spec.federation)
        bench.captures = captures
        train = ResidentCases.of(data.train, data.view, bench.device)
        site = Site("anna", spec.federation, bench, train, spec.training, spec.seed, 1, 1)
        start = bench.start()
        downs = {"fedcorr": Probe(start, 0.0), "rmd": Both(start, start, 0.1, 1.0, bent=False)}
        up, _ = method.local_update(downs.get(name, Down(start)), None, site)
        sent.append(up.first if name == "rmd" else up.weights)
        sent[-1] = {**sent[-1], **site.overlays}
    for key, value in sent[0].items():
        assert torch.equal(value, sent[1][key]), key
