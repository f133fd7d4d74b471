"""`consilia weaken`: full labels become weak ones, with a record that gives them again."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from consilia.cli.datasets import datasets
from consilia.cli.weaken import weaken
from consilia.datasets.registry import find_dataset
from consilia.declare.read import read_federation
from consilia.errors import ConsiliaError
from consilia.readers.site import load_site
from consilia.weaken import replay
from consilia.weaken.job import recorded_job


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run a command in an empty folder; errors of ours come out as they are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONSILIA_DATA", raising=False)
    app = typer.Typer()
    app.command("weaken")(weaken)
    app.command("datasets")(datasets)

    def run(*words):
        ended = CliRunner().invoke(app, [str(word) for word in words])
        if isinstance(ended.exception, ConsiliaError):
            raise ended.exception
        assert ended.exit_code == 0, ended.output
        return ended.stdout

    return run


def view_of(folder, site, **more):
    return load_site(read_federation(folder / "federation.toml"), site, folder, **more).view


def test_a_dataset_becomes_a_study_of_folders(call, tmp_path):
    shown = json.loads(
        call(
            "weaken",
            "dataset:phantom-mixed/cusco",
            "--form",
            "scribble",
            "--size",
            32,
            "--out",
            "weak",
            "--json",
        )
    )
    assert shown["sites"]["cusco"]["images"] == 24
    assert 0 < shown["sites"]["cusco"]["known"] < 0.2
    weak = tmp_path / "weak"
    assert {path.name for path in weak.iterdir()} == {
        "cusco",
        "federation.toml",
        "provenance.json",
        "contact.png",
    }
    federation = read_federation(weak / "federation.toml")
    assert federation["cusco"].supervision == "scribble"
    reference = federation.site[0].model_copy(update={"data": "dataset:phantom-mixed/cusco"})
    drawn = load_site(federation.model_copy(update={"site": (reference,)}), "cusco", weak).view
    assert np.array_equal(view_of(weak, "cusco").known_pixels, drawn.known_pixels)


def test_a_record_gives_the_same_study_again(call, tmp_path):
    call(
        "weaken",
        "dataset:phantom-fluids",
        "--site",
        "utrecht",
        "--form",
        "rotated-box",
        "--labels",
        "srf",
        "--size",
        32,
        "--seed",
        3,
        "--out",
        "a",
    )
    call("weaken", "--replay", "a/provenance.json", "--out", "b")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert len(files) > 50
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    record = json.loads((tmp_path / "a/provenance.json").read_text())
    assert len(record["sites"]["utrecht"]["marks"]) == 48
    assert read_federation(tmp_path / "b/federation.toml")["utrecht"].supervision == "rotated-box"


def test_a_preset_gives_each_site_its_own_recipe(call, tmp_path):
    call(
        "weaken",
        "dataset:phantom-disc",
        "--preset",
        "fedlppa-fundus",
        "--size",
        32,
        "--out",
        "weak",
    )
    declared = read_federation(tmp_path / "weak/federation.toml")
    forms = {site.name: (site.supervision.value, site.style) for site in declared.site}
    assert forms == {
        "almeria": ("scribble", "plain"),
        "bristol": ("scribble", "noisy"),
        "chiba": ("box", "plain"),
        "dakar": ("point", "plain"),
        "erfurt": ("block", "plain"),
    }


def test_label_sets_are_unknown_elsewhere_where_labels_occur_together(call, tmp_path):
    federation, truths = dealt(call, tmp_path, "fedlsm-sets", "phantom-findings")
    hidden = 0
    for site in federation.site:
        own = np.array([label in site.annotates for label in federation.labels])
        found, truth = load_site(federation, site.name, tmp_path / "weak"), truths[site.name]
        assert found.view.known_labels.tolist() == [own.tolist()] * len(truth)
        assert (found.view.target == truth * own).all()
        assert (found.test.truth.any(axis=0)).sum() > 3  # tests keep all labels
        hidden += truth[:, ~own].sum()
        rows = (tmp_path / "weak" / site.name / "labels.csv").read_text().splitlines()[1:]
        cells = {row.split(",")[0]: row.split(",")[1:] for row in rows}
        for case in found.train.case:
            assert [cell == "" for cell in cells[case]] == (~own).tolist()
    assert hidden > 0


def test_label_sets_leave_images_of_other_classes_without_a_label(call, tmp_path):
    federation, truths = dealt(call, tmp_path, "fedlsm-sets-exclusive", "phantom-skin")
    for site in federation.site:
        own = np.array([label in site.annotates for label in federation.labels])
        view, truth = (
            load_site(federation, site.name, tmp_path / "weak").view,
            truths[site.name],
        )
        mine = (truth * own).any(axis=1)
        assert 0 < mine.sum() < len(mine)
        assert (view.target[mine] == truth[mine]).all()
        assert view.known_labels[mine].all()
        assert not view.target[~mine].any()
        assert (view.known_labels[~mine] == own).all()


def dealt(call, tmp_path, preset, dataset):
    """Return the federation that a preset deals, each label to somebody and three to each, and the truth."""
    words = ("--preset", preset, "--size", 32, "--seed", 4, "--out", "weak")
    call("weaken", f"dataset:{dataset}", *words)
    federation = read_federation(tmp_path / "weak/federation.toml")
    assert {label for site in federation.site for label in site.annotates} == set(federation.labels)
    assert {len(site.annotates) for site in federation.site} == {3}
    return federation, federation_truth(dataset, 32, 4)


def federation_truth(dataset, size, seed):
    """Return the full labels of each site's training images."""
    found = find_dataset(dataset)
    shape = found.shape.model_copy(update={"size": (size, size)})
    return {
        site: found.load(site, None, shape, seed)[0].truth.astype(bool) for site in found.card.sites
    }


