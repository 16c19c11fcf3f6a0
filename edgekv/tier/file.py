"""Records of one size in a ring on disk. The format is docs/tier_format.md.

Owns: the bytes of the file, its lock, one buffer of one record.
Guarantees: a record that is given out is the one that was written, whole: one that a kill or a
    power cut tore, or that changed on disk, is never given out; the file never exceeds its limit,
    the oldest records leave; nobody else writes while it is open. One that is dropped is let go as
    any file of Python is: at once, with a ResourceWarning.
Does not know: what records hold.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from edgekv.atomic_file import holds_something_else, replacing
from edgekv.checks import MAX_WHOLE
from edgekv.decode import decode, parse_json
from edgekv.errors import TierError
from edgekv.locked_file import check_at, open_locked, unlock

MAGIC = b"edgekvti"
FORMAT_VERSION = 1
HEADER_BYTES = 4096  # records begin behind it
_PREAMBLE = struct.Struct("<8sII32s")  # magic, version, bytes of the JSON, its SHA-256
_FRAME = struct.Struct("<IIQ")  # in front of each record: CRC-32 of what follows, mark, number
_MARK = 0x7E1D0C0D
FRAME_BYTES = _FRAME.size
_MAX_RECORD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TierHeader:
    """What stands at the start of the file."""

    record_bytes: int
    num_slots: int
    meta: dict[str, object]  # JSON

    def __post_init__(self) -> None:
        if not FRAME_BYTES < self.record_bytes <= _MAX_RECORD_BYTES or self.num_slots < 1:
            raise ValueError(
                f"{self.num_slots} records of {self.record_bytes} bytes are no tier: at least one "
                f"is needed, of {FRAME_BYTES + 1} to {_MAX_RECORD_BYTES} bytes"
            )
        if self.num_slots * self.record_bytes > MAX_WHOLE - HEADER_BYTES:
            raise ValueError(f"num_slots is {self.num_slots}, more than a file can hold")


def slots_within(max_bytes: int, body_bytes: int) -> int:
    """How many records of ``body_bytes`` a file of at most ``max_bytes`` holds."""
    return max(max_bytes - HEADER_BYTES, 0) // (FRAME_BYTES + body_bytes)


class TierFile:
    """An open tier file. ``buffer`` holds the record that is being written or was read last."""

    def __init__(self, path: Path, file: FileIO, header: TierHeader) -> None:
        self.path = path.absolute()  # wherever the program goes meanwhile
        self.header = header
        self.next_number = 0  # of the next record; its slot is number % num_slots
        # (record_bytes - FRAME_BYTES,) what a caller fills, a view of the whole record
        self._record = np.zeros(header.record_bytes, np.uint8)
        self.buffer = self._record[FRAME_BYTES:]
        self._file = file
        self._descriptor = file.fileno()
        self._process = os.getpid()
        self._preamble = os.pread(self._descriptor, _PREAMBLE.size, 0)
        self._has_name = True
        self.overwritten = False  # by somebody else: no record is the one that was written

    @classmethod
    def create(
        cls, path: str | Path, *, body_bytes: int, max_bytes: int, meta: Mapping[str, object]
    ) -> TierFile:
        """A new file without records, in place of an older tier file. Raises TierError."""
        path = Path(path)
        record_bytes = FRAME_BYTES + body_bytes
        num_slots = slots_within(max_bytes, body_bytes)
        if num_slots < 1:
            raise TierError(
                f"{path}: a limit of {max_bytes} bytes holds no frame, "
                f"one takes {record_bytes} and the header {HEADER_BYTES}"
            )
        if holds_something_else(path, MAGIC):
            raise TierError(f"{path}: holds something else than a tier and is not replaced")
        header = TierHeader(record_bytes, num_slots, dict(meta))
        is_new = not path.exists()
        # Held until the new file, locked, is in its place: of two who begin at once one is refused.
        with _open_locked(path, os.O_CREAT, "made") as older:
            try:
                return cls(path, _replace(path, _packed(path, header)), header)
            except BaseException:
                if is_new and not os.fstat(older.fileno()).st_size:
                    path.unlink(missing_ok=True)
                raise

    @classmethod
    def open(cls, path: str | Path) -> TierFile:
        """An existing file. ``records`` must be read through before anything is appended."""
        path = Path(path)
        file = _open_locked(path)
        try:
            return cls(path, file, _read_header(path, file.fileno()))
        except BaseException:
            file.close()
            raise

    def records(self) -> Iterator[int]:
        """Numbers of the intact records, slot by slot; each is in ``buffer`` when it is yielded.
        Afterwards new records go on from the newest."""
        self.next_number = 0
        for slot in range(self.header.num_slots):
            if not self._read_slot(slot):
                if os.fstat(self._descriptor).st_size <= self._offset(slot):
                    break
                continue
            number = _FRAME.unpack_from(self._record.data)[2]
            if number % self.header.num_slots == slot:
                self.next_number = max(self.next_number, number + 1)
                yield number

    def append(self) -> int:
        """Write ``buffer`` as the next record: its number. Raises OSError; a record that was in its
        place may be lost then."""
        number, record = self.next_number, self._record.data
        _FRAME.pack_into(record, 0, 0, _MARK, number)
        struct.pack_into("<I", record, 0, zlib.crc32(record[4:]))
        self._write(record, self._offset(number % self.header.num_slots))
        self.next_number = number + 1
        return number

    def read(self, number: int) -> bool:
        """Put the record ``number`` into ``buffer``: False when it is torn, changed or gone."""
        if not self._read_slot(number % self.header.num_slots):
            return False
        stored: int = _FRAME.unpack_from(self._record.data)[2]
        return stored == number

    def erase(self, number: int) -> None:
        """Make sure that a record is never given out again. Raises OSError."""
        self._write(memoryview(bytes(FRAME_BYTES)), self._offset(number % self.header.num_slots))

    def read_ahead(self, number: int) -> None:
        """Ask the system to fetch a record from the disk without waiting for it."""
        if not hasattr(os, "posix_fadvise"):  # macOS
            return
        offset, size = self._offset(number % self.header.num_slots), self.header.record_bytes
        with suppress(OSError):  # it is advice
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def forget_cached(self) -> None:
        """Have the next reads come from the disk, where the system can be told: for measurements.
        Raises OSError."""
        os.fsync(self._descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Let go of the file and its lock. Closing twice is fine."""
        if self._descriptor >= 0:
            unlock(self._descriptor, self._process)
        self._descriptor = -1
        self._file.close()

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def lose_name(self) -> None:
        """Be found by nobody, and gone once it is closed."""
        self.path.unlink(missing_ok=True)
        self._has_name = False

    def check_there(self) -> None:
        """Raise OSError unless the file is at its path, with its header: what is written would be
        found by nobody, or by those who wrote there."""
        if self._has_name:
            check_at(self.path, self._descriptor, self._process)
        if os.pread(self._descriptor, _PREAMBLE.size, 0) != self._preamble:
            self.overwritten = True
            raise OSError(errno.EIO, "it was overwritten meanwhile", str(self.path))

    def _offset(self, slot: int) -> int:
        return HEADER_BYTES + slot * self.header.record_bytes

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            done = os.pwrite(self._descriptor, data, offset)
            data, offset = data[done:], offset + done

    def _read_slot(self, slot: int) -> bool:
        record, offset = self._record.data, self._offset(slot)
        try:
            if os.preadv(self._descriptor, [record], offset) != len(record):
                return False
        except OSError:
            return False
        crc, mark, _ = _FRAME.unpack_from(record)
        return bool(mark == _MARK and crc == zlib.crc32(record[4:]))


