"""Records: an event as bytes, without the frame around it.

Owns: the layout of each record of docs/trace_format.md, and the numbers of their kinds.
Guarantees: ``unpack`` makes the same event of it. Does not know: files, the cache.
"""

from __future__ import annotations

from edgekv.cache import Fate
from edgekv.trace.codec import put, put_float, put_ids, put_signed, put_text
from edgekv.trace.events import (
    PURPOSES,
    Changed,
    Chosen,
    Decided,
    Dropped,
    GivenUp,
    Held,
    HeldSegment,
    InputNews,
    Inserted,
    Kept,
    Opened,
    Planned,
    Reserved,
    ReserveNews,
    Shown,
    StepBegun,
    Taken,
)

NAME, OPEN, FORK, PLAN, COMMIT, ABORT, BEGIN, END, WRITE, DROP, CUT, CLOSE, COUNT, HELD = range(
    1, 15
)
KEEP, INSERT, TAKE, GIVE_UP, SHOW, CHOOSE = range(15, 21)
RESERVE, INPUT, ASIDE, DECIDE = range(21, 25)
FATES: tuple[Fate, ...] = ("let go", "put back")
RESERVINGS: tuple[ReserveNews, ...] = ("reserved", "given back", "carried")
INPUTS: tuple[InputNews, ...] = (
    "reserved",
    "published",
    "found",
    "let go",
    "given up",
    "withdrawn",
    "carried held",
    "carried cached",
)
EXTEND, INDEX, TIME, ADVANCE, COPY = 4, 8, 16, 32, 64  # flags beside the kind, in bits 0 and 1
TENTH_NS = 100


class RecordWriter:
    """Makes records. Times are written as what has passed since the record before."""

    def __init__(self, start_us: int) -> None:
        self._last_us = start_us
        self._names: dict[str, int] = {}

    def head(self, tag: int, at_us: int, *numbers: int) -> bytearray:
        """A record with only numbers after its tag and time, or the start of one with more."""
        out = bytearray((tag,))
        put(out, max(at_us - self._last_us, 0))
        self._last_us = max(at_us, self._last_us)
        for number in numbers:
            put(out, number)
        return out

    def name(self, text: str, at_us: int) -> tuple[int, bytearray | None]:
        """The number of a name in this part, and the record that says so if it is new."""
        if text in self._names:
            return self._names[text], None
        self._names[text] = len(self._names)
        out = self.head(NAME, at_us)
        put_text(out, text)
        return self._names[text], out

    def open(self, event: Opened) -> bytearray:
        if event.parent < 0:
            return self.head(OPEN, event.at_us, event.sequence)
        purpose = PURPOSES.index(event.purpose)
        return self.head(FORK, event.at_us, event.sequence, event.parent, purpose)

    def plan(self, event: Planned, *, written_after_us: int | None = None) -> bytearray:
        """An append; with ``written_after_us``, one committed so much later, nothing between."""
        written = written_after_us is not None
        has_index, has_time = event.frame >= 0, event.time_s == event.time_s
        flags = event.kind | EXTEND * event.extend | INDEX * has_index | TIME * has_time
        flags |= ADVANCE * bool(event.advance) | COPY * event.copies
        out = self.head(
            WRITE if written else PLAN, event.at_us, event.sequence, flags, event.num_tokens
        )
        if event.extend:
            put(out, event.tail_tokens)
        put_ids(out, event.pages)
        if has_index:
            put(out, event.frame)
        if has_time:
            put_float(out, event.time_s)
        if event.advance:
            put(out, len(event.advance))
            for number in event.advance:
                put(out, number)
        put(out, round(event.allocation_us * 1000) // TENTH_NS)
        if written_after_us is not None:
            put(out, max(written_after_us, 0))
            self._last_us += max(written_after_us, 0)
        return out

    def drop(self, event: Dropped, name: int) -> bytearray:
        tag = ASIDE if event.aside else DROP
        out = self.head(tag, event.at_us, event.sequence, name)
        put_ids(out, event.segments)
        return out

    def decided(self, event: Decided) -> bytearray:
        return self.head(DECIDE, event.at_us, event.sequence, FATES.index(event.fate))

    def show(self, event: Shown) -> bytearray:
        out = self.head(SHOW, event.at_us, event.column, len(event.values[0]))
        put_ids(out, event.pages)
        for value in event.values:
            out += value
        return out

    def choose(self, event: Chosen, name: int) -> bytearray:
        out = self.head(CHOOSE, event.at_us, event.sequence, name, event.num_pages)
        put_ids(out, event.withheld)
        for number in (len(event.pages), *event.pages, event.width):
            put(out, number)
        put_ids(out, event.segments)
        return out

    def begin(self, event: StepBegun) -> bytearray:
        out = self.head(BEGIN, event.at_us, event.step)
        put_ids(out, event.sequences)
        return out

    def keep(self, event: Kept) -> bytearray:
        out = self.head(KEEP, event.at_us, event.sequence + 1)
        put_ids(out, event.pages)
        return out

    def take(self, event: Taken) -> bytearray:
        out = self.head(TAKE, event.at_us, event.sequence, event.kind, event.num_tokens)
        put_signed(out, event.frame)
        put_float(out, event.time_s)
        put_ids(out, event.pages)
        return out

    def give_up(self, event: GivenUp) -> bytearray:
        out = self.head(GIVE_UP, event.at_us)
        put_ids(out, event.pages)
        return out

    def reserve(self, event: Reserved) -> bytearray:
        out = self.head(RESERVE, event.at_us, event.sequence, RESERVINGS.index(event.how))
        put_ids(out, event.pages)
        return out

    def change(self, event: Changed) -> bytearray:
        out = self.head(INPUT, event.at_us, INPUTS.index(event.how), event.num_states)
        put_ids(out, event.pages)
        return out

    def held(self, event: Held) -> bytearray:
        restored, purpose = event.origin == "restored", PURPOSES.index(event.purpose)
        numbers = (event.sequence, restored, purpose, event.next_segment)
        out = self.head(HELD, event.at_us, *numbers)
        _put_segments(out, event.segments)
        return out

    def carried(self, event: Held | Reserved | Kept | Changed) -> bytearray:
        """What was there when a part began."""
        if isinstance(event, Held):
            return self.held(event)
        if isinstance(event, Reserved):
            return self.reserve(event)
        return self.keep(event) if isinstance(event, Kept) else self.change(event)

    def inserted(self, event: Inserted) -> bytearray:
        out = self.head(INSERT, event.at_us, event.sequence)
        _put_segments(out, event.segments)
        return out


def _put_segments(out: bytearray, segments: tuple[HeldSegment, ...]) -> None:
    put(out, len(segments))
    for segment in segments:
        put(out, segment.id)
        put(out, segment.kind)
        put(out, segment.num_tokens)
        put_signed(out, segment.frame)
        put_float(out, segment.time_s)
        put_ids(out, segment.pages)
        for number in segment.valid:
            put(out, number)
        put(out, segment.uniform)
        put(out, len(segment.span))
        for number in (*segment.span, *segment.written):
            put(out, number)