def test_dealt_label_sets_are_recorded_and_can_be_had_again(call, tmp_path):
    words = ("--preset", "fedlsm-sets", "--size", 32, "--seed", 4)
    call("weaken", "dataset:phantom-findings", *words, "--out", "a")
    call("weaken", "--replay", "a/provenance.json", "--out", "b")
    call("weaken", "dataset:phantom-findings/lagos", *words, "--out", "one")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*"))
    assert len(files) > 50
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    record = json.loads((tmp_path / "a/provenance.json").read_text())
    declared = read_federation(tmp_path / "a/federation.toml")
    for site in declared.site:
        assert tuple(record["sites"][site.name]["recipe"]["annotates"]) == site.annotates
    alone = read_federation(tmp_path / "one/federation.toml")
    assert [site.name for site in alone.site] == ["lagos"]
    assert alone["lagos"].annotates == declared["lagos"].annotates


def test_a_study_of_folders_is_dealt_label_sets_and_a_single_folder_is_not(call, tmp_path):
    call("weaken", "dataset:phantom-findings", "--size", 32, "--out", "full")
    call("weaken", "full", "--preset", "fedlsm-sets", "--out", "sets")
    declared = read_federation(tmp_path / "sets/federation.toml")
    assert [len(site.annotates) for site in declared.site] == [3] * 4
    call("weaken", "dataset:phantom-findings/natal", "--size", 32, "--out", "one")
    with pytest.raises(ConsiliaError, match=r"'one' has 6 labels and 1 site; .* --labels A,B,C"):
        call("weaken", "one", "--preset", "fedlsm-sets", "--out", "refused")
    labels = declared.labels[:3]
    call("weaken", "one", "--labels", ",".join(labels), "--out", "chosen")
    assert read_federation(tmp_path / "chosen/federation.toml")["natal"].annotates == labels
    assert view_of(tmp_path / "chosen", "natal").known_labels[:, 3:].sum() == 0


@pytest.mark.parametrize("form", ["box", "rotated-box"])
@pytest.mark.parametrize("seed", [0, 3])
def test_boxes_are_read_again_but_for_the_ellipses_of_another_seed(form, seed, call, tmp_path):
    words = ("--form", form, "--size", 48, "--seed", seed, "--out", "weak")
    call("weaken", "dataset:phantom-fluids/tartu", *words)
    job = recorded_job(tmp_path / "weak/provenance.json")
    full = load_site(job.federation.with_full_labels(), "tartu", tmp_path, seed=seed).train
    drawn, found = replay(job.records["tartu"], full), view_of(tmp_path / "weak", "tartu")
    assert np.array_equal(found.constraint, drawn.constraint)
    assert np.array_equal(found.known_labels, drawn.known_labels)
    background = [view.known_pixels & (view.target == 0) for view in (found, drawn)]
    assert np.array_equal(*background)
    assert np.array_equal(found.target, drawn.target) == (seed == 0)


@pytest.mark.parametrize("form", ["mask", "block", "scribble", "point", "image", "none", "box"])
def test_every_form_is_read_again_as_it_was_drawn(form, call, tmp_path):
    words = ("--form", form, "--labels", "irf,ped", "--size", 48, "--out", "weak")
    call("weaken", "dataset:phantom-fluids/tartu", *words)
    federation = read_federation(tmp_path / "weak/federation.toml")
    reference = federation.site[0].model_copy(update={"data": "dataset:phantom-fluids/tartu"})
    drawn = load_site(federation.model_copy(update={"site": (reference,)}), "tartu", tmp_path)
    found = load_site(federation, "tartu", tmp_path / "weak")
    assert np.array_equal(found.train.image, drawn.train.image)
    assert np.array_equal(found.test.truth, drawn.test.truth)
    assert found.train.group == drawn.train.group
    for part in ("known_labels", "target", "known_pixels", "constraint"):
        one, other = getattr(found.view, part), getattr(drawn.view, part)
        assert one is other is None or np.array_equal(one, other), part


