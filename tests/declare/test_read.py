import os
from datetime import date, datetime, time

import pytest

from consilia.declare import SiteDeclaration
from consilia.declare.read import read_federation, read_site, read_toml, shown, validate
from consilia.errors import DeclarationError, UsageError
from consilia.runs.published import Published
from consilia.runs.spec import RunSpec
from tests.cli.support import federation_table, write_toml


def test_a_federation_is_read_as_it_is_written(tmp_path):
    write_toml(tmp_path / "federation.toml", federation_table())
    declared = read_federation(tmp_path / "federation.toml")
    assert declared.labels == ("round", "square")
    assert declared.image.size == (16, 16)


def test_a_byte_order_mark_is_no_reason_to_refuse_a_file(tmp_path):
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfname = 'a'\n")
    assert read_toml(tmp_path / "a.toml") == {"name": "a"}


def test_a_sites_own_file_has_one_table(tmp_path):
    path = tmp_path / "site.toml"
    write_toml(path, {"site": {"name": "oslo", "data": "d", "supervision": "box"}})
    assert read_site(path).supervision == "box"
    write_toml(path, {"site": [{"name": "oslo", "data": "d"}]})
    with pytest.raises(DeclarationError, match="expected one \\[site\\] table and nothing else"):
        read_site(path)
    path.write_text("")
    with pytest.raises(DeclarationError, match="but found nothing"):
        read_site(path)


def test_the_error_class_is_the_callers(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_toml(tmp_path / "gone.toml", UsageError)


def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path):
    path = tmp_path / ("x" * 300 + ".toml")
    with pytest.raises(DeclarationError, match="cannot be read: file name too long"):
        read_toml(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(DeclarationError, match="is not a file"):
        read_toml(tmp_path / "pipe.toml")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (float("nan"), "nan"),
        ("a", "'a'"),
        ([1, "b"], "[1, 'b']"),
        ({"a": 1}, "a table"),
        ("x" * 99, "'" + "x" * 55 + "...'"),
    ],
)
def test_values_are_shown_as_toml_has_them(value, text):
    assert shown(value) == text


@pytest.mark.parametrize("value", ["5", 5.0, True, [5]])
def test_only_a_whole_number_is_a_whole_number(value):
    table = {"study": "toy", "federation": federation_table(), "rounds": value}
    with pytest.raises(UsageError, match=r"a.toml: 'rounds' is .*; expected a whole number"):
        validate(RunSpec, table, "a.toml", UsageError)


def test_a_place_within_an_inner_table_names_the_site():
    table = {"study": "toy", "federation": federation_table(site=[{"name": "oslo"}])}
    with pytest.raises(UsageError, match=r"a.toml: site 'oslo': key 'data' is missing"):
        validate(RunSpec, table, "a.toml", UsageError)


def test_a_date_is_no_text_in_disguise():
    day = date(2026, 1, 1)
    with pytest.raises(DeclarationError, match="'complete' is 2026-01-01; expected true or false"):
        validate(SiteDeclaration, {"name": "a", "data": "d", "complete": day}, "a.toml")
    refused = "expected no date or time: put text in quotes"
    for moment in (day, datetime(2026, 1, 1, 9), time(9, 30)):
        with pytest.raises(DeclarationError, match=f"a.toml: 'data' is {moment}; {refused}"):
            validate(SiteDeclaration, {"name": "a", "data": moment}, "a.toml")
    table = {"name": "a", "data": "d", "annotates": ["b", day]}
    with pytest.raises(DeclarationError, match=f"entry 2 of 'annotates' is 2026-01-01; {refused}"):
        validate(SiteDeclaration, table, "a.toml")
    federation = federation_table(site=[{"name": "oslo", "data": day}])
    with pytest.raises(UsageError, match=f"a.toml: site 'oslo': 'data' is 2026-01-01; {refused}"):
        validate(RunSpec, {"study": "toy", "federation": federation}, "a.toml", UsageError)


def test_a_number_without_end_is_one_sentence(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(f"rounds = {'9' * 5000}")
    with pytest.raises(UsageError, match=r"file 'a.toml' cannot be read: .* thousands of digits"):
        read_toml(path, UsageError)
    path.write_text(f"rounds = 0x{'f' * 5000}")
    with pytest.raises(UsageError, match=r"a.toml: .* thousands of digits; write a smaller one"):
        validate(RunSpec, read_toml(path), "a.toml", UsageError)


@pytest.mark.parametrize("depth", [250, 2000])
def test_tables_within_tables_within_tables_are_one_sentence(tmp_path, depth):
    path = tmp_path / "a.toml"
    path.write_text(f"{'data.' * depth}data = 1")
    with pytest.raises(DeclarationError, match=r"a.toml: tables or lists are nested too deeply"):
        validate(SiteDeclaration, read_toml(path), path.name)


@pytest.mark.parametrize(
    ("value", "said", "expected"),
    [
        (0, "0", "at least 1 or 'auto'"),
        (1.5, "1.5", "a whole number or 'auto'"),
        ("x", "'x'", "a whole number or 'auto'"),
        ("aut", "'aut'", "a whole number or 'auto'; did you mean 'auto'?"),
        ([1], "[1]", "a whole number or 'auto'"),
        ({"a": 1}, "a table", "a whole number or 'auto'"),
    ],
)
def test_of_two_kinds_of_value_both_are_expected(value, said, expected):
    table = {"study": "toy", "federation": federation_table(), "engine": {"lanes": value}}
    with pytest.raises(UsageError) as refused:
        validate(RunSpec, table, "a.toml", UsageError)
    assert str(refused.value) == f"a.toml: 'engine.lanes' is {said}; expected {expected}"


def test_of_two_kinds_of_value_in_a_list_both_are_expected():
    row = {"method": "local", "called": "LL", "values": [1.0, True]}
    table = {"source": "s", "what": "w", "metric": "dice", "columns": ["a", "b"], "rows": [row]}
    with pytest.raises(UsageError, match="entry 2 of 'values' is true; expected a number or text"):
        validate(Published, {"table": [table]}, "a.toml", UsageError)
