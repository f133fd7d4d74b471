import os

import pytest

from consilia.errors import MessageError, RunError, UsageError
from consilia.runs.store import Progress, RunFolder, refuse_full, same_run
from consilia.testing import toy_spec
from tests.cli.support import tree


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", toy_spec())


def test_a_spec_comes_back_as_it_was(folder):
    assert folder.spec() == toy_spec()
    assert RunFolder.open(folder.path).spec() == toy_spec()


def test_creating_the_same_run_again_changes_nothing(folder):
    before = tree(folder.path)
    RunFolder.create(folder.path, toy_spec(engine={"memory_mib": 7}))
    assert tree(folder.path) == before


def test_another_run_is_never_written_over(folder):
    before = tree(folder.path)
    with pytest.raises(UsageError, match=r"holds another run \(fedavg-0 of 'toy'"):
        RunFolder.create(folder.path, toy_spec(seed=1))
    assert tree(folder.path) == before


def test_where_a_run_computes_does_not_change_which_run_it_is():
    assert same_run(toy_spec(), toy_spec(engine={"threads": 2, "checkpoint_every": 9}))
    assert same_run(toy_spec(), toy_spec(engine={"precision": "float32", "compile": "on"}))
    assert not same_run(toy_spec(), toy_spec(engine={"precision": "bf16"}))
    assert not same_run(toy_spec(), toy_spec(training={"batch": 2}))


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written: not a directory"):
        RunFolder.create(tmp_path / "file" / "run", toy_spec())
    with pytest.raises(UsageError, match="is a file, not a folder"):
        RunFolder.create(tmp_path / "file", toy_spec())
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_and_a_new_one_may_be_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    refuse_full(tmp_path / "empty")
    refuse_full(tmp_path / "new")
    (tmp_path / "empty" / ".hidden").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        refuse_full(tmp_path / "empty")


def test_one_process_at_a_time(folder):
    with folder.locked(), pytest.raises(RunError, match="in use by another process"):  # noqa: SIM117
        with RunFolder.open(folder.path).locked():
            pass
    with folder.locked():
        pass


def test_a_lock_that_leads_elsewhere_is_refused_and_touches_nothing(folder, tmp_path):
    (tmp_path / "thesis").write_text("mine")
    (folder.path / ".lock").symlink_to(tmp_path / "thesis")
    with pytest.raises(RunError, match=r"\.lock' is a link or no plain file; remove it"):  # noqa: SIM117
        with folder.locked():
            pass
    assert (tmp_path / "thesis").read_text() == "mine"


def test_lines_are_kept_up_to_the_one_cut_short(folder):
    folder.append("rounds.jsonl", {"round": 1}, {"round": 2})
    with (folder.path / "rounds.jsonl").open("a") as handle:
        handle.write('{"round": 3, "lo')
    assert [line["round"] for line in folder.lines("rounds.jsonl")] == [1, 2]
    assert folder.lines("ledger.jsonl") == []
    folder.rewind("rounds.jsonl", 1)
    assert (folder.path / "rounds.jsonl").read_text() == '{"round": 1}\n'


def test_a_line_of_another_shape_is_refused_and_not_left_out(folder):
    path = folder.path / "rounds.jsonl"
    for other in ("[]", "3", '{"round": "1"}', '{"round": 1, "test": {"anna": 3}}', "\0\0", "{"):
        path.write_text(f'{{"round": 1}}\n{other}\n{{"round": 3}}\n')
        with pytest.raises(
            UsageError, match=r"^line 2 of rounds.jsonl of run .*with another --out$"
        ):
            folder.lines("rounds.jsonl")
    path.write_bytes(b'{"round": 1}\n\0\0\0')
    assert folder.lines("rounds.jsonl") == [{"round": 1}]