def test_formats_go_by_name(call, tmp_path):
    words = ("--size", 32, "--out", "weak", "--format")
    call("weaken", "dataset:phantom-mixed/cusco", *words, "labelme")
    assert list((tmp_path / "weak/cusco").rglob("*.json"))
    with pytest.raises(ConsiliaError, match="did you mean 'coco'"):
        call("weaken", "dataset:phantom-mixed/cusco", *words[:3], "other", "--format", "cocoo")


def test_a_folder_study_can_be_weakened_again(call, tmp_path):
    call("weaken", "dataset:phantom-lesions/graz", "--size", 48, "--out", "full")
    out = call("weaken", "full", "--completeness", 0.3, "--out", "some")
    assert "graz" in out
    assert not read_federation(tmp_path / "some/federation.toml")["graz"].complete
    full, some = (
        view_of(tmp_path / "full", "graz").target,
        view_of(tmp_path / "some", "graz").target,
    )
    assert (some <= full).all()
    assert 0 < some.sum() < full.sum()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "nothing to weaken"),
        (("dataset:faz129",), "did you mean 'faz128'"),
        (("dataset:phantom-disc/chibo",), "did you mean 'chiba'"),
        (("dataset:phantom-disc", "--preset", "fedlpa-fundus"), "did you mean 'fedlppa-fundus'"),
        (("dataset:phantom-disc", "--preset", "fedlppa-octa", "--form", "box"), "leave out --form"),
        (("dataset:phantom-mixed", "--preset", "fedlppa-octa"), "is for 5 sites, but .* has 3"),
        (("dataset:phantom-disc", "--style", "noisy"), "only scribbles have a noisy style"),
        (("dataset:phantom-disc", "--labels", "cap"), "did you mean 'cup'"),
        (("dataset:phantom-disc", "--form", "box", "--completeness", "0.5"), "but --form is box"),
        (
            ("dataset:phantom-findings", "--preset", "fedlsm-sets", "--labels", "a"),
            "leave out --labels",
        ),
        (
            ("dataset:phantom-skin", "--preset", "fedlsm-sets"),
            "use --preset fedlsm-sets-exclusive$",
        ),
        (("dataset:tb-xray/all", "--preset", "fedlsm-sets"), "choose the labels yourself"),
        (("dataset:phantom-disc", "--completeness", "1.5"), "above 0 and at most 1"),
        (("nowhere.toml",), "does not exist"),
        (("--replay", "nothing.json"), "is no record"),
        (("dataset:phantom-disc", "--replay", "nothing.json"), "leave out SOURCE"),
        (
            ("dataset:breast/udiat",),
            "dataset 'breast' has no 'breast/UDIAT' in '.*'; put it there .`consilia datasets --card "
            "breast` shows its layout and where it comes from., or say where it is with --data",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words, sentence, call, tmp_path):
    with pytest.raises(ConsiliaError, match=sentence) as refused:
        call("weaken", *words, "--out", "weak")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(call, tmp_path):
    (tmp_path / "weak").mkdir()
    (tmp_path / "weak/mine.txt").write_text("mine")
    with pytest.raises(ConsiliaError, match="is not empty"):
        call("weaken", "dataset:phantom-disc", "--out", "weak")
    assert [path.name for path in (tmp_path / "weak").iterdir()] == ["mine.txt"]


def test_a_damaged_record_is_refused(call, tmp_path):
    for text in (
        "{",
        "[]",
        '{"source": 1}',
        '{"source": "x", "seed": 0, "federation": {}, "sites": {}}',
    ):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(ConsiliaError):
            call("weaken", "--replay", "p.json", "--out", "weak")


def test_datasets_prints_a_card(call):
    assert "retouch.grand-challenge.org" in call("datasets", "--card", "retouch")
    assert json.loads(call("datasets", "--card", "retouch", "--json"))["parts"] == 0
    with pytest.raises(ConsiliaError, match="did you mean 'retouch'"):
        call("datasets", "--card", "retuch")
    with pytest.raises(ConsiliaError, match="dataset 'retouch' has no"):
        call("datasets", "--preview", "retouch")
