"""MixUp under the learner's own loss."""

import numpy as np
import torch
from tests.methods.plain import CPU, lesion_sites, lesion_spec

from consilia.training.batch import ResidentCases
from consilia.training.blend import blended_loss
from consilia.training.learner import PlainLearner
from consilia.training.seeds import generator
from consilia.training.site import Site, Workbench


def site_and_batch():
    spec = lesion_spec("fedavg", 1)
    data = lesion_sites(spec)["cleo"]
    bench = Workbench(PlainLearner.of(spec.learner, spec.federation), spec.federation, CPU, 0)
    train = ResidentCases.of(data.train, data.view, CPU)
    site = Site("cleo", spec.federation, bench, train, spec.training, 0, 1, 1)
    return site, train.cut(torch.arange(4))


def test_one_prediction_is_judged_by_both_labels():
    site, batch = site_and_batch()
    found = blended_loss(site, batch, 0.7, generator("blend"))
    randoms = generator("blend")
    seed = int(torch.randint(0, 2**62, (1,), generator=randoms))
    lam = np.random.default_rng(seed).beta(0.7, 0.7)
    order = torch.randperm(4, generator=randoms)
    q = site.network(lam * batch.image + (1 - lam) * batch.image[order]).softmax(1)[:, 1]
    total = 0.0
    for share, target in ((lam, batch.target), (1 - lam, batch.target[order])):
        dice = [
            2 * (q[i] * target[i]).sum() / (q[i].sum() + target[i].sum() + 1e-4) for i in range(4)
        ]
        total += share * (1 - sum(dice) / 4)
    torch.testing.assert_close(found, total)


def test_without_alpha_nothing_is_blended():
    site, batch = site_and_batch()
    assert torch.equal(blended_loss(site, batch, 0.0, generator("blend")), site.task_loss(batch))
