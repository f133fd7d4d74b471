"""The captured step: on fixed memory it computes what the eager loop computes, and leaves no trace.

A CPU records nothing: here "recording" warms up and hands the step back, to be run on the same fixed
memory that a graph would use. `benchmarks/gpu.py` compares real graphs with the eager loop.
"""

import logging
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from consilia.engines.inprocess import make_bench
from consilia.methods import make_method
from consilia.testing import toy_sites, toy_spec
from consilia.training.augment import POLICIES, Move, draw, policy_of
from consilia.training.batch import ResidentCases, orders
from consilia.training.capture import TOO_FEW, Captures
from consilia.training.identity import identity, needs_host
from consilia.training.local import draw_plan, train_locally
from consilia.training.personal import learn_shares
from consilia.training.settings import Training
from consilia.training.site import Site
from consilia.training.tones import TONES

RATE = 2.0**-10  # the same number as a float and as a float32 tensor


class Replayed:
    """Stands for the recorder: counts recordings and replays."""

    def __init__(self):
        self.recorded, self.replays = 0, 0

    def __call__(self, step):
        self.recorded += 1
        for _ in range(3):
            step()

        def replay():
            self.replays += 1
            step()

        return replay


def site_of(name="anna", round_=1, bench=None, train=10, sites=None, **training):
    settings = {"learning_rate": RATE, "epochs": 5, **training}
    spec = toy_spec(training=settings, **({} if sites is None else {"sites": sites}))
    bench = bench or make_bench(spec, make_method("fedavg"), spec.federation)
    data = toy_sites(spec, train)[name]
    train = ResidentCases.of(data.train, data.view, bench.device)
    return Site(name, spec.federation, bench, train, spec.training, spec.seed, round_, 3)


def both(run, **training):
    """Run something at an eager and at a recording site; return the sites and the recorder."""
    eager, fast = site_of(**training), site_of(**training)
    recorder = Replayed()
    fast.bench.captures = Captures(recorder)
    told = run(eager), run(fast)
    return eager, fast, recorder, told


def replies(method, spec, data, down_of, recorder=None, rounds=(1, 2)):
    """Return the weights that sites send in turn, trained eagerly or by recorded steps.

    Args:
        method: Trains at every site in every round, each time from the first weights.
        spec: The run.
        data: The sites' data, by name.
        down_of: Returns what a site is sent, given the first weights, its name and the round.
        recorder: Stands for the recorder; `None` trains eagerly.
        rounds: Which rounds.
    """
    bench = make_bench(spec, method, spec.federation)
    bench.captures = None if recorder is None else Captures(recorder)
    start, memories, sent = bench.start(), {}, []
    for round_ in rounds:
        for name, held in data.items():
            train = ResidentCases.of(held.train, held.view, bench.device)
            place = (name, spec.federation, bench, train, spec.training, spec.seed, round_, 9)
            down = down_of(start, name, round_)
            up, memories[name] = method.local_update(down, memories.get(name), Site(*place))
            sent.append({key: value.clone() for key, value in up.weights.items()})
    return sent


def assert_replies_equal(eager, recorded):
    for one, other in zip(eager, recorded, strict=True):
        for key in one:
            assert torch.equal(one[key], other[key]), key


def assert_equal(one, other, network="main"):
    for (name, a), b in zip(
        one.weights(network=network).items(), other.weights(network=network).values(), strict=True
    ):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"augment": "mild"},
        {"augment": "rotate"},
        {"crop": 12},
        {"augment": "none", "intensity": "fedia"},
        {"optimizer": "adamw"},
        {"optimizer": "sgd", "momentum": 0.5},
        {"optimizer": "sgd"},
        {"keep_optimizer": False},
    ],
    ids=lambda training: " ".join(map(str, training.values())) or "adam",
)
def test_fixed_memory_computes_what_the_eager_loop_computes(training):
    def run(site):
        first = train_locally(site)
        return first, train_locally(site)

    eager, fast, recorder, told = both(run, **training)
    assert told[0] == told[1]
    assert_equal(eager, fast)
    assert recorder.recorded == 2  # batches of four, and the last one of two
    assert recorder.replays > 20
    assert eager.optimizers.keys() == fast.optimizers.keys()
    for name, state in eager.optimizers.get("main", {}).items():
        for key, value in state.items():
            assert torch.equal(value, fast.optimizers["main"][name][key])