def test_json_is_read_back_or_refused(folder):
    assert not folder.finished
    with pytest.raises(UsageError, match=r"has no metrics.json yet; `consilia resume` finishes it"):
        folder.read_json("metrics.json")
    folder.write_json("metrics.json", {"a": 1})
    assert folder.finished
    assert folder.read_json("metrics.json") == {"a": 1}
    (folder.path / "metrics.json").write_text('{"a":')
    with pytest.raises(UsageError, match="is damaged"):
        folder.read_json("metrics.json")


def test_a_checkpoint_appears_whole_and_replaces_the_last(folder):
    assert folder.latest_checkpoint() is None
    for round_ in (9, 10):
        with folder.new_checkpoint(round_) as part:
            (part / "server").write_text(str(round_))
    assert folder.latest_checkpoint() == (10, folder.checkpoints / "round-000010")
    assert [path.name for path in folder.checkpoints.iterdir()] == ["round-000010"]
    with pytest.raises(KeyError), folder.new_checkpoint(11):
        raise KeyError
    assert folder.latest_checkpoint()[0] == 10


def test_json_of_another_shape_is_refused(folder):
    folder.write_json(
        "cases.json", {"anna": {"case": ["a"], "group": ["p"], "values": {"dice": [None]}}}
    )
    assert folder.cases()["anna"]["case"] == ["a"]
    for other in (
        [],
        {"anna": 3},
        {"anna": {"case": ["a"], "group": ["p"], "values": {"dice": []}}},
    ):
        folder.write_json("cases.json", other)
        with pytest.raises(
            UsageError, match=r"^cases.json of run .* does not hold what a run writes"
        ):
            folder.cases()
    (folder.path / "cases.json").unlink()
    assert folder.cases() == {}
    (folder.path / "cases").mkdir()
    (folder.path / "cases/round-000001.json").write_text("{")
    with pytest.raises(UsageError, match=r"is damaged; begin it again with another --out$"):
        folder.cases("cases/round-000001.json")
    (folder.path / "environment.json").write_text("[]")
    with pytest.raises(UsageError, match=r"^environment.json of run .* does not hold what a run"):
        folder.data()
    (folder.path / "environment.json").unlink()
    assert folder.data() is None


def test_progress_comes_back_or_the_way_out_is_named(folder):
    for round_ in (9, 10):
        state = folder.checkpoints / f"round-{round_:06d}"
        state.mkdir(parents=True)
        RunFolder(state).write_json("progress.json", vars(Progress(round_, ("anna",), 1.5)))
    assert folder.progress_at(state) == Progress(10, ("anna",), 1.5)
    damaged = (
        f"checkpoint '{state}' cannot be used: file 'progress.json' is missing, damaged or not ours"
    )
    again = "begin the run again with another --out"
    for content in ("{", "3", "null", "{}", '{"round": "x", "admitted": []}'):
        (state / "progress.json").write_text(content)
        with pytest.raises(MessageError) as problem:
            folder.progress_at(state)
        out = f"remove that folder and resume the run from round 10, or {again}"
        assert str(problem.value) == f"{damaged}; {out}"
    folder.write_json("metrics.json", {})  # `resume` does nothing with a finished run
    with pytest.raises(MessageError) as problem:
        folder.progress_at(state)
    assert str(problem.value) == f"{damaged}; {again}"
    (folder.path / "selected").mkdir()
    with pytest.raises(MessageError, match=f"selected' cannot be used.*; {again}$"):
        folder.selected_state()


def test_progress_of_another_round_than_its_folders_is_refused(folder):
    state = folder.checkpoints / "round-000003"
    state.mkdir(parents=True)
    RunFolder(state).write_json("progress.json", vars(Progress(99, ("anna",))))
    with pytest.raises(MessageError, match=r"'progress.json' is of round 99; expected 3; remove"):
        folder.progress_at(state)
    state.rename(folder.path / "selected")  # which has no number to fit
    assert folder.selected_state()[0] == 99


