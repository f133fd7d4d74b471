"""Files that appear whole: what a reader sees, what a failure leaves, many writers at a time."""

import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from consilia.atomic import whole_file, write_whole


def _names(folder):
    return [path.name for path in folder.iterdir()]


def test_what_was_there_stands_until_the_new_is_whole(tmp_path):
    path = tmp_path / "kept.json"
    write_whole(path, "old")
    with whole_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert _names(tmp_path) == ["kept.json"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "kept.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half of it, then what no file can hold: \ud800")
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["kept.json"]


def test_a_secret_file_is_secret_from_the_start(tmp_path):
    path = tmp_path / "kept.json"
    with whole_file(path, mode=0o600) as part:
        assert part.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o600


def test_who_may_read_it_does_not_depend_on_how_it_is_filled(tmp_path):
    path, other = tmp_path / "kept.json", tmp_path / "other"
    with whole_file(path) as part:
        other.touch(mode=0o600)
        other.replace(part)
    write_whole(tmp_path / "plain.json", "")
    assert path.stat().st_mode == (tmp_path / "plain.json").stat().st_mode


def _write_often(path, letter):
    for _ in range(200):
        write_whole(path, letter * 1000)


def test_threads_that_write_one_file_at_a_time_do_not_meet(tmp_path):
    path = tmp_path / "kept.json"
    met = threading.Barrier(2)

    def write(letter):
        with whole_file(path) as part:
            part.write_text(letter)
            met.wait(timeout=30)  # both have begun, none has ended

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, "ab"))
    assert path.read_text() in ("a", "b")
    assert _names(tmp_path) == ["kept.json"]


def test_processes_that_write_one_file_at_a_time_do_not_meet(tmp_path):
    path = tmp_path / "kept.json"
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(_write_often, path, letter) for letter in "abc"]:
            done.result()
    assert path.read_text() in ("a" * 1000, "b" * 1000, "c" * 1000)
    assert _names(tmp_path) == ["kept.json"]
