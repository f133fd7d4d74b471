"""Settings of a study: words, tables, every site, other files and several at once."""

import pytest

from consilia.errors import DeclarationError, UsageError
from consilia.runs.spec import read_spec
from tests.cli.support import federation_table, run_table, write_toml

SETTINGS = {
    "boxes": {"*": "box", "bo": {"supervision": "scribble", "style": "noisy"}},
    "few": {"anna": {"annotates": ["round"], "completeness": 0.4}},
    "fold2": {"*": {"fold": "2-of-5"}},
    "fold3": {"*": {"fold": "3-of-5"}},
    "n9": {"*": {"images": 9}, "bo": {"images": 8}},
    "other": {"run": {"federation": "other.toml", "training": {"epochs": 3}}, "cy": "none"},
}


@pytest.fixture
def study(tmp_path):
    """Write a study with settings and return its path."""
    weak = [
        {"name": "anna", "data": "anna", "supervision": "scribble", "style": "noisy"},
        {"name": "bo", "data": "bo", "supervision": "mask", "annotates": ["square"]},
    ]
    write_toml(tmp_path / "mine/federation.toml", federation_table(site=weak))
    write_toml(tmp_path / "mine/other.toml", federation_table(site=[{"name": "cy", "data": "c"}]))
    table = run_table(training={"batch": 4, "steps": 7}, settings=SETTINGS)
    write_toml(tmp_path / "mine/run.toml", table)
    return str(tmp_path / "mine/run.toml")


def test_a_word_is_all_that_a_site_declares(study):
    found = read_spec(f"{study}@boxes").federation
    assert (found["anna"].supervision, found["anna"].style) == ("box", "plain")
    assert found["bo"].annotates is None  # the word of "*" came first, then its own table
    assert (found["bo"].supervision, found["bo"].style) == ("scribble", "noisy")


def test_a_table_changes_the_keys_it_names(study):
    with pytest.raises(
        DeclarationError, match="only masks of a segmentation task can miss objects"
    ):
        read_spec(f"{study}@few")  # anna's scribbles stay scribbles
    assert read_spec(f"{study}@fold2").federation["bo"].annotates == ("square",)


def test_the_study_is_called_after_its_setting_and_the_tables_are_gone(study):
    spec = read_spec(f"{study}@boxes")
    assert spec.study == "toy@boxes"
    assert "settings" not in spec.model_dump()


def test_several_settings_are_applied_in_order(study):
    found = read_spec(f"{study}@fold2+boxes+fold3")
    assert found.study == "toy@fold2+boxes+fold3"
    assert {site.data for site in found.federation.site} == {"anna/fold-3-of-5", "bo/fold-3-of-5"}
    assert found.federation["anna"].supervision == "box"


def test_fewer_images_stand_behind_the_data(study):
    found = read_spec(f"{study}@n9").federation
    assert (found["anna"].data, found["bo"].data) == ("anna-n9", "bo-n8")


def test_a_setting_may_take_another_declaration_and_another_table(study):
    spec = read_spec(f"{study}@other")
    assert spec.federation.sites == ("cy",)
    assert spec.federation["cy"].supervision == "none"
    assert (spec.training.epochs, spec.training.steps, spec.training.batch) == (3, None, 8)


def test_a_preset_stands_for_that_of_its_method_alone(tmp_path):
    write_toml(tmp_path / "federation.toml", federation_table())
    presets = {"fedprox": {"mu": 0.5}, "moon": {"mu": 2.0}}
    settings = {"near": {"run": {"methods": {"fedprox": {"mu": 0.1}}}}}
    write_toml(tmp_path / "run.toml", run_table(methods=presets, settings=settings))
    for name, mu in (("fedprox", 0.1), ("moon", 2.0)):
        spec = read_spec(f"{tmp_path / 'run.toml'}@near", {"method.name": name})
        assert spec.method.settings == {"mu": mu}


def test_completeness_goes_to_where_labels_are_drawn(tmp_path):
    write_toml(tmp_path / "federation.toml", federation_table())
    settings = {"m0": {"*": {"completeness": 0.5}, "bo": "mask"}}
    write_toml(tmp_path / "run.toml", run_table(settings=settings))
    spec = read_spec(f"{tmp_path}@m0")
    assert spec.simulate.completeness == {"anna": 0.5}  # a later word says that bo marks all
    assert (spec.federation["anna"].complete, spec.federation["bo"].complete) == (False, True)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("boxs", "no setting named 'boxs'; it has 'boxes', 'few'.*; did you mean 'boxes'\\?"),
        ("boxes+", "'@boxes\\+' lacks the name of a setting; it has 'boxes'"),
        ("fold2+nothing", "no setting named 'nothing'"),
    ],
)
def test_unknown_settings_are_one_sentence(study, setting, sentence):
    with pytest.raises(UsageError, match=f"mine/run.toml: {sentence}"):
        read_spec(f"{study}@{setting}")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"ana": "box"}, "setting 'x' names the site 'ana', but there are 'anna' and 'bo'"),
        ({"anna": 3}, "setting 'x' gives site 'anna' 3; expected a form of supervision or a table"),
        ({"run": "fast"}, "'run' of setting 'x' is a single value; expected tables"),
        ({"anna": "boxes"}, "supervision' is 'boxes'; expected one of"),
    ],
)
def test_odd_settings_are_one_sentence(tmp_path, table, sentence):
    write_toml(tmp_path / "federation.toml", federation_table())
    write_toml(tmp_path / "run.toml", run_table(settings={"x": table}))
    with pytest.raises(UsageError, match=sentence):
        read_spec(f"{tmp_path}@x")


def test_a_study_without_settings_says_so(tmp_path):
    write_toml(tmp_path / "federation.toml", federation_table())
    write_toml(tmp_path / "run.toml", run_table())
    with pytest.raises(UsageError, match="no setting named 'x'; it has none"):
        read_spec(f"{tmp_path}@x")
