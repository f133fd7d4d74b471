"""Sentences that say the same are told once."""

from __future__ import annotations

import pytest

from consilia.readers.problems import Problems


def grouped(*sentences):
    report = Problems()
    for sentence in sentences:
        report("error", sentence)
    return [problem.sentence for problem in report.grouped()]


@pytest.mark.parametrize(
    ("sentence", "first", "also"),
    [
        ("image '{}' of site 'x' is empty", "a.png", "'n0.png', 'n1.png'"),
        (
            "image '{0}.png' of site 'x' has no mask; add 'masks/{0}.png'",
            "sub/a",
            "'sub/n0.png', 'sub/n1.png'",
        ),
        (
            "images '{0}' and 'z{0}' of site 'x' are the same; remove one",
            "a.png",
            "'n0.png' and 'zn0.png', 'n1.png' and 'zn1.png'",
        ),
        (
            "file '{}' of the common test set leads outside its folder",
            "a.json",
            "'n0.json', 'n1.json'",
        ),
        ("{} of site 'x' has no image of the same name", "a.txt", "n0.txt, n1.txt"),
        (
            "{0}.json of site 'x', shape 1, ends outside image '{0}.png'",
            "a",
            "n0.json, shape 1, n1.json, shape 1",
        ),
        ("boxes.csv of site 'x', {}, has no label", "line 2", "line 3, line 4"),
    ],
)
def test_many_that_differ_in_a_name_are_one(sentence, first, also):
    if first.startswith("line"):
        others = [f"line {number}" for number in range(3, 8)]
    else:
        others = [first.replace("a", f"n{number}", 1) for number in range(5)]
    told = [sentence.format(name) for name in (first, *others)]
    assert grouped(*told) == [f"{told[0]} (also {also} and 3 more)"]
    assert grouped(*told[:3]) == told[:3]


def test_what_differs_otherwise_is_told_apart():
    told = [f"image 'a.png' of site 'x' is {size} x 8 pixels" for size in range(5)]
    assert grouped(*told) == told
    told = [f"images 'a' and 'b{at}' of site 'x' are the same in {at}" for at in range(5)]
    assert grouped(*told) == told
