import pytest

from consilia.errors import UsageError
from consilia.runs.spec import RunSpec, parse_changes, read_spec, studies
from tests.cli.support import federation_table, run_table, write_toml


@pytest.fixture
def study(tmp_path):
    """Write a run file with some more in it, and return its path."""

    def write(**changes):
        write_toml(tmp_path / "mine/federation.toml", federation_table())
        write_toml(tmp_path / "mine/run.toml", run_table(**changes))
        return str(tmp_path / "mine/run.toml")

    return write


@pytest.mark.parametrize("name", studies())
def test_every_built_in_study_can_be_read(name):
    spec = read_spec(name)
    assert (spec.study, spec.federation.name) == (name, name)
    assert spec.run_name == f"{spec.method.name}-{spec.seed}"


def test_a_run_file_may_say_almost_nothing(study, tmp_path, monkeypatch):
    study()
    (tmp_path / "mine/run.toml").write_text("")
    monkeypatch.chdir(tmp_path / "mine")
    for name in (".", "run.toml", str(tmp_path / "mine")):
        spec = read_spec(name)
        assert (spec.study, spec.rounds, spec.method.name) == ("mine", 40, "fedavg")


def test_a_federation_may_be_elsewhere_or_inside(study, tmp_path):
    path = study(federation="other.toml")
    write_toml(tmp_path / "mine/other.toml", federation_table(name="other"))
    assert read_spec(path).federation.name == "other"
    assert read_spec(study(federation=federation_table(name="inner"))).federation.name == "inner"


def test_changes_win_over_the_file(study):
    changes = parse_changes(["training.batch=2", "engine.device=cpu", "evaluate.every = 3"])
    spec = read_spec(study(training={"batch": 8}), {"seed": 4, **changes})
    assert (spec.seed, spec.training.batch, spec.evaluate.every) == (4, 2, 3)


def test_a_change_is_read_as_toml_and_else_as_text():
    pairs = ["a=1", "b=true", "c=[1, 2]", "d=poly", 'e="x=y"', "f=0.5", "g=x=y", "h="]
    assert parse_changes(pairs) == {
        "a": 1,
        "b": True,
        "c": [1, 2],
        "d": "poly",
        "e": "x=y",
        "f": 0.5,
        "g": "x=y",
        "h": "",
    }


@pytest.mark.parametrize(
    ("tables", "changes", "settings"),
    [
        ({"method": {"name": "fedprox", "mu": 0.1}}, {}, {"mu": 0.1}),
        ({"method": {"name": "fedprox", "settings": {"mu": 0.1}}}, {}, {"mu": 0.1}),
        ({"method": {"name": "fedprox", "mu": 0.1}}, {"method.name": "fedavg"}, {}),
        ({"method": {"name": "fedprox", "settings": {"mu": 1.0}}}, {"method.name": "local"}, {}),
        ({"methods": {"fedprox": {"mu": 0.2}}}, {"method.name": "fedprox"}, {"mu": 0.2}),
        ({"methods": {"fedprox": {"mu": 0.2}}}, {}, {}),
        (
            {"method": {"name": "fedprox", "mu": 0.1}, "methods": {"fedprox": {"mu": 0.2}}},
            {},
            {"mu": 0.1},
        ),
        (
            {"methods": {"fedprox": {"mu": 0.2}}},
            {"method.name": "fedprox", "method.mu": 0.3},
            {"mu": 0.3},
        ),
    ],
)
def test_settings_of_the_chosen_method_apply_and_no_others(study, tables, changes, settings):
    assert read_spec(study(**tables), changes).method.settings == settings


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"method": 3}, "'method' is a single value; expected a table: write \\[method\\]"),
        ({"methods": {"fedavg": 3}}, "'methods.fedavg' is a single value"),
        ({"methods": 3}, "'methods.fedavg' is a single value"),
        ({"method": {"name": ["a"]}}, "'method.name' is \\['a'\\]; expected text"),
        ({"method": {"name": "local", "settings": 3}}, "'method.settings' is 3; expected a table"),
        (
            {"method": {"settings": {}, "mu": 1}},
            "unknown key 'method.mu' \\(known here: name, settings\\)",
        ),
        ({"federation": 3}, "'federation' is 3; expected a table"),
    ],
)
def test_odd_tables_are_one_sentence(study, tables, sentence):
    with pytest.raises(UsageError, match=f"mine/run.toml: {sentence}"):
        read_spec(study(**tables))


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", ".hidden", "a\nb"])
def test_a_study_is_a_folder_name(name):
    with pytest.raises(UsageError, match="must be a plain name"):
        RunSpec.model_validate({"study": name, "federation": federation_table()})
