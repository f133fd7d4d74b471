import os
import threading
import time

import pytest

from consilia.errors import RunError
from consilia.runs.lock import is_held, take_lock


def test_one_holds_a_lock_at_a_time(tmp_path):
    lock = tmp_path / "lock"
    assert not is_held(lock)
    assert not lock.exists()
    with take_lock(lock):
        assert is_held(lock)
        with pytest.raises(BlockingIOError):
            take_lock(lock)
    assert not is_held(lock)
    with take_lock(lock):
        pass


def test_what_a_lock_holds_is_left_as_it_is(tmp_path):
    (tmp_path / "lock").write_text("mine")
    with take_lock(tmp_path / "lock"):
        assert is_held(tmp_path / "lock")
    assert (tmp_path / "lock").read_text() == "mine"


def test_a_lock_that_is_let_go_soon_is_waited_for(tmp_path):
    held = take_lock(tmp_path / "lock")
    threading.Timer(0.2, held.close).start()
    began = time.monotonic()
    with take_lock(tmp_path / "lock", patience=10):
        assert time.monotonic() - began < 5


def test_a_link_or_a_pipe_is_no_lock(tmp_path):
    (tmp_path / "thesis").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "nowhere", "pipe", "folder"):
        with pytest.raises(RunError) as problem:
            take_lock(tmp_path / name)
        assert str(problem.value) == (
            f"lock '{tmp_path / name}' is a link or no plain file; remove it, and give the command again"
        )
        assert not is_held(tmp_path / name)
    assert (tmp_path / "thesis").read_text() == "mine"
    assert not (tmp_path / "gone").exists()
