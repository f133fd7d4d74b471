from __future__ import annotations

import inspect
import json
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import consilia.weaken as package
from consilia.declare import SiteDeclaration, Supervision
from consilia.errors import DataError, DeclarationError
from consilia.weaken import PRESETS, Provenance, Recipe, replay, weaken, weaken_by

LABELS = ("cup", "ring", "spot")
RECIPES = [
    *(Recipe(form) for form in Supervision),
    Recipe(Supervision.SCRIBBLE, style="noisy"),
    Recipe(Supervision.BOX, margin=(0, 0), convert="scribble"),
    Recipe(Supervision.MASK, completeness=0.4),
]
every_recipe = pytest.mark.parametrize(
    "recipe", RECIPES, ids=lambda r: f"{r.form}-{r.style}-{r.convert}-{r.completeness}"
)


def site(**more) -> SiteDeclaration:
    return SiteDeclaration(name="lima", data="x", **more)


def marking(recipe: Recipe, annotates: tuple[str, ...]) -> Recipe:
    return replace(recipe, annotates=annotates)


def truth_of(index_map_of, seed: int, count: int = 4) -> np.ndarray:
    return np.stack([index_map_of(seed + 1000 * i) for i in range(count)])


def same(one, other) -> bool:
    return all(
        (a is None and b is None) or np.array_equal(a, b)
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


@every_recipe
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_replay_gives_the_same_view_after_json(index_map_of, cases_of, recipe, seed):
    cases = cases_of(truth_of(index_map_of, seed))
    view, provenance = weaken_by(recipe, cases, LABELS, site="lima", seed=seed)
    text = json.dumps(provenance.to_plain())
    again = Provenance.from_plain(json.loads(text))
    assert again == provenance
    assert same(view, replay(again, cases))


@every_recipe
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_cases_does_not_matter(index_map_of, cases_of, recipe, seed):
    cases = cases_of(truth_of(index_map_of, seed))
    order = np.random.default_rng(seed).permutation(len(cases))
    view, provenance = weaken_by(recipe, cases, LABELS, site="lima", seed=seed)
    again, drawn = weaken_by(recipe, cases.take(order), LABELS, site="lima", seed=seed)
    assert same(view.take(order), again)
    assert provenance == drawn


@every_recipe
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_labels_that_are_not_marked_never_leak(index_map_of, cases_of, recipe, seed):
    truth = truth_of(index_map_of, seed)
    cases = cases_of(truth)
    some = marking(recipe, ("cup", "spot"))
    view, provenance = weaken_by(some, cases, LABELS, site="lima", seed=seed)
    without = cases_of(np.where(truth == 2, 0, truth).astype(np.uint8))
    blind, drawn = weaken_by(some, without, LABELS, site="lima", seed=seed)
    assert same(view, blind)
    assert provenance == drawn
    assert not (view.target == 2).any()
    assert not view.known_labels[:, 1].any()
    if view.constraint is not None:
        assert view.constraint[:, 1].all()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_sparse_marks_never_name_a_wrong_pixel(index_map_of, cases_of, seed):
    truth = truth_of(index_map_of, seed)
    for form in ("scribble", "point", "block"):
        view, _ = weaken(cases_of(truth), LABELS, site(supervision=form), seed=seed)
        assert (view.target[view.known_pixels] == truth[view.known_pixels]).all()
        assert (view.target[~view.known_pixels] == 0).all()
        assert view.known_pixels.any(axis=(1, 2)).all()
        assert view.supervises
        assert view.constraint is None


def test_masks_are_known_everywhere(index_map_of, cases_of):
    truth = truth_of(index_map_of, 3)
    view, provenance = weaken(cases_of(truth), LABELS, site(annotates=("ring",)), seed=0)
    assert (view.target == np.where(truth == 2, 2, 0)).all()
    assert view.known_labels.tolist() == [[False, True, False]] * 4
    assert view.known_pixels is None
    assert view.constraint is None
    assert provenance.marks == {}
    assert provenance.objects == {}


def test_an_incomplete_site_shows_some_objects_and_knows_its_zeros(cases_of):
    truth = np.zeros((3, 16, 16), dtype=np.uint8)
    truth[:, 1::3, 1::3] = 1  # 25 single pixels
    cases = cases_of(truth)
    view, provenance = weaken(cases, ("lesion",), site(complete=False), seed=0, completeness=0.3)
    assert view.target.sum(axis=(1, 2)).tolist() == [8, 8, 8]
    assert view.known_pixels is None
    assert view.known_labels.all()
    assert provenance.objects["case-0"]["lesion"]["of"] == 25
    assert not (view.target[0] == view.target[1]).all()


def test_image_tags_of_a_segmentation_task_supervise_nothing(index_map_of, cases_of):
    truth = truth_of(index_map_of, 9)
    view, _ = weaken(cases_of(truth), LABELS, site(supervision="image"), seed=0)
    assert not view.supervises
    assert not view.target.any()
    assert view.known_labels.all()
    for index in (1, 2, 3):
        present = (truth == index).any(axis=(1, 2))
        assert (view.constraint[:, index - 1].all(axis=(1, 2)) == present).all()
        assert (view.constraint[:, index - 1].any(axis=(1, 2)) == present).all()


def test_a_site_without_supervision_knows_nothing(index_map_of, cases_of):
    view, _ = weaken(cases_of(truth_of(index_map_of, 9)), LABELS, site(supervision="none"), seed=0)
    assert not view.known_labels.any()
    assert not view.known_pixels.any()
    assert not view.target.any()


TAGS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.uint8)


