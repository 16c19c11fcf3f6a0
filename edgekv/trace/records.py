"""Records: an event as bytes and back, without the frame around it.

Owns: the layout of each record of docs/trace_format.md. Guarantees: ``unpack`` of what ``pack``
gave is the same event; anything else gives an event or ValueError. Does not know: files, the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekv.trace.codec import Fields, put, put_float, put_ids, put_signed, put_text
from edgekv.trace.events import (
    KINDS,
    Chosen,
    Closed,
    Counted,
    Dropped,
    Event,
    GivenUp,
    Held,
    HeldSegment,
    Inserted,
    Kept,
    Opened,
    Origin,
    Planned,
    Reserved,
    Reserving,
    Settled,
    Shown,
    StepBegun,
    StepEnded,
    Taken,
    Truncated,
)
from edgekv.trace.evidence import HEAT

NAME, OPEN, FORK, PLAN, COMMIT, ABORT, BEGIN, END, WRITE, DROP, CUT, CLOSE, COUNT, HELD = range(
    1, 15
)
KEEP, INSERT, TAKE, GIVE_UP, SHOW, CHOOSE = range(15, 21)
RESERVE = 21
RESERVINGS: tuple[Reserving, ...] = ("reserved", "given back", "carried")
_EXTEND, _INDEX, _TIME, _ADVANCE, _COPY = 4, 8, 16, 32, 64  # flags beside the kind, in bits 0 and 1
_TENTH_NS = 100
MAX_AXES = 4  # position axes of any model


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

    def plan(self, event: Planned, *, written_after_us: int | None = None) -> bytearray:
        """An append; with ``written_after_us``, one committed so much later, nothing between."""
        written = written_after_us is not None
        has_index, has_time = event.frame >= 0, event.time_s == event.time_s
        flags = event.kind | _EXTEND * event.extend | _INDEX * has_index | _TIME * has_time
        flags |= _ADVANCE * bool(event.advance) | _COPY * event.copies
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
        put(out, round(event.allocation_us * 1000) // _TENTH_NS)
        if written_after_us is not None:
            put(out, max(written_after_us, 0))
            self._last_us += max(written_after_us, 0)
        return out

    def drop(self, event: Dropped, name: int) -> bytearray:
        out = self.head(DROP, event.at_us, event.sequence, name)
        put_ids(out, event.segments)
        return out

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

    def held(self, event: Held) -> bytearray:
        out = self.head(
            HELD,
            event.at_us,
            event.sequence,
            event.origin == "restored",
            event.next_segment,
        )
        _put_segments(out, event.segments)
        return out

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


class RecordReader:
    """Reads the records of one part, in order."""

    def __init__(self, start_us: int) -> None:
        self._now_us = start_us
        self._names: list[str] = []

    def unpack(self, record: bytes) -> Iterator[Event]:
        """The events that a record stands for: none, one or two. ValueError for nonsense."""
        fields = Fields(record)
        tag = fields.number()
        self._now_us += fields.number()
        if tag == NAME:
            self._names.append(fields.text())
        elif tag in (PLAN, WRITE):
            event = self._plan(fields)
            yield event
            if tag == WRITE:
                self._now_us += fields.number()
                yield Settled(self._now_us, event.sequence, committed=True)
        else:
            yield self._other(tag, fields)
        if fields.at != len(record):
            raise ValueError(f"a record of kind {tag} is longer than it should be")

    def _other(self, tag: int, fields: Fields) -> Event:
        now, number = self._now_us, fields.number
        if tag == OPEN:
            return Opened(now, number(), -1)
        if tag == FORK:
            return Opened(now, number(), number())
        if tag in (COMMIT, ABORT):
            return Settled(now, number(), tag == COMMIT)
        if tag == BEGIN:
            return StepBegun(now, number(), fields.ids())
        if tag == END:
            return StepEnded(now, number())
        if tag == DROP:
            return self._drop(fields)
        if tag == CUT:
            return Truncated(now, *fields.numbers(3))
        if tag == CLOSE:
            return Closed(now, number())
        if tag == COUNT:
            return Counted(now, *fields.numbers(5))
        if tag == HELD:
            return self._held(fields)
        if tag == INSERT:
            return Inserted(now, number(), self._segments(fields))
        return self._sharing(tag, fields)

    def _sharing(self, tag: int, fields: Fields) -> Event:
        if tag == KEEP:
            return Kept(self._now_us, fields.number() - 1, fields.ids())
        if tag == TAKE:
            return self._take(fields)
        if tag == GIVE_UP:
            return GivenUp(self._now_us, fields.ids())
        if tag == SHOW:
            return self._show(fields)
        if tag == CHOOSE:
            return self._choose(fields)
        if tag == RESERVE:
            return self._reserve(fields)
        raise ValueError(f"a record is of kind {tag}, which this format does not have")

    def _plan(self, fields: Fields) -> Planned:
        number = fields.number
        sequence, flags, num_tokens = number(), number(), number()
        tail_tokens = number() if flags & _EXTEND else 0
        pages = fields.ids()
        return Planned(
            self._now_us,
            sequence,
            flags & 3,
            bool(flags & _EXTEND),
            num_tokens,
            tail_tokens,
            bool(flags & _COPY),
            pages,
            number() if flags & _INDEX else -1,
            fields.float() if flags & _TIME else float("nan"),
            fields.numbers(min(number(), MAX_AXES)) if flags & _ADVANCE else (),
            number() / (1000 / _TENTH_NS),
        )

    def _drop(self, fields: Fields) -> Dropped:
        return Dropped(self._now_us, fields.number(), self._name(fields), fields.ids())

    def _name(self, fields: Fields) -> str:
        name = fields.number()
        if name >= len(self._names):
            raise ValueError(f"a record uses name {name}, which was not given")
        return self._names[name]

    def _show(self, fields: Fields) -> Shown:
        column, size = fields.numbers(2)
        if column > HEAT:
            raise ValueError(f"a rule looks at column {column}, which this format does not have")
        pages = fields.ids()
        return Shown(self._now_us, column, pages, tuple([fields.raw(size) for _ in pages]))

    def _choose(self, fields: Fields) -> Chosen:
        number, sequence, rule = fields.number, fields.number(), self._name(fields)
        num_pages, withheld = number(), fields.ids()
        pages = fields.numbers(number())
        return Chosen(
            self._now_us, sequence, rule, num_pages, withheld, pages, number(), fields.ids()
        )

    def _take(self, fields: Fields) -> Taken:
        sequence, kind, num_tokens = fields.numbers(3)
        if kind >= len(KINDS):
            raise ValueError(f"a segment is of kind {kind}, which this format does not have")
        frame, time_s = fields.signed(), fields.float()
        return Taken(self._now_us, sequence, kind, num_tokens, frame, time_s, fields.ids())

    def _reserve(self, fields: Fields) -> Reserved:
        sequence, how = fields.numbers(2)
        if how >= len(RESERVINGS):
            raise ValueError(f"a reserve is of kind {how}, which this format does not have")
        return Reserved(self._now_us, sequence, RESERVINGS[how], fields.ids())

    def _held(self, fields: Fields) -> Held:
        sequence, restored, next_segment = fields.numbers(3)
        origin: Origin = "restored" if restored else "carried"
        return Held(self._now_us, sequence, origin, next_segment, self._segments(fields))

    def _segments(self, fields: Fields) -> tuple[HeldSegment, ...]:
        number = fields.number
        segments = []
        for _ in range(number()):
            ident, kind, num_tokens = fields.numbers(3)
            if kind >= len(KINDS):
                raise ValueError(f"a segment is of kind {kind}, which this format does not have")
            index, time_s, pages = fields.signed(), fields.float(), fields.ids()
            valid, uniform = fields.numbers(len(pages)), bool(number())
            num_axes = min(number(), MAX_AXES)
            span, written = fields.numbers(num_axes), fields.numbers(num_axes * len(pages))
            numbers = (ident, kind, num_tokens, index)
            segments.append(HeldSegment(*numbers, time_s, pages, valid, written, span, uniform))
        return tuple(segments)
