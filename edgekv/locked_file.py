"""Files that one writes to and nobody else: their lock, and whether they are still at their path.

Guarantees: of two who open one at once, one is refused; a child that was forked off keeps no lock
    that its parent has given up. Does not know: what is written.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from io import FileIO
from pathlib import Path


def open_locked(path: Path, flags: int, mode: int) -> FileIO:
    """The file at ``path``, opened to be written to, and its lock with it; where a file system has
    none, without. ``flags`` and ``mode`` as of ``os.open``. Raises BlockingIOError while another
    has the lock, OSError."""

    def opener(name: str, _: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC, mode)

    while True:
        file = FileIO(os.fspath(path), "r+b" if flags & os.O_RDWR else "wb", opener=opener)
        try:
            _lock(file)
            if is_at(path, file.fileno()):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # replaced by another before it was locked


def _lock(file: FileIO) -> None:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # no locks on this file system


def unlock(descriptor: int, process: int) -> None:
    """Give a lock up that ``process`` has taken. To be called before the file is closed: a child
    that was forked off meanwhile holds the lock as well."""
    if process == os.getpid():
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_at(path: Path, descriptor: int) -> bool:
    """Whether ``path`` still names the open file. Raises OSError where it cannot be told."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_at(path: Path, descriptor: int, process: int) -> None:
    """Raise OSError unless ``path`` still names the open file, and this is the ``process`` that has
    opened it: of two who went on writing from where they parted, none would find its own."""
    if process != os.getpid():
        raise OSError(errno.EPERM, "it stays with the process that has opened it", str(path))
    if not is_at(path, descriptor):
        raise OSError(errno.ENOENT, "it was removed, renamed or replaced meanwhile", str(path))
