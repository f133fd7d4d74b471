"""ADELE against a second, plain implementation, its limit case and its one correction."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import curve_fit

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method, why_not
from consilia.methods.averaging import Down
from consilia.testing import run_toy, toy_spec
from consilia.training.batch import ResidentCases
from consilia.training.site import Site
from tests.methods.plain import (
    Plain,
    assert_close,
    dice_loss,
    half_trained,
    lesion_sites,
    lesion_spec,
    run_twice_with_a_stop,
)
from tests.methods.support import assert_same_state, final_state, ledger_fields, server_weights
from tests.training.test_capture import RATE, Replayed, assert_replies_equal, replies


def slope(t, a, b, c):
    return a * b / c * np.exp(-(t**b) / c) * t ** (b - 1)


def has_slowed(values, r):
    while values and values[0] < 0.01:
        values = values[1:]
    if len(values) < 3:
        return False
    t = np.arange(1.0, len(values) + 1)
    (a, b, c), _ = curve_fit(
        lambda x, a, b, c: a * (1 - np.exp(-(x**b) / c)),
        t,
        values,
        p0=(1, 1, 1),
        method="trf",
        sigma=np.geomspace(1, 0.1, len(t)),
        absolute_sigma=True,
        bounds=([0, 0, 1e-6], [1, 1, np.inf]),
    )
    return abs(slope(t[-1], a, b, c) - slope(1.0, a, b, c)) / slope(1.0, a, b, c) > r


def at_scale(run, image, scale):
    size = (int(16 * scale), int(16 * scale))
    small = F.interpolate(image, size, mode="bilinear", align_corners=True) if scale != 1 else image
    scores = run.scores(small)
    if scale == 1:
        return scores
    return F.interpolate(scores, (16, 16), mode="bilinear", align_corners=True)


def plain_run(spec, sites, lam, tau, rho, r):
    run = Plain(spec, sites)
    history, corrected = {s: [] for s in sites}, {}
    for t in range(1, spec.rounds + 1):
        sent = {}
        for site in sorted(sites):
            run.load()
            if site not in corrected and has_slowed(history[site], r):
                run.net.eval()
                with torch.no_grad():
                    p = sum(
                        at_scale(run, run.images(site), s).softmax(1)[:, 1] for s in (0.7, 1, 1.5)
                    )
                y = run.labels[site]
                run.labels[site] = torch.where((y == 0) & (p / 3 > tau), 1, y).to(torch.uint8)
                corrected[site] = t

            def loss(image, target, index):
                scores = [at_scale(run, image, s) for s in (0.7, 1, 1.5)]
                supervised = sum(dice_loss(s, target) for s in scores) / 3
                p = [s.softmax(1) for s in scores]
                q = (sum(p) / 3).clamp(1e-3, 1 - 1e-3)
                total = 0.0
                for i in range(len(image)):
                    if q[i].max() >= rho:
                        total = total + sum((k[i] * (k[i].log() - q[i].log())).sum() for k in p) / 3
                return supervised + lam * total / (len(image) * 16 * 16)

            run.train(site, t, loss)
            if site not in corrected:
                guess, y = run.foreground(site) > 0.5, run.labels[site] > 0
                history[site].append(float((guess & y).sum() / max(1, int((guess | y).sum()))))
            sent[site] = run.sent()
        run.average(sent, run.counts)
    return run, corrected


def test_adele_is_its_algorithm(tmp_path):
    learner = {"init": half_trained(tmp_path / "init.safetensors")}
    settings = {"consistency": 0.5, "threshold": 0.5, "confidence": 0.6, "drop": 0.5}
    spec = lesion_spec("adele", 6, settings, learner=learner, training={"learning_rate": 0.1})
    sites = lesion_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    run, corrected = plain_run(spec, sites, 0.5, 0.5, 0.6, 0.5)
    assert corrected  # at least one site has corrected
    state = final_state(tmp_path / "run")
    for site in sites:
        key = f"memories/{site}/overlay-labels.safetensors:target"
        assert (key in state) == (site in corrected)
        if site in corrected:
            assert torch.equal(state[key], run.labels[site])
            assert state[key].float().mean() < 0.3  # by far not everywhere
            assert (state[key].numpy() >= sites[site].view.target).all()  # only 0 becomes 1
    assert any((run.labels[s].numpy() > sites[s].view.target).any() for s in corrected)
    assert_close(tmp_path / "run", run.world["main"])


def test_without_consistency_and_correction_it_is_fedavg_to_the_bit(tmp_path):
    training = {"augment": "flips", "optimizer": "adam", "learning_rate": 0.01}
    adele = lesion_spec("adele", 5, {"consistency": 0.0, "drop": 1.0}, training=training)
    fedavg = lesion_spec("fedavg", 5, training=training)
    run_toy(adele, tmp_path / "adele", lesion_sites(adele))
    run_toy(fedavg, tmp_path / "fedavg", lesion_sites(fedavg))
    assert_same_state(server_weights(tmp_path / "adele"), server_weights(tmp_path / "fedavg"))


def test_labels_are_corrected_in_evaluation_mode():
    spec = lesion_spec("adele", 1, learner={"network": "unet-fedlppa"})  # batch norm and dropout
    method, data = make_method("adele"), lesion_sites(spec)["anna"]
    bench, fresh = (make_bench(spec, method, spec.federation) for _ in range(2))
    cases = ResidentCases.of(data.train, data.view, bench.device)
    site = Site("anna", spec.federation, bench, cases, spec.training, 0, 1, 1)
    site.network.train()
    p = method.averaged(site)
    site.network.train()
    assert torch.equal(p, method.averaged(site))
    assert_same_state(site.network.state_dict(), fresh.network().state_dict())


def test_consistency_alone_changes_no_label(tmp_path):
    spec = lesion_spec("adele", 4, {"drop": 1.0})
    run_toy(spec, tmp_path / "run", lesion_sites(spec))
    assert not [name for name in final_state(tmp_path / "run") if "overlay-labels" in name]


def test_a_stopped_run_corrects_the_same(tmp_path):
    spec = lesion_spec("adele", 5, {"drop": 0.2, "threshold": 0.3, "consistency": 0.0})
    cut, whole = run_twice_with_a_stop(spec, lesion_sites(spec), tmp_path, 4)
    assert_same_state(cut, whole)
    assert [name for name in whole if "overlay-labels" in name]


def test_neither_the_curve_nor_the_labels_leave_a_site(tmp_path):
    spec = lesion_spec("adele", 5, {"drop": 0.2})
    run_toy(spec, tmp_path / "run", lesion_sites(spec))
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        ("Up", name) for name in ("weights", "images", "loss")
    }


def test_only_masks_of_one_label():
    assert "segments one label" in why_not("adele", toy_spec().federation)


@pytest.mark.parametrize("setting", ["threshold", "confidence", "drop"])
def test_parts_are_at_most_one(setting):
    from consilia.errors import UsageError

    with pytest.raises(UsageError, match="at most 1"):
        make_method("adele", {setting: 1.5})


@pytest.mark.parametrize("consistency", [0.0, 0.5])
def test_one_recording_serves_all_sites_and_rounds(consistency):
    settings = {"consistency": consistency, "confidence": 0.4}
    spec = lesion_spec("adele", 2, settings, training={"epochs": 4, "learning_rate": RATE})
    data = {name: lesion_sites(spec)[name] for name in ("anna", "bo")}
    recorder, method = Replayed(), make_method("adele", settings)
    runs = [
        replies(method, spec, data, lambda start, name, round_: Down(start), each)
        for each in (None, recorder)
    ]
    assert recorder.recorded == 2  # batches of four, and the last one of two
    assert_replies_equal(*runs)
