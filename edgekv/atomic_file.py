"""Replacing a file as a whole: whoever opens it finds the old contents or the new, never a mixture.

Owns: the temporary file beside the target, ``.NAME.XXXXXXXX.tmp``, locked while it is written.
Guarantees: after a power cut or a kill at any moment the target is as before or complete; a write
    that fails leaves the target alone; what killed writers left behind goes with the next write.
Does not know: what is written.
"""

from __future__ import annotations

import fcntl
import glob
import os
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_SUFFIX = ".tmp"


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Generator[BinaryIO, None, None]:
    """A file to write and seek in, which becomes ``path`` when the block ends without an error.

    A symbolic link stays one: its target is replaced. The new file is readable by its owner only.
    Raises OSError.
    """
    target = Path(os.path.realpath(path))
    _remove_stale(target)
    temporary, descriptor = _create_locked(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # Under the lock, so that no other writer takes the complete file for a stale one.
            temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def holds_something_else(path: str | os.PathLike[str], magic: bytes) -> bool:
    """Whether ``path`` is a file with contents that do not begin with ``magic``: somebody's video,
    say, that writing to a mistyped path would destroy; or a device or a pipe, which a file would
    take the place of."""
    target = Path(path)
    with suppress(OSError):  # where it cannot be told, writing there fails and says why
        mode = target.stat().st_mode  # asked once: another may put its file there meanwhile
        if not stat.S_ISREG(mode):
            return not stat.S_ISDIR(mode)
        with target.open("rb") as file:
            start = file.read(len(magic))
            return bool(start) and start != magic
    return False


def _create_locked(target: Path) -> tuple[Path, int]:
    """A temporary file of ``target`` and its descriptor, which holds its lock."""
    while True:
        descriptor, name = tempfile.mkstemp(_SUFFIX, f".{target.name}.", target.parent)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another writer took it for a stale one before it was locked
        except OSError:
            return Path(name), descriptor  # no locks on this file system: stale files stay there
        else:
            if os.fstat(descriptor).st_nlink:
                return Path(name), descriptor
        os.close(descriptor)


def _remove_stale(target: Path) -> None:
    """Remove temporary files of ``target`` that no living writer holds the lock of."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*{_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:  # another writer may remove it first
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut. The new file is there already: where the folder
    may be written to and not be read, that is as much as can be done."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