def _open_locked(path: Path, flags: int = 0, verb: str = "opened") -> FileIO:
    """The file at ``path``, and its lock with it. Raises TierError."""
    try:
        return open_locked(path, os.O_RDWR | flags, 0o600)
    except BlockingIOError:
        raise TierError(
            f"{path}: another session writes to it; every session needs a tier file of its own"
        ) from None
    except OSError as error:
        raise TierError(f"{path}: cannot be {verb} ({error.strerror})") from None


def _replace(path: Path, data: bytes) -> FileIO:
    """A file of ``data`` in place of the one at ``path``, never unlocked. Raises TierError."""
    descriptor = -1
    try:
        with replacing(path) as file:
            file.write(data)
            descriptor = os.dup(file.fileno())  # the lock is the open file's, not the number's
        return FileIO(os.fspath(path), "r+b", opener=lambda *_: descriptor)
    except BaseException as error:
        if descriptor >= 0:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise TierError(f"{path}: cannot be made ({error.strerror})") from None
        raise


def _packed(path: Path, header: TierHeader) -> bytes:
    """The start of the file, up to its first record. Raises TierError."""
    text = json.dumps(asdict(header)).encode()
    if _PREAMBLE.size + len(text) > HEADER_BYTES:
        raise TierError(f"{path}: the header is too long ({len(text)} bytes)")
    head = _PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(text), hashlib.sha256(text).digest())
    return (head + text).ljust(HEADER_BYTES, b"\0")


def _read_header(path: Path, descriptor: int) -> TierHeader:
    try:
        data = os.pread(descriptor, HEADER_BYTES, 0)
    except OSError as error:
        raise TierError(f"{path}: cannot be read ({error.strerror})") from None
    if data[: len(MAGIC)] != MAGIC:
        raise TierError(f"{path}: not a tier of edgekv")
    if len(data) < HEADER_BYTES:
        raise TierError(f"{path}: it ends inside its header")
    _, version, length, digest = _PREAMBLE.unpack_from(data)
    if version != FORMAT_VERSION:
        raise TierError(f"{path}: format {version}, this edgekv reads format {FORMAT_VERSION}")
    text = data[_PREAMBLE.size : _PREAMBLE.size + length]
    if hashlib.sha256(text).digest() != digest:
        raise TierError(f"{path}: its header was changed")
    try:
        return decode(TierHeader, parse_json(text, "its header"), "its header")
    except ValueError as error:
        raise TierError(f"{path}: {error}") from None
