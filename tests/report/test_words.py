from __future__ import annotations

import math

from consilia.report import words as w


def test_numbers():
    assert w.number(0.12345) == "0.123"
    assert [w.number(v) for v in (None, math.nan, math.inf, "x", True)] == ["–"] * 5
    assert w.count(2078033) == "2,078,033"
    assert [w.size(v) for v in (0, 999, 1000, 8_312_132, 5e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "8.3 MB",
        "5.0 TB",
    ]
    assert [w.duration(v) for v in (4.4, 61, 3700, None)] == ["4 s", "1 min 1 s", "1 h 1 min", "–"]


def test_lists():
    assert w.spans([7, 1, 3, 4, 5, 6, 3]) == "1, 3 to 7"
    assert w.spans([2, 3]) == "2, 3"
    assert w.between([]) == "–"
    assert w.between([3, 3]) == "3"
    assert w.between([2, 5]) == "2 to 5"
    assert w.plural(1, "site") == "1 site"
    assert w.plural(2, "site") == "2 sites"
    assert [w.sentence_list(v) for v in ([], ["a"], ["a", "b", "c"])] == ["", "a", "a, b and c"]
