"""Reads a log back: its header, then its events, part after part.

Guarantees: a file that is no log, of another format, or damaged gets a TraceError of one line; one
    that merely ends early is read up to its last complete record, and ``cut_short`` says so.
Does not know: what events mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgekv.checks import path_of
from edgekv.errors import TraceError
from edgekv.regular_file import open_regular
from edgekv.trace.codec import MAX_HEADER_BYTES, Header, Incomplete, unframe_record, unpack_header
from edgekv.trace.events import Changed, Event, Held, Kept, Reserved
from edgekv.trace.unpack import RecordReader


class TraceLog:
    """A log on disk. ``events`` may be iterated several times; it reads the file each time."""

    def __init__(self, path: Path, parts: list[tuple[Path, Header]]) -> None:
        self.path = path
        self.parts = tuple(parts)
        self.cut_short: str | None = None  # what is missing at the end; known after reading it all
        self.num_bytes = sum(part.stat().st_size for part, _ in parts)

    @property
    def header(self) -> Header:
        """The oldest part's."""
        return self.parts[0][1]

    @property
    def from_start(self) -> bool:
        """Whether the log tells all that happened, from an empty cache on."""
        return self.header.part == 0

    def events(self) -> Iterator[Event]:
        """Everything that happened. Raises TraceError where the file is damaged."""
        for number, (path, header) in enumerate(self.parts):
            for event in self._part(path, header, last=number == len(self.parts) - 1):
                # A later part repeats what the earlier one has told already.
                if number == 0 or not _is_carried(event):
                    yield event

    def _part(self, path: Path, header: Header, *, last: bool) -> Iterator[Event]:
        data = _read(path)
        at, chain, reader = unpack_header(data)[1], 0, RecordReader(header.part_us)
        while at < len(data):
            try:
                record, after, chain = unframe_record(data, at, chain)
            except Incomplete as error:
                if not last:
                    raise TraceError(f"{path}: {error}, though another part follows") from None
                self.cut_short = f"the last {len(data) - at} bytes are an incomplete record"
                return
            except ValueError as error:
                if last and not any(data[at:]):  # space that was reserved but never written
                    self.cut_short = f"the last {len(data) - at} bytes were never written"
                    return
                raise TraceError(f"{path}: damaged at byte {at}: {error}") from None
            try:
                yield from reader.unpack(record)
            except ValueError as error:
                raise TraceError(f"{path}: damaged at byte {at}: {error}") from None
            at = after


def _is_carried(event: Event) -> bool:
    """Whether an event only says what was so when its part began."""
    if isinstance(event, Held):
        return event.origin == "carried"
    if isinstance(event, Reserved | Changed):
        return event.how.startswith("carried")
    return isinstance(event, Kept) and event.sequence < 0


def read_log(path: str | Path) -> TraceLog:
    """Open a log, with its older part ``FILE.1`` where there is one. Raises TraceError."""
    path = path_of(path, "path")
    header = _header(path)
    parts = [(path, header)]
    older = path.with_name(path.name + ".1")
    if header.part and older.is_file():
        try:
            before = _header(older)
        except TraceError:
            return TraceLog(path, parts)
        if before.run == header.run and before.part == header.part - 1:
            parts.insert(0, (older, before))
    return TraceLog(path, parts)


def _header(path: Path) -> Header:
    try:
        return unpack_header(_read(path, MAX_HEADER_BYTES))[0]
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None


def _read(path: Path, size: int = -1) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError as error:
        raise TraceError(f"cannot read the trace {path}: {error.strerror}") from None
