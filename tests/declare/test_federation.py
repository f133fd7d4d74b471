"""A `Federation` that exists is valid; the sentences of what is refused are in tests/cli."""

import pytest
from pydantic import ValidationError

from consilia.declare import COMMON, POOLED, Federation, SiteDeclaration, Sparsity, Supervision
from consilia.declare.supervision import DEFAULT_SPARSITY
from consilia.errors import DeclarationError


def federation(**changes):
    table = {
        "name": "toy",
        "task": "segmentation",
        "labels": ["liver", "spleen", "kidney"],
        "image": {"size": [16, 16]},
        "site": [
            {"name": "oslo", "data": "oslo"},
            {
                "name": "lima",
                "data": "lima",
                "supervision": "box",
                "annotates": ["kidney", "liver"],
            },
            {"name": "bonn", "data": "/data/bonn", "supervision": "none"},
        ],
    }
    return Federation.model_validate({**table, **changes})


def test_sites_are_sorted_whatever_their_order_in_the_file():
    declared = federation()
    turned = federation(site=[site.model_dump() for site in reversed(declared.site)])
    assert declared.sites == turned.sites == ("bonn", "lima", "oslo")
    assert declared["lima"].data == turned["lima"].data == "lima"


def test_labels_are_given_in_the_federations_order():
    declared = federation()
    assert declared.annotated_by("oslo") == ("liver", "spleen", "kidney")
    assert declared.annotated_by("lima") == ("liver", "kidney")
    assert declared.annotated_by("bonn") == ()


def test_full_labels_are_complete_masks_of_everything():
    sites = [{"name": "oslo", "data": "d", "complete": False, "annotates": ["liver"]}]
    full = federation(site=sites).with_full_labels()
    assert full.annotated_by("oslo") == ("liver", "spleen", "kidney")
    assert (full["oslo"].complete, full["oslo"].supervision) == (True, Supervision.MASK)
    sites = [{"name": "oslo", "data": "d", "supervision": "none"}]
    full = federation(site=sites, task="classification").with_full_labels()
    assert full["oslo"].supervision is Supervision.IMAGE


def test_nothing_can_be_changed_afterwards():
    with pytest.raises(ValidationError, match="frozen"):
        federation().name = "other"


@pytest.mark.parametrize("form", list(Supervision))
def test_every_form_has_a_usual_sparsity_and_one_role(form):
    site = SiteDeclaration(name="a", data="d", supervision=form)
    assert site.density is DEFAULT_SPARSITY[form]
    assert not (form.marks_pixels and form.constrains)
    sparse = SiteDeclaration(name="a", data="d", supervision=form, sparsity="sparse")
    assert sparse.density is Sparsity.SPARSE


@pytest.mark.parametrize("name", [POOLED, COMMON, "", "-a", "A", "a b", "a/b", "x" * 64])
def test_names_that_are_not_plain_are_refused(name):
    with pytest.raises(DeclarationError, match="site name"):
        SiteDeclaration(name=name, data="d")


@pytest.mark.parametrize("label", ["", " a", "a ", "a/b", "a,b", "a\tb", "x" * 64, "image"])
def test_labels_that_cannot_name_a_column_or_a_metric_are_refused(label):
    with pytest.raises(DeclarationError, match="label"):
        federation(labels=["liver", "spleen", "kidney", label])


ODD = ["", " ", "a ", "a/b", "a,b", "a\nb", "a\x1b[31mred", "x" * 64]


@pytest.mark.parametrize("name", ODD)
def test_federations_and_regions_are_named_as_labels_are(name):
    with pytest.raises(
        DeclarationError, match=r"(?s)federation name '.*' must be 1 to 63 characters"
    ):
        federation(name=name)
    with pytest.raises(DeclarationError, match=r"(?s)region '.*' must be 1 to 63 characters"):
        federation(regions={name: ["liver"]})


def test_a_region_may_have_the_name_of_a_label_that_it_unites():
    regions = {"liver": ["liver", "spleen"], "kidney": ["kidney"]}
    assert set(federation(regions=regions).regions) == {"liver", "kidney"}
    with pytest.raises(DeclarationError, match="region 'liver' has the name of a label"):
        federation(regions={"liver": ["spleen"]})


@pytest.mark.parametrize("label", ["a", "Lésion 2", "x" * 63])
def test_other_labels_are_fine(label):
    assert federation(labels=["liver", "kidney", label]).labels[2] == label


@pytest.mark.parametrize("place", ["..", "a/../b", "../b", "", "  "])
def test_data_never_leaves_its_folder(place):
    with pytest.raises(DeclarationError, match="`data` of site 'oslo'"):
        SiteDeclaration(name="oslo", data=place)
    with pytest.raises(DeclarationError, match="the common `test` set"):
        federation(test=place)


def test_an_absolute_place_and_a_dataset_are_fine():
    assert SiteDeclaration(name="a", data="/data/a").data == "/data/a"
    assert federation(test="dataset:phantom-mixed").test == "dataset:phantom-mixed"