def test_what_else_lies_among_checkpoints_is_left_alone(folder):
    mine = ("mine", "round-000001-backup", "round-xyz", ".round-1.part", "round-٠٠٠٠٠٩")
    for name in (*mine, ".round-000007.part"):
        (folder.checkpoints / name).mkdir(parents=True)
    (folder.checkpoints / "round-000099").write_text("no folder")
    assert folder.latest_checkpoint() is None
    for round_ in (1, 2):
        with folder.new_checkpoint(round_):
            pass
    assert folder.latest_checkpoint() == (2, folder.checkpoints / "round-000002")
    left = {path.name for path in folder.checkpoints.iterdir()}
    assert left == {*mine, "round-000002", "round-000099"}


def spec_is_changed(folder, old, new):
    path = folder.path / "spec.toml"
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new, 1))
    try:
        return RunFolder(folder.path).asked()
    finally:
        path.write_text(before)


def test_the_digest_of_what_was_asked_leaves_out_where_it_computes_and_where_data_is(folder):
    asked = folder.asked()
    for old, new in (
        ("threads = 1", "threads = 2"),
        ('precision = "tf32"', 'precision = "float32"'),
        ('data = "dataset:toy"', 'data = "/elsewhere/anna"'),
        ("rounds = 3", "rounds    = 3  # three"),
    ):
        assert spec_is_changed(folder, old, new) == asked, old
    for old, new in (
        ("rounds = 3", "rounds = 4"),
        ("seed = 0", "seed = 1"),
        ('name = "fedavg"', 'name = "fedprox"'),
        ('precision = "tf32"', 'precision = "bf16"'),
    ):
        assert spec_is_changed(folder, old, new) != asked, old


def test_a_spec_that_was_changed_after_a_checkpoint_is_refused(folder):
    state = folder.checkpoints / "round-000001"
    state.mkdir(parents=True)
    for asked in (folder.asked(), ""):  # a run of an older version kept none
        RunFolder(state).write_json("progress.json", vars(Progress(1, ("anna",), asked=asked)))
        assert folder.progress_at(state).asked == asked
    RunFolder(state).write_json("progress.json", vars(Progress(1, ("anna",), asked="another")))
    with pytest.raises(RunError) as problem:
        folder.progress_at(state)
    assert str(problem.value) == (
        f"spec.toml of run '{folder.path}' is not the one that its rounds were made with; put it "
        "back as it was, or begin a new run with another --out"
    )


@pytest.fixture
def forbid(monkeypatch):
    """Let the system refuse to open files of some name."""
    honest = os.open

    def install(forbidden):
        def open_(path, *rest):
            if str(path).endswith(forbidden):
                raise PermissionError(13, "Permission denied", str(path))
            return honest(path, *rest)

        monkeypatch.setattr("consilia.runs.plain.os.open", open_)

    return install


@pytest.mark.parametrize("name", ["metrics.json", "rounds.jsonl"])
def test_a_file_that_may_not_be_read_is_not_told_as_damaged(folder, forbid, name):
    folder.write_json(name, {})
    forbid(name)
    with pytest.raises(UsageError) as problem:
        folder.lines(name) if name.endswith("l") else folder.metrics()
    assert str(problem.value) == (
        f"{name} of run '{folder.path}' cannot be read: permission denied; let this user read it, or "
        "put back what was there"
    )


@pytest.mark.parametrize("name", ["server.safetensors", "memories/anna/memory.safetensors"])
def test_a_checkpoint_that_may_not_be_read_is_not_told_as_damaged(folder, forbid, name):
    with folder.new_checkpoint(1) as part:
        (part / name).parent.mkdir(parents=True, exist_ok=True)
        (part / name).write_text("")
    forbid(name)
    state = folder.checkpoints / "round-000001"
    with pytest.raises(UsageError) as problem, folder.reading(state):
        pass
    assert str(problem.value) == (
        f"checkpoint '{state}' cannot be used: '{name}' cannot be read: permission denied; let this user "
        "read it, or put back what was there"
    )
