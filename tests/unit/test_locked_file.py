"""One writer a file, and a writer that knows when its file has gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgekv.locked_file import check_at, is_at, open_locked, unlock

WAYS = pytest.mark.parametrize("way", [os.O_WRONLY, os.O_RDWR])


@WAYS
def test_of_two_one_is_refused_until_the_other_is_done(tmp_path: Path, way: int) -> None:
    path, flags = tmp_path / "a", way | os.O_CREAT
    first = open_locked(path, flags, 0o600)
    first.write(b"kept")
    with pytest.raises(BlockingIOError):
        open_locked(path, flags, 0o600)
    assert path.read_bytes() == b"kept", "opening takes nothing away"
    unlock(first.fileno(), os.getpid() + 1)  # not the one who took it
    with pytest.raises(BlockingIOError):
        open_locked(path, flags, 0o600)
    unlock(first.fileno(), os.getpid())
    open_locked(path, flags, 0o600).close()
    first.close()


@WAYS
def test_what_cannot_be_opened_raises_as_open_does(tmp_path: Path, way: int) -> None:
    with pytest.raises(FileNotFoundError):
        open_locked(tmp_path / "a", way, 0o600)
    with pytest.raises(IsADirectoryError):
        open_locked(tmp_path, way, 0o600)


def test_a_path_names_a_file_until_it_names_another_or_none(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a"
    path.parent.mkdir()
    with open_locked(path, os.O_WRONLY | os.O_CREAT, 0o600) as file:
        assert is_at(path, file.fileno())
        (tmp_path / "link").symlink_to(path)
        assert is_at(tmp_path / "link", file.fileno())
        path.unlink()
        for put in (path.parent.rmdir, path.parent.touch, path.parent.unlink, path.parent.mkdir):
            assert not is_at(path, file.fileno())
            put()
        path.touch()
        with pytest.raises(OSError, match=f"replaced meanwhile: '{path}'"):
            check_at(path, file.fileno(), os.getpid())
