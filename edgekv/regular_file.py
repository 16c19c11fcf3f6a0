"""Opening a file to read it, when it is one.

Guarantees: a pipe is not waited for and a device is not read: both are refused as what they are.
Does not know: formats.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """A regular file, opened to be read. Raises OSError, also for what is none."""
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - Path has no opener
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
