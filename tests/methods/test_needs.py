from consilia.methods.needs import masks_of_one_label
from consilia.testing import toy_spec


def test_masks_of_one_label():
    one = {"labels": ["x"]}
    assert masks_of_one_label(toy_spec(**one).federation) is None
    assert "segments one label" in masks_of_one_label(toy_spec().federation)
    assert "classification" in masks_of_one_label(toy_spec("multi-label").federation)
    mixed = [{"name": "a", "supervision": "mask"}, {"name": "b", "supervision": "box"}]
    found = masks_of_one_label(toy_spec(sites=mixed, **one).federation)
    assert found == "needs masks at every site; 'b' gave other forms"
