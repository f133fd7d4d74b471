from __future__ import annotations

import pytest

from consilia.declare import Federation, ImageShape, SiteDeclaration, Supervision
from consilia.errors import UsageError
from consilia.weaken import DEALT, PRESETS, fedia_lung, fedia_ms
from consilia.weaken.presets import recipes_of


@pytest.mark.parametrize(
    ("grid", "m", "tenths"),
    [
        (fedia_ms, 0, (4, 6, 8, 10)),
        (fedia_ms, 1, (3, 5, 7, 9)),
        (fedia_ms, 2, (2, 4, 6, 8)),
        (fedia_ms, 3, (1, 3, 5, 7)),
        (fedia_lung, 0, (7, 8, 9, 10)),
        (fedia_lung, 1, (4, 5, 6, 7)),
        (fedia_lung, 2, (1, 2, 3, 4)),
    ],
)
def test_the_completeness_grids_of_fedia(grid, m, tenths):
    assert grid(m) == tuple(t / 10 for t in tenths)


def test_presets_hold_one_recipe_per_site():
    assert [r.completeness for r in PRESETS["fedia-ms-m2"]] == [0.2, 0.4, 0.6, 0.8]
    assert [r.form for r in PRESETS["fedlppa-octa"]] == [
        Supervision.SCRIBBLE,
        Supervision.POINT,
        Supervision.BLOCK,
        Supervision.BOX,
        Supervision.SCRIBBLE,
    ]
    assert PRESETS["fedlppa-octa"][4].style == "noisy"
    assert PRESETS["fedmix-box"][0].margin == (1, 10)
    assert PRESETS["fedpsl-a"][3].annotates == ("nodule", "consolidation", "pneumothorax")
    assert PRESETS["fedlppa-fundus"][2].convert == "scribble"


def federation(labels: int, sites: int, *, exclusive: bool = False) -> Federation:
    return Federation(
        name="x",
        task="classification",
        labels=tuple(f"l{i}" for i in range(labels)),
        exclusive=exclusive,
        image=ImageShape(size=(16, 16)),
        site=tuple(
            SiteDeclaration(name=f"s{i}", data="x", supervision=Supervision.IMAGE)
            for i in range(sites)
        ),
    )


@pytest.mark.parametrize(("labels", "sites"), [(14, 8), (7, 5), (6, 2), (3, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_label_sets_of_fedlsm_cover_all_labels_three_at_a_site(labels, sites, seed):
    study = federation(labels, sites)
    recipes = recipes_of("fedlsm-sets", study, "x", seed)
    assert list(recipes) == [site.name for site in study.site]
    assert {label for r in recipes.values() for label in r.annotates} == set(study.labels)
    assert [len(set(r.annotates)) for r in recipes.values()] == [3] * sites
    assert {(r.form, r.exclusive) for r in recipes.values()} == {(Supervision.IMAGE, False)}


def test_label_sets_come_from_the_seed_and_not_from_the_order_of_sites():
    study = federation(14, 8)
    turned = study.model_copy(update={"site": study.site[::-1]})
    recipes = recipes_of("fedlsm-sets", study, "x", 1)
    assert recipes == recipes_of("fedlsm-sets", turned, "x", 1)
    assert recipes != recipes_of("fedlsm-sets", study, "x", 2)
    exclusive = recipes_of("fedlsm-sets-exclusive", federation(14, 8, exclusive=True), "x", 1)
    assert {n: r.annotates for n, r in exclusive.items()} == {
        n: r.annotates for n, r in recipes.items()
    }


@pytest.mark.parametrize(("labels", "sites"), [(14, 4), (2, 4), (3, 1), (6, 1)])
def test_labels_that_cannot_be_dealt_are_refused(labels, sites):
    found = f"'x' has {labels} labels and {sites} site{'s' * (sites > 1)}; .* --labels A,B,C"
    with pytest.raises(UsageError, match=found):
        recipes_of("fedlsm-sets", federation(labels, sites), "x", 0)


@pytest.mark.parametrize(
    ("preset", "exclusive", "sentence"),
    [
        ("fedlsm-sets", True, "may occur together.*use --preset fedlsm-sets-exclusive"),
        ("fedlsm-sets-exclusive", False, "exclude each other.*use --preset fedlsm-sets"),
        ("fedlsm-tags", True, "may occur together.*use --preset fedlsm-tags-exclusive"),
        ("fedmix-image", False, "exclude each other.*use --form image"),
    ],
)
def test_a_preset_for_the_other_kind_of_labels_is_refused(preset, exclusive, sentence):
    with pytest.raises(UsageError, match=f"{sentence}$"):
        recipes_of(preset, federation(6, 4, exclusive=exclusive), "x", 0)
    assert len(recipes_of(preset, federation(6, 4, exclusive=not exclusive), "x", 0)) == 4
    assert len(recipes_of("fedmix-none", federation(6, 4, exclusive=exclusive), "x", 0)) == 4


def test_a_preset_that_deals_has_one_recipe():
    assert {name: len(PRESETS[name]) for name in DEALT} == dict.fromkeys(DEALT, 1)