def test_exclusive_labels_are_known_in_full_where_one_is_marked(cases_of):
    some = site(supervision="image", annotates=("cup", "ring"))
    view, _ = weaken(cases_of(TAGS), LABELS, some, seed=0)
    assert view.target.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert view.known_labels.tolist() == [[True] * 3, [True] * 3, [True, True, False]]


def test_labels_that_may_co_occur_are_known_by_column(cases_of):
    tags = np.array([[1, 1, 1], [0, 0, 1]], dtype=np.uint8)
    some = site(supervision="image", annotates=("cup", "ring"))
    view, _ = weaken(cases_of(tags), LABELS, some, seed=0, exclusive=False)
    assert view.target.tolist() == [[1, 1, 0], [0, 0, 0]]
    assert view.known_labels.tolist() == [[True, True, False]] * 2


def test_a_classification_site_without_supervision_knows_nothing(cases_of):
    view, _ = weaken(cases_of(TAGS), LABELS, site(supervision="none"), seed=0)
    assert not view.target.any()
    assert not view.known_labels.any()
    assert view.known_pixels is None


@pytest.mark.parametrize(("first", "second"), [((1, "a"), (2, "a")), ((1, "a"), (1, "b"))])
def test_another_seed_or_site_draws_something_else(index_map_of, cases_of, first, second):
    cases, recipe = cases_of(truth_of(index_map_of, 1)), Recipe(Supervision.BOX)
    drawn = [
        weaken_by(recipe, cases, LABELS, site=name, seed=seed)[1].marks
        for seed, name in (first, second)
    ]
    assert drawn[0] != drawn[1]


@every_recipe
def test_no_cases_give_an_empty_view(cases_of, recipe):
    cases = cases_of(np.zeros((0, 16, 16), dtype=np.uint8))
    view, _ = weaken_by(recipe, cases, LABELS, site="lima", seed=0)
    assert len(view) == 0
    assert (view.constraint is not None) == recipe.form.constrains


def test_what_cannot_be_weakened_is_refused(index_map_of, cases_of):
    cases = cases_of(truth_of(index_map_of, 3))
    recipe = Recipe(Supervision.BLOCK)
    with pytest.raises(DataError, match="no full labels"):
        weaken_by(recipe, replace(cases, truth=None), LABELS, site="lima", seed=0)
    with pytest.raises(DataError, match="same name"):
        weaken_by(recipe, cases.take(np.array([0, 0])), LABELS, site="lima", seed=0)
    with pytest.raises(DataError, match="value 9"):
        weaken_by(recipe, cases_of(np.full((1, 8, 8), 9, np.uint8)), LABELS, site="lima", seed=0)
    with pytest.raises(DeclarationError, match="classification uses"):
        weaken_by(recipe, cases_of(TAGS), LABELS, site="lima", seed=0)


def test_cases_that_were_not_drawn_for_are_refused(index_map_of, cases_of):
    cases = cases_of(truth_of(index_map_of, 3))
    first = cases.take(np.array([0, 1]))
    _, provenance = weaken_by(Recipe(Supervision.BOX), first, LABELS, site="lima", seed=0)
    with pytest.raises(DataError, match="case 'case-2' of site 'lima'"):
        replay(provenance, cases)


def test_every_preset_runs(index_map_of, cases_of):
    masks = cases_of(truth_of(index_map_of, 3, count=2))
    for name, recipes in PRESETS.items():
        for recipe in recipes:
            cases = cases_of(TAGS) if name.startswith(("fedpsl", "fedlsm")) else masks
            view, _ = weaken_by(recipe, cases, LABELS, site="lima", seed=0)
            assert len(view) == len(cases)


def test_hundreds_of_images_take_seconds(index_map_of, cases_of):
    truth = np.stack([index_map_of(i, shape=(128, 128)) for i in range(50)])
    cases = cases_of(truth)
    start = time.process_time()
    for form in ("scribble", "point", "block", "box", "rotated-box"):
        weaken(cases, LABELS, site(supervision=form), seed=0)
    assert time.process_time() - start < 10  # 250 images; about 1 s on a laptop core


def test_what_is_exported_is_there_and_was_made_here():
    for name in package.__all__:
        thing = getattr(package, name)
        if not name.isupper():
            assert inspect.getmodule(thing).__name__.startswith("consilia.weaken.")
