"""What a log says, one value per event. Times are microseconds since the log began.

Owns: the events. Guarantees: plain values, NumPy-free, cheap to make by the million.
Does not know: bytes, files, the cache.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from edgekv.cache import Fate, InputChange, Purpose, Reserving
from edgekv.types import SegmentKind

# The format's own numbering, whatever order the cache lists them in: never reorder.
KINDS: tuple[SegmentKind, ...] = ("system", "frame", "text", "answer")
SYSTEM, FRAME, TEXT, ANSWER = range(4)
PURPOSES: tuple[Purpose, ...] = ("context", "question", "probe")


class Opened(NamedTuple):
    """A sequence was opened, or forked from ``parent``."""

    at_us: int
    sequence: int
    parent: int  # -1 = none
    purpose: Purpose


class Planned(NamedTuple):
    """An append took its pages."""

    at_us: int
    sequence: int
    kind: int  # index into KINDS
    extend: bool
    num_tokens: int
    tail_tokens: int  # how many go into the page the sequence ended with
    copies: bool  # the first page replaces that page
    pages: tuple[int, ...]
    frame: int  # frame number, -1 = none
    time_s: float  # stream time, NaN = none
    advance: tuple[int, ...]  # per position axis; empty = every token advances each by one
    allocation_us: float


class Settled(NamedTuple):
    """The sequence's pending append was committed or aborted."""

    at_us: int
    sequence: int
    committed: bool


class StepBegun(NamedTuple):
    """A step over the pending appends of ``sequences`` was begun."""

    at_us: int
    step: int
    sequences: tuple[int, ...]


class StepEnded(NamedTuple):
    """The device no longer touches the step's pages."""

    at_us: int
    step: int


class Dropped(NamedTuple):
    """Segments left; set aside, their pages are held until ``Decided``."""

    at_us: int
    sequence: int
    rule: str  # who chose them, "" = the caller
    segments: tuple[int, ...]  # ids
    aside: bool = False


class Decided(NamedTuple):
    """What was set aside last was let go, or is in the sequence again where it was."""

    at_us: int
    sequence: int
    fate: Fate


class Shown(NamedTuple):
    """What a rule that chooses next sees of segments and was not told before."""

    at_us: int
    column: int  # evidence.SUMMARY or HEAT
    pages: tuple[int, ...]  # the first of each segment
    values: tuple[bytes, ...]  # one a segment, all of one size


class Chosen(NamedTuple):
    """A rule was asked which segments should leave; whether they do is told by drops."""

    at_us: int
    sequence: int
    rule: str
    num_pages: int  # that they should give back
    withheld: tuple[int, ...]  # ids of segments that were not offered, pinned ones apart
    pages: tuple[int, ...]  # what each offered segment gives back; empty = all that it has
    width: int  # of the summaries that the rule saw, 0 = none
    segments: tuple[int, ...]  # ids of those it chose


class Truncated(NamedTuple):
    """The sequence kept its first tokens."""

    at_us: int
    sequence: int
    num_tokens: int
    num_pages: int


class Closed(NamedTuple):
    """The sequence gave everything back."""

    at_us: int
    sequence: int


class Counted(NamedTuple):
    """Pages by state, as the cache counted them."""

    at_us: int
    free: int
    live: int
    cached: int
    in_flight: int
    peak: int


class Kept(NamedTuple):
    """The last segment of ``sequence`` can be found by other contexts from now on."""

    at_us: int
    sequence: int  # -1 = these pages could be found before this log, or this part of it
    pages: tuple[int, ...]


class Taken(NamedTuple):
    """The sequence goes on with a segment that was found, in the pages it is in."""

    at_us: int
    sequence: int
    kind: int  # index into KINDS
    num_tokens: int
    frame: int  # frame number, -1 = none
    time_s: float  # stream time, NaN = none
    pages: tuple[int, ...]


class GivenUp(NamedTuple):
    """These pages cannot be found any more; those that nobody held are free."""

    at_us: int
    pages: tuple[int, ...]


class HeldSegment(NamedTuple):
    """A segment that was there before the log. A = max(rope axes, 1) position axes."""

    id: int
    kind: int
    num_tokens: int
    frame: int  # frame number, -1 = none
    time_s: float
    pages: tuple[int, ...]
    valid: tuple[int, ...]  # tokens in each page
    written: tuple[int, ...]  # A numbers a page: where the segment started when it was written
    span: tuple[int, ...]  # (A,) how far the segment moves what comes after it
    uniform: bool  # every token advances every axis by one


Origin = Literal["carried", "restored"]


class Held(NamedTuple):
    """What a sequence held when the log, or this part of it, began, or when it was restored."""

    at_us: int
    sequence: int
    origin: Origin
    purpose: Purpose
    next_segment: int  # id that its next segment gets
    segments: tuple[HeldSegment, ...]


class Inserted(NamedTuple):
    """Segments that had left came back, each to its old place, in pages of their own."""

    at_us: int
    sequence: int
    segments: tuple[HeldSegment, ...]


ReserveNews = Reserving | Literal["carried"]  # carried = held when this part began


class Reserved(NamedTuple):
    """The sequence holds ``pages`` for its appends to come, has given them back undrawn, or has
    held them since before this log, or this part of it."""

    at_us: int
    sequence: int
    how: ReserveNews
    pages: tuple[int, ...]


InputNews = InputChange | Literal["carried held", "carried cached"]


class Changed(NamedTuple):
    """An input of cross-attention changed, or could be found since before this log, or part."""

    at_us: int
    how: InputNews
    num_states: int  # 0 where it was told before
    pages: tuple[int, ...]  # of the cross pools; only the first where all were told before


Event = (
    Opened
    | Planned
    | Settled
    | StepBegun
    | StepEnded
    | Dropped
    | Decided
    | Shown
    | Chosen
    | Truncated
    | Closed
    | Counted
    | Held
    | Inserted
    | Kept
    | Taken
    | GivenUp
    | Reserved
    | Changed
)
