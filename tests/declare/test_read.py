import os
from datetime import date

import pytest

from consilia.declare import SiteDeclaration
from consilia.declare.read import read_federation, read_site, read_toml, shown, validate
from consilia.errors import DeclarationError, UsageError
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
