"""What is weakened, and how: each site's declaration, changed as asked, and its recipe."""

from __future__ import annotations

import json

import pytest

from consilia.declare import Supervision
from consilia.errors import ConsiliaError, UsageError
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


def test_contradictions_are_refused():
    with pytest.raises(ConsiliaError, match="only masks"):
        job_for("dataset:phantom-disc", Asked(form=Supervision.BOX, completeness=0.5))