def test_a_falling_rate_reaches_the_recorded_step():
    run = partial(train_locally)
    eager, fast, recorder, _ = both(run, schedule="poly", steps=12, power=1.0)
    assert recorder.replays == 12
    for a, b in zip(eager.weights().values(), fast.weights().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_one_recording_serves_all_sites_and_rounds():
    eager, fast = site_of().bench, site_of().bench
    recorder = Replayed()
    fast.captures = Captures(recorder)
    for round_ in (1, 2):
        for name in ("anna", "bo"):
            pair = [site_of(name, round_, bench=bench) for bench in (eager, fast)]
            for site in pair:
                site.load(site.bench.start())
                train_locally(site)
            assert_equal(*pair)
    assert recorder.recorded == 2


@dataclass(frozen=True)
class Towards:
    """A loss with a held tensor, with rows, and with random numbers."""

    strength: float

    def loss(self, bench, batch, held):
        p = bench.learner.probabilities(bench.network(), batch.image)
        noise = torch.rand(len(batch), device=p.device)
        return (
            self.strength
            * ((p.mean((1, 2, 3)) - held["goal"] * held["wish"]) * noise).square().sum()
        )


def test_held_tensors_and_rows_change_from_call_to_call():
    def run(site):
        for goal in (0.2, 0.9):
            rows = torch.linspace(0, goal, len(site.train))
            loss = site.objective(
                Towards(3.0).loss, held={"goal": torch.tensor(goal)}, rows={"wish": rows}
            )
            train_locally(site, loss)

    eager, fast, recorder, _ = both(run)
    assert_equal(eager, fast)
    assert recorder.recorded == 2  # equal method objects are one function


def test_batches_cut_from_views_find_their_rows_again():
    def run(site):
        views = site.views()
        rows = {"wish": torch.linspace(0, 1, len(site.train))}
        held = {"goal": torch.tensor(0.5)}
        loss = site.objective(Towards(1.0).loss, held=held, rows=rows)
        train_locally(site, loss, views=views, only=torch.arange(1, 9))

    eager, fast, recorder, _ = both(run)
    assert_equal(eager, fast)
    assert recorder.recorded == 1


def test_recording_leaves_no_trace():
    site = site_of()
    before = site.weights()
    broken = Replayed()

    def record(step):
        broken(step)
        msg = "no graphs here\nreally"
        raise RuntimeError(msg)

    site.bench.captures = Captures(record)
    reference = site_of()
    train_locally(site)
    train_locally(reference)
    assert any(not torch.equal(before[n], w) for n, w in site.weights().items())
    assert_equal(site, reference)
    assert broken.recorded == 1  # ten full batches; the five odd ones do not pay yet


def test_what_cannot_be_recorded_is_said_once(caplog):
    site = site_of()

    def record(step):
        msg = "no graphs here\nreally"
        raise RuntimeError(msg)

    site.bench.captures = Captures(record)
    with caplog.at_level(logging.WARNING, "consilia"):
        train_locally(site)
        train_locally(site)
    told = [r.getMessage() for r in caplog.records]
    assert told == ["a training step runs eagerly, for it cannot be captured: no graphs here"]


def test_each_reason_is_said_once(caplog):
    site, reasons = site_of(), iter(["no graphs here", "no memory left", "no graphs here"])

    def record(step):
        raise RuntimeError(next(reasons))

    site.bench.captures = Captures(record)
    with caplog.at_level(logging.WARNING, "consilia"):
        for strength in (1.0, 2.0, 3.0):
            wish = torch.linspace(0, 1, len(site.train))
            held = {"goal": torch.tensor(0.5)}
            loss = site.objective(Towards(strength).loss, held=held, rows={"wish": wish})
            train_locally(site, loss, only=torch.arange(8))
    told = [r.getMessage().rpartition(": ")[2] for r in caplog.records]
    assert told == ["no graphs here", "no memory left"]
    assert next(reasons, None) is None


def test_too_few_steps_of_a_plain_closure_are_said_once(caplog):
    def run(site):
        for _ in range(2):
            train_locally(site, lambda batch: 2.0 * site.task_loss(batch))

    with caplog.at_level(logging.WARNING, "consilia"):
        _, _, recorder, _ = both(run)
    assert recorder.recorded == 0
    told = [r.getMessage() for r in caplog.records]
    assert told == [f"training steps run eagerly, not captured: {TOO_FEW}"]
    assert "24 batches" in TOO_FEW


def test_steps_that_will_be_recorded_later_are_not_talked_about(caplog):
    with caplog.at_level(logging.WARNING, "consilia"):
        _, _, recorder, _ = both(train_locally)
    assert recorder.recorded == 1  # the five odd batches wait for the next round
    assert not caplog.records


def test_a_plain_closure_is_recorded_for_its_own_call_where_that_pays():
    def run(site):
        for factor in (1.0, 2.0):
            train_locally(site, lambda batch, f=factor: f * site.task_loss(batch))

    eager, fast, recorder, _ = both(run, epochs=12)
    assert_equal(eager, fast)
    assert recorder.recorded == 2  # 24 full batches in each call; the odd ones run eagerly


def test_a_loss_that_needs_the_host_runs_eagerly():
    seen = []

    def run(site):
        def loss(batch):
            seen.append(len(batch))
            return site.task_loss(batch)

        train_locally(site, loss)

    _, _, recorder, _ = both(run, epochs=12)
    assert recorder.recorded == 0
    assert len(seen) == 2 * 36
    count = 0

    def counting(batch):
        nonlocal count
        count += 1
        return batch

    class Keeping:
        def loss(self, batch):
            return batch

    assert needs_host(counting)
    assert needs_host(Keeping().loss)  # what its object draws or counts cannot be seen
    assert not needs_host(lambda batch: batch.image.sum())


def test_hooks_run_eagerly_and_the_log_says_so_once(caplog):
    calls = []

    def run(site):
        for _ in range(2):
            train_locally(site, after_step=lambda: calls.append(1))

    with caplog.at_level(logging.WARNING, "consilia"):
        _, _, recorder, _ = both(run)
    assert recorder.recorded == 0
    assert len(calls) == 60
    told = [r.getMessage() for r in caplog.records]
    assert told == ["training steps run eagerly, not captured: the method acts on every step"]


def test_shares_are_learned_by_recorded_steps():
    def run(site):
        server = {n: w + 0.1 for n, w in site.weights("head").items()}
        ones = {n: torch.ones_like(w) for n, w in server.items()}
        return learn_shares(site, site.weights("head"), server, ones, eta=5.0, passes=5)

    eager, fast, recorder, told = both(run)
    assert_equal(eager, fast)
    assert recorder.replays > 0
    assert all(torch.equal(told[0][name], told[1][name]) for name in told[0])
    assert any((share < 1).any() for share in told[0].values())


def test_networks_are_compiled_for_the_recording_alone(monkeypatch):
    asked = []

    def compile_(function, **options):
        asked.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    site, reference = site_of(), site_of()
    site.bench.captures = Captures(Replayed(), compile_=True)
    train_locally(site)
    train_locally(reference)
    assert_equal(site, reference)
    assert asked
    assert all(options["dynamic"] is False for options in asked)
    assert all("forward" not in vars(part) for part in site.network.children())


def test_without_a_compiler_steps_are_recorded_all_the_same(monkeypatch, caplog):
    def compile_(function, **options):
        def broken(*inputs):
            msg = "no compiler here\nreally"
            raise RuntimeError(msg)

        return broken

    monkeypatch.setattr(torch, "compile", compile_)
    site, reference = site_of(), site_of()
    recorder = Replayed()
    site.bench.captures = Captures(recorder, compile_=True)
    with caplog.at_level(logging.WARNING, "consilia"):
        train_locally(site)
    train_locally(reference)
    assert_equal(site, reference)
    assert recorder.replays > 0
    assert [r.getMessage() for r in caplog.records] == ["networks run uncompiled: no compiler here"]


def test_only_equal_functions_are_one():
    assert identity(Towards(1.0).loss) == identity(Towards(1.0).loss)
    assert identity(Towards(1.0).loss) != identity(Towards(2.0).loss)
    one, two = partial(Towards(1.0).loss, "main"), partial(Towards(1.0).loss, "second")
    assert identity(one) != identity(two)
    assert identity(one) == identity(partial(Towards(1.0).loss, "main"))
    kept = 1
    assert identity(lambda: kept) is None
    assert identity(partial(lambda: kept)) is None
    assert identity(partial(Towards(1.0).loss, [])) is None


def test_a_moved_network_is_recorded_anew():
    site = site_of()
    recorder = Replayed()
    site.bench.captures = Captures(recorder)
    train_locally(site)
    for parameter in site.network.parameters():
        parameter.data = parameter.data.clone()
    train_locally(site)
    assert recorder.recorded == 2


CHANGES = [{"augment": name} for name in sorted(POLICIES)]
CHANGES += [{"crop": 12}, {"augment": "none", "intensity": "fedia"}]


def assert_moves_equal(one, other):
    assert one.kinds() == other.kinds()
    for name, part in one.parts().items():
        assert torch.equal(part, other.parts()[name]), name


@pytest.mark.parametrize("steps", [None, 7])
@pytest.mark.parametrize(
    "training", CHANGES, ids=lambda training: " ".join(map(str, training.values()))
)
def test_drawing_beforehand_draws_the_same_numbers(training, steps):
    settings = Training(batch=4, epochs=2, steps=steps, **training)
    used = torch.tensor([3, 1, 4, 5, 9, 2, 6, 8, 7, 0])
    plan = draw_plan(used, settings, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    batches = orders(10, 4, 2, steps, generator)
    for planned, positions in zip(plan, batches, strict=True):
        assert torch.equal(planned.images, used[positions])
        move = draw(policy_of(settings), len(positions), generator)
        assert_moves_equal(planned.move, move)


def test_moves_are_joined_and_split_again():
    generator = torch.Generator().manual_seed(0)
    policy = replace(POLICIES["rotate"], crop=5, tones=TONES["fedia"])
    moves = [draw(policy, count, generator) for count in (3, 2)]
    again = Move.joined(moves).split([3, 2])
    for move, other in zip(moves, again, strict=True):
        assert_moves_equal(move, other)
