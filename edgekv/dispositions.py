"""What the system does when a signal comes, kept where Python would forget it.

Owns: the system's own record of a signal: handler in C, flags, mask.
Guarantees: what ``read`` saw is there again after ``write``, whatever Python has set meanwhile:
    ``signal.signal`` forgets ``signal.siginterrupt`` and handlers that were installed in C beside
    Python's, as ``faulthandler.register`` does.
Does not know: Python's handlers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache

_MAX_BYTES = 256  # of a ``struct sigaction``: 152 on 64-bit Linux
_IS_KNOWN = sys.platform == "linux" and sys.maxsize > 2**32


class Disposition:
    """Of one signal. Where the system cannot be asked it does nothing."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._buffer = ctypes.create_string_buffer(_MAX_BYTES)
        self._record = b""  # none: it could not be read
        self._usual = b""  # what Python alone leads to
        self._is_usual = False

    def read(self) -> None:
        """Look at what the system does now, with a handler of Python's."""
        self._record = self._now()
        self._is_usual = _told(self._record) == self._usual

    def write(self) -> None:
        """Have the system do what it did, after Python has set another handler."""
        if self._record and not self._is_usual:
            self._usual = self._usual or _told(self._now())
            _sigaction()(self._number, self._record, None)

    def _now(self) -> bytes:
        return b"" if _sigaction()(self._number, None, self._buffer) else self._buffer.raw


def _told(record: bytes) -> bytes:
    """What a record says, without what libraries leave in it by chance. Elsewhere than on 64-bit
    Linux nobody knows, and no two are taken for the same."""
    return record[:16] + record[136:140] if _IS_KNOWN else record  # handler, mask; flags


@cache
def _sigaction() -> Callable[..., int]:
    try:
        # Python's lock is not let go for this: another thread would keep it for milliseconds.
        return ctypes.PyDLL(None).sigaction
    except (AttributeError, OSError, TypeError):
        return lambda *_: -1
