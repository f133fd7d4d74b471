"""What is weakened, and how: each site's declaration, changed as asked, and its recipe."""

from __future__ import annotations

import json

import pytest

from consilia.declare import Supervision
from consilia.errors import UsageError
from consilia.weaken import PRESETS
from consilia.weaken.job import Asked, job_for, recorded_job


def test_nothing_asked_changes_nothing():
    assert Asked().changes() == {}
    job = job_for("dataset:phantom-mixed", Asked())
    assert set(job.recipes) == {site.name for site in job.federation.site}
    assert {recipe.form for recipe in job.recipes.values()} == {Supervision.MASK}
    assert job.beside is None


def test_another_form_forgets_what_belonged_to_the_old_one():
    changes = Asked(form=Supervision.BOX).changes()
    assert changes == {
        "supervision": Supervision.BOX,
        "style": "plain",
        "sparsity": None,
        "complete": True,
    }
    assert "complete" not in Asked(form=Supervision.MASK).changes()
    assert Asked(completeness=0.5).changes() == {"complete": False}


def test_a_site_and_a_size_can_be_chosen():
    job = job_for("dataset:phantom-mixed", Asked(labels=("lesion",)), site="cusco", size=40, seed=5)
    assert [site.name for site in job.federation.site] == ["cusco"] == list(job.recipes)
    assert (job.federation.image.size, job.seed) == ((40, 40), 5)
    assert job.recipes["cusco"].annotates == ("lesion",)
    named = job_for("dataset:phantom-mixed/cusco", Asked())
    assert list(named.recipes) == ["cusco"]


def test_a_preset_is_dealt_in_the_order_of_sites_and_declared():
    job = job_for("dataset:phantom-disc", Asked(), preset="fedlppa-fundus")
    assert tuple(job.recipes.values()) == PRESETS["fedlppa-fundus"]
    for site in job.federation.site:
        recipe = job.recipes[site.name]
        assert (site.supervision, site.style) == (recipe.form, recipe.style)


def test_label_sets_are_dealt_over_random_parts_where_a_dataset_has_them():
    job = job_for("dataset:chestxray14", Asked(), preset="fedlsm-sets", seed=1)
    assert list(job.recipes) == [f"{number}-of-8" for number in range(1, 9)]
    assert {label for s in job.federation.site for label in s.annotates} == set(
        job.federation.labels
    )
    one = job_for("dataset:chestxray14/3-of-8", Asked(), preset="fedlsm-sets", seed=1)
    assert dict(one.recipes) == {"3-of-8": job.recipes["3-of-8"]}
    own = job_for("dataset:ham10000/rosendahl", Asked(), preset="fedlsm-sets-exclusive")
    assert list(own.recipes) == ["rosendahl"]
    whole = job_for("dataset:chestxray14", Asked(), preset="fedlsm-tags")
    assert list(whole.recipes) == ["nih"]


def test_a_record_gives_the_job_again(tmp_path):
    job = job_for("dataset:phantom-mixed/cusco", Asked(form=Supervision.POINT), seed=3)
    path = tmp_path / "provenance.json"
    path.write_text(json.dumps(job.to_plain({})))
    found = recorded_job(path)
    assert (found.source, found.seed, found.federation) == (job.source, job.seed, job.federation)
    assert found.recipes == found.records == {}


@pytest.mark.parametrize(
    ("source", "more", "sentence"),
    [
        ("dataset:phantom-disc", {"preset": "fedlpa-fundus"}, "did you mean 'fedlppa-fundus'"),
        ("dataset:phantom-mixed", {"preset": "fedlppa-octa"}, "is for 5 sites, but .* has 3"),
        ("dataset:phantom-mixed", {"site": "cuzco"}, "did you mean 'cusco'"),
    ],
)
def test_what_does_not_fit_is_refused(source, more, sentence):
    with pytest.raises(UsageError, match=sentence):
        job_for(source, Asked(), **more)


@pytest.mark.parametrize(
    ("source", "asked", "sentence"),
    [
        (
            "dataset:phantom-disc",
            Asked(form=Supervision.BOX, completeness=0.5),
            "--completeness 0.5: only masks can miss objects, but --form is box; leave out "
            "--completeness, or use --form mask",
        ),
        (
            "dataset:phantom-skin",
            Asked(completeness=0.5),
            "--completeness 0.5: only masks can miss objects, but this is a classification task; "
            "leave out --completeness",
        ),
        (
            "dataset:phantom-disc",
            Asked(form=Supervision.BOX, style="noisy"),
            "--style noisy: only scribbles have a noisy style, but --form is box; leave out --style, "
            "or use --form scribble",
        ),
        (
            "dataset:phantom-disc",
            Asked(style="noisy"),
            "--style noisy: only scribbles have a noisy style, but site 'almeria' declares 'mask'; "
            "leave out --style, or use --form scribble",
        ),
    ],
)
def test_contradictions_are_refused_in_the_words_of_the_options(source, asked, sentence):
    with pytest.raises(UsageError) as refused:
        job_for(source, asked)
    assert str(refused.value) == sentence
