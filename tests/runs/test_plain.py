import os

import pytest

from consilia.runs.plain import open_all, open_plain, read_plain


def test_a_plain_file_is_read_and_so_is_what_a_link_leads_to(tmp_path):
    (tmp_path / "file").write_bytes(b"a\xff")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_plain(tmp_path / "file") == read_plain(tmp_path / "link") == b"a\xff"


def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "device", "folder"):
        with pytest.raises(OSError, match="it is not a plain file"):
            read_plain(tmp_path / name)
    with pytest.raises(OSError, match="it is not a plain file"):
        open_plain(tmp_path / "pipe", os.O_RDWR)


def test_every_file_of_a_folder_is_tried(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("")
    open_all(tmp_path)
    os.mkfifo(tmp_path / "a/b/pipe")
    with pytest.raises(OSError, match="it is not a plain file") as problem:
        open_all(tmp_path)
    assert problem.value.filename == str(tmp_path / "a/b/pipe")
    with pytest.raises(FileNotFoundError):
        open_all(tmp_path / "gone")
