"""NR-Dice against a second, plain implementation, and its limit cases."""

import torch

from consilia.methods import make_method, why_not
from consilia.methods.averaging import Down
from consilia.testing import run_toy, toy_spec
from tests.methods.plain import Plain, assert_close, lesion_sites, lesion_spec
from tests.methods.support import ledger_fields
from tests.training.test_capture import RATE, Replayed, assert_replies_equal, replies


def plain_run(spec, sites, gamma):
    run = Plain(spec, sites)
    for t in range(1, spec.rounds + 1):
        sent = {}
        for site in sorted(sites):
            run.load()

            def loss(image, target, index):
                p = run.scores(image).softmax(1)[:, 1].flatten()
                g = (target > 0).float().flatten()
                wrong = torch.sum(torch.abs(p - g) ** gamma)
                return wrong / (torch.sum(p * p) + torch.sum(g * g) + 1e-5)

            run.train(site, t, loss)
            sent[site] = run.sent()
        run.average(sent, run.counts)
    return run.world["main"]


def test_nr_dice_is_its_algorithm(tmp_path):
    spec = lesion_spec("nr-dice", 3, {"gamma": 1.4})
    sites = lesion_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    assert_close(tmp_path / "run", plain_run(spec, sites, 1.4))


def test_another_gamma_is_another_run(tmp_path):
    sites = lesion_sites(lesion_spec("nr-dice", 1))
    for gamma in (1.0, 2.0):
        spec = lesion_spec("nr-dice", 1, {"gamma": gamma})
        run_toy(spec, tmp_path / str(gamma), sites)
        assert_close(tmp_path / str(gamma), plain_run(spec, sites, gamma))


def test_one_row_of_scores_serves_as_well(tmp_path):
    slow = {"learning_rate": 0.05}
    spec = lesion_spec("nr-dice", 2, learner={"objective": "dice"}, training=slow)
    sites = lesion_sites(spec)
    run_toy(spec, tmp_path / "run", sites)
    assert_close(tmp_path / "run", plain_run(spec, sites, 1.5))


def test_it_needs_a_segmentation_task():
    assert "segments" in why_not("nr-dice", toy_spec("multi-label").federation)
    assert why_not("nr-dice", toy_spec().federation) is None  # several labels are fine


def test_what_leaves_a_site_is_what_leaves_it_under_fedavg(tmp_path):
    run_toy(lesion_spec("nr-dice", 1), tmp_path / "run")
    assert ledger_fields(tmp_path / "run", "up", "train") == {
        ("Up", name) for name in ("weights", "images", "loss")
    }


def test_a_site_that_marks_nothing_stays_finite(tmp_path):
    spec = lesion_spec("nr-dice", 2)
    sites = lesion_sites(spec)
    sites["anna"].view.target[:] = 0
    run_toy(spec, tmp_path / "run", sites)
    expected = plain_run(spec, sites, 1.5)
    assert all(torch.isfinite(v).all() for v in expected.values())
    assert_close(tmp_path / "run", expected)


def test_one_recording_serves_all_sites_and_rounds():
    spec = lesion_spec("nr-dice", 2, training={"epochs": 4, "learning_rate": RATE})
    data = {name: lesion_sites(spec)[name] for name in ("anna", "bo")}
    recorder, method = Replayed(), make_method("nr-dice")
    runs = [
        replies(method, spec, data, lambda start, name, round_: Down(start), each)
        for each in (None, recorder)
    ]
    assert recorder.recorded == 2  # batches of four, and the last one of two
    assert_replies_equal(*runs)
