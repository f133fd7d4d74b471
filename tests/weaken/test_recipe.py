from __future__ import annotations

import json

import pytest

from consilia.declare import SiteDeclaration, Supervision
from consilia.errors import DeclarationError
from consilia.weaken import PRESETS, Provenance, Recipe, recipe_for


def site(**more) -> SiteDeclaration:
    return SiteDeclaration(name="lima", data="x", **more)


def test_a_recipe_keeps_the_promise_of_a_declaration():
    declared = site(supervision="scribble", style="noisy", annotates=("b",))
    assert recipe_for(declared) == Recipe(Supervision.SCRIBBLE, ("b",), "noisy", convert="scribble")
    assert recipe_for(site(supervision="box")).convert == "block"
    assert recipe_for(site(supervision="box", sparsity="medium")).convert == "scribble"
    assert recipe_for(site(supervision="box"), margin=(0, 0)).margin == (0, 0)


def test_annotated_labels_are_indices_in_the_federations_order():
    labels = ("a", "b", "c")
    assert Recipe(Supervision.MASK).annotated(labels) == (0, 1, 2)
    assert Recipe(Supervision.MASK, ("c", "a")).annotated(labels) == (0, 2)
    assert Recipe(Supervision.NONE, ("c", "a")).annotated(labels) == ()


def test_completeness_is_for_sites_that_declare_incomplete_masks():
    assert recipe_for(site(complete=False), completeness=0.4).completeness == 0.4
    assert recipe_for(site(complete=False)).completeness is None
    assert recipe_for(site(), completeness=1.0).completeness is None
    with pytest.raises(DeclarationError, match="'lima' declares complete masks"):
        recipe_for(site(), completeness=0.4)


def test_a_recipe_that_makes_no_sense_is_refused():
    with pytest.raises(DeclarationError, match="not in"):
        Recipe(Supervision.MASK, completeness=0.0)
    with pytest.raises(DeclarationError, match="only masks"):
        Recipe(Supervision.BOX, completeness=0.5)


def test_a_provenance_survives_json():
    for recipes in PRESETS.values():
        for recipe in recipes:
            record = Provenance("lima", ("a", "b"), 3, recipe, {}, {"c": {"present": (1,)}})
            text = json.dumps(record.to_plain())
            assert Provenance.from_plain(json.loads(text)) == record
