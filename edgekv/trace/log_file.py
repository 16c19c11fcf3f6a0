"""The file of a log while it is written: its parts, and a buffer of about 8 KiB before it.

Owns: the open part, the frame around each record, the numbers of names.
Guarantees: at most ``max_bytes`` on disk in two parts, ``FILE.1`` the older, as long as nothing is
    flushed while ``is_full``; that does not come about where another part is begun in time.
Does not know: what records mean, when something is worth writing. Its owner handles OSError.
"""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path

from edgekv.config import format_bytes
from edgekv.locked_file import check_at, open_locked, unlock
from edgekv.trace.codec import Header, frame_record, pack_header
from edgekv.trace.records import RecordWriter

DEFAULT_MAX_BYTES = 64 * 2**20
_MIN_BYTES = 64 * 2**10
_BUFFER_BYTES = 8 * 2**10
_FLUSH_US = 1_000_000


def check_limit(max_bytes: int) -> None:
    """Raise ValueError for a limit that no log keeps to."""
    if max_bytes < _MIN_BYTES:
        raise ValueError(
            f"a trace needs at least {format_bytes(_MIN_BYTES)}, got "
            f"{format_bytes(max_bytes, rounded='down')}"
        )


class LogFile:
    """Parts of a log. ``begin`` one, add to it, ``flush`` it into the file."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path.absolute()  # wherever the program goes meanwhile
        self.records = RecordWriter(0)  # of the part that was begun last
        self.num_records = 0  # added since its owner set it to 0
        self._max_bytes = max_bytes
        self._file: FileIO | None = None
        self._buffer = bytearray()
        self._chain = 0
        self._num_bytes = self._older_bytes = 0  # on disk, of this part and of the older one
        self._last_flush_us = 0
        self._process = os.getpid()

    @property
    def older_path(self) -> Path:
        """Where a part goes when another begins."""
        return self.path.with_name(self.path.name + ".1")

    def begin(self, header: Header) -> None:
        """Go on with another part, whose first records are added before ``create``."""
        self.records = RecordWriter(header.part_us)
        self._buffer = bytearray(pack_header(header))
        self._chain = self.num_records = 0
        self._last_flush_us = header.part_us

    def create(self) -> None:
        """Make the file of the part that was begun, in place of the one before, which becomes the
        older part. Raises OSError."""
        if self._file is not None:
            self._check_there(self._file.fileno())
            self._let_go(self._file)
            self.path.replace(self.older_path)
            self._older_bytes = self._num_bytes
        self._file = open_locked(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        self._file.truncate()
        self._num_bytes = 0
        self.flush()

    @property
    def closed(self) -> bool:
        return self._file is None or self._file.closed

    @property
    def is_part_full(self) -> bool:
        """Whether it is time for another part."""
        in_all = self._num_bytes + self._older_bytes
        is_half = self._num_bytes >= self._max_bytes // 2 - _BUFFER_BYTES
        return is_half or in_all >= self._max_bytes - 2 * _BUFFER_BYTES

    @property
    def is_full(self) -> bool:
        """Whether what waits has no room beside the older part."""
        return self._num_bytes + self._older_bytes + len(self._buffer) > self._max_bytes

    def add(self, record: bytearray) -> None:
        """One more record."""
        framed, self._chain = frame_record(record, self._chain)
        self._buffer += framed
        self.num_records += 1

    def name(self, text: str, now_us: int) -> int:
        """The number of a name, which is told when it is new."""
        number, named = self.records.name(text, now_us)
        if named is not None:
            self.add(named)
        return number

    def is_due(self, now_us: int) -> bool:
        """Whether what waits should be flushed; true once for each time."""
        if len(self._buffer) < _BUFFER_BYTES and now_us - self._last_flush_us < _FLUSH_US:
            return False
        self._last_flush_us = now_us
        return True

    def flush(self) -> None:
        """Write what waits. Raises OSError, also where the file is not what was written here."""
        assert self._file is not None
        self._check_there(self._file.fileno())
        while self._buffer:  # an unbuffered file may take less than it is given
            num_written = self._file.write(self._buffer)
            self._num_bytes += num_written
            del self._buffer[:num_written]

    def close(self) -> None:
        """Close the file; what waits is lost. Closing twice is fine."""
        self._buffer.clear()
        if self._file is not None and not self._file.closed:
            self._let_go(self._file)

    def _check_there(self, descriptor: int) -> None:
        check_at(self.path, descriptor, self._process)
        if os.fstat(descriptor).st_size != self._num_bytes:
            raise OSError(errno.EIO, "it was cut off or written to meanwhile", str(self.path))

    def _let_go(self, file: FileIO) -> None:
        unlock(file.fileno(), self._process)
        file.close()
