"""Records read: an event from the bytes that ``records`` made of it.

Guarantees: whatever the bytes, an event or ValueError. Does not know: files, the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekv.cache import Purpose
from edgekv.trace.codec import Fields
from edgekv.trace.events import (
    KINDS,
    PURPOSES,
    Changed,
    Chosen,
    Closed,
    Counted,
    Decided,
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
    Settled,
    Shown,
    StepBegun,
    StepEnded,
    Taken,
    Truncated,
)
from edgekv.trace.evidence import HEAT
from edgekv.trace.records import (
    ABORT,
    ADVANCE,
    ASIDE,
    BEGIN,
    CHOOSE,
    CLOSE,
    COMMIT,
    COPY,
    COUNT,
    CUT,
    DECIDE,
    DROP,
    END,
    EXTEND,
    FATES,
    FORK,
    GIVE_UP,
    HELD,
    INDEX,
    INPUT,
    INPUTS,
    INSERT,
    KEEP,
    NAME,
    OPEN,
    PLAN,
    RESERVE,
    RESERVINGS,
    SHOW,
    TAKE,
    TENTH_NS,
    TIME,
    WRITE,
)

MAX_AXES = 4  # position axes of any model


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
            return Opened(now, number(), -1, "context")
        if tag == FORK:
            return Opened(now, number(), number(), self._purpose(fields))
        if tag in (COMMIT, ABORT):
            return Settled(now, number(), tag == COMMIT)
        if tag == BEGIN:
            return StepBegun(now, number(), fields.ids())
        if tag == END:
            return StepEnded(now, number())
        if tag in (DROP, ASIDE):
            return self._drop(fields, aside=tag == ASIDE)
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
        if tag == DECIDE:
            return self._decide(fields)
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
        if tag == INPUT:
            return self._change(fields)
        raise ValueError(f"a record is of kind {tag}, which this format does not have")

    def _plan(self, fields: Fields) -> Planned:
        number = fields.number
        sequence, flags, num_tokens = number(), number(), number()
        tail_tokens = number() if flags & EXTEND else 0
        pages = fields.ids()
        return Planned(
            self._now_us,
            sequence,
            flags & 3,
            bool(flags & EXTEND),
            num_tokens,
            tail_tokens,
            bool(flags & COPY),
            pages,
            number() if flags & INDEX else -1,
            fields.float() if flags & TIME else float("nan"),
            fields.numbers(min(number(), MAX_AXES)) if flags & ADVANCE else (),
            number() / (1000 / TENTH_NS),
        )

    def _drop(self, fields: Fields, *, aside: bool) -> Dropped:
        return Dropped(self._now_us, fields.number(), self._name(fields), fields.ids(), aside)

    def _decide(self, fields: Fields) -> Decided:
        sequence, fate = fields.numbers(2)
        if fate >= len(FATES):
            raise ValueError(f"fate {fate} is none that this format has")
        return Decided(self._now_us, sequence, FATES[fate])

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

    def _purpose(self, fields: Fields) -> Purpose:
        purpose = fields.number()
        if purpose >= len(PURPOSES):
            raise ValueError(f"a sequence has purpose {purpose}, which this format does not have")
        return PURPOSES[purpose]

    def _change(self, fields: Fields) -> Changed:
        how, num_states = fields.numbers(2)
        if how >= len(INPUTS):
            raise ValueError(f"an input changed in way {how}, which this format does not have")
        pages = fields.ids()
        if not pages:
            raise ValueError("an input has no pages")
        return Changed(self._now_us, INPUTS[how], num_states, pages)

    def _held(self, fields: Fields) -> Held:
        sequence, restored = fields.numbers(2)
        origin: Origin = "restored" if restored else "carried"
        purpose, next_segment = self._purpose(fields), fields.number()
        return Held(self._now_us, sequence, origin, purpose, next_segment, self._segments(fields))

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
