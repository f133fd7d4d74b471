from consilia.errors import listing, reason, suggestion, unknown


def test_a_name_nearly_right_is_suggested():
    assert suggestion("dyce", ["iou", "dice"]) == "; did you mean 'dice'?"
    assert suggestion("something", ["iou", "dice"]) == ""


def test_an_unknown_name_is_one_sentence_with_all_known_ones():
    known = {"dice": 1, "iou": 2}
    assert unknown("metric", "dyce", known) == (
        "no metric named 'dyce'; did you mean 'dice'? (known: dice, iou)"
    )
    assert unknown("metric", "x", iter(known)) == "no metric named 'x' (known: dice, iou)"


def test_names_are_listed_as_in_a_sentence():
    assert listing([]) == ""
    assert listing(["a"]) == "'a'"
    assert listing(["a", "b", "c"]) == "'a', 'b' and 'c'"


def test_the_operating_system_is_quoted_in_lower_case():
    assert reason(PermissionError(13, "Permission denied")) == "permission denied"
    assert reason(OSError("No space")) == "no space"
