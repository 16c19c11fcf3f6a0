"""What a timeline remembers: segments, sequences and drops, as columns where there are many.

Guarantees: plain numbers in arrays, so that a log of millions of events fits.
Does not know: events, pictures, what is held now.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from edgekv.cache import Purpose

# What a page holds, beside the kinds of segments: one that was, and can be found; a frame that came
# back from a tier; what a tier measures and ranks with; an input of cross-attention; nothing yet,
# but it is promised; anything, of which the last holder has let go while a step still reads it.
CACHED, RECALLED, PROBED, INPUT, RESERVED, IN_FLIGHT = range(4, 10)
STILL, DROPPED, CUT, CLOSED, ABORTED = range(5)  # how a segment ended
ENDS = ("still there", "dropped", "cut off", "its sequence closed", "its append aborted")


@dataclass(slots=True)
class Lives:
    """Segments by number, as columns. Times in microseconds, -1 = still there."""

    kind: array[int] = field(default_factory=lambda: array("b"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    index: array[int] = field(default_factory=lambda: array("q"))  # frame number, -1 = none
    time_s: array[float] = field(default_factory=lambda: array("d"))  # NaN = none
    num_tokens: array[int] = field(default_factory=lambda: array("q"))
    num_pages: array[int] = field(default_factory=lambda: array("q"))
    came_us: array[int] = field(default_factory=lambda: array("q"))
    left_us: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("b"))

    def add(
        self,
        kind: int,
        sequence: int,
        index: int,
        time_s: float,
        came_us: int,
        *,
        num_tokens: int = 0,
        num_pages: int = 0,
    ) -> int:
        """A new segment's number."""
        self.kind.append(kind)
        self.sequence.append(sequence)
        self.index.append(index)
        self.time_s.append(time_s)
        self.num_tokens.append(num_tokens)
        self.num_pages.append(num_pages)
        self.came_us.append(came_us)
        self.left_us.append(-1)
        self.end.append(STILL)
        return len(self.kind) - 1

    def leave(self, life: int, now: int, end: int) -> None:
        """The segment is gone, for the reason ``end``."""
        self.left_us[life], self.end[life] = now, end

    def let_go(self, lives: Iterable[int], sequence: int, now: int, end: int) -> None:
        """A sequence holds segments no more: its own are gone, those of others when they too have
        let go."""
        for life in lives:
            if self.sequence[life] == sequence:
                self.leave(life, now, end)
            elif self.left_us[life] >= 0:  # this one held it for longer
                self.left_us[life] = now

    def come_back(self, life: int) -> None:
        """The segment is there, as if it had not left."""
        self.leave(life, -1, STILL)


@dataclass(slots=True)
class Spans:
    """Stretches in which a page shows one segment for the same holders, as columns."""

    page: array[int] = field(default_factory=lambda: array("q"))
    life: array[int] = field(default_factory=lambda: array("q"))
    holders: array[int] = field(default_factory=lambda: array("q"))  # number of a set of sessions
    from_us: array[int] = field(default_factory=lambda: array("q"))
    to_us: array[int] = field(default_factory=lambda: array("q"))

    def begin(self, page: int, life: int, holders: int, now: int) -> int:
        """A new stretch's number."""
        self.page.append(page)
        self.life.append(life)
        self.holders.append(holders)
        self.from_us.append(now)
        self.to_us.append(-1)
        return len(self.page) - 1


@dataclass(slots=True)
class SequenceLife:
    """One sequence: the live context of a session, or a fork."""

    id: int
    parent: int  # -1 = none
    purpose: Purpose
    session: int  # whose it is, from 1 on; 0 = nobody's, a tier measured itself
    opened_us: int
    closed_us: int = -1
    num_appends: int = 0  # that were committed
    num_answer_tokens: int = 0
    num_frames: int = 0  # that came in
    num_recalled: int = 0  # that came back
    first_frame_us: int = -1  # when frames came in, -1 = none did
    last_frame_us: int = -1

    @property
    def is_question(self) -> bool:
        return self.purpose == "question"

    @property
    def is_probe(self) -> bool:
        """A tier measured itself on it, or found out what a question looks for."""
        return self.purpose == "probe"

    @property
    def is_fork(self) -> bool:
        """A context that began as a fork of another."""
        return self.purpose == "context" and self.parent >= 0

    @property
    def is_context(self) -> bool:
        """It is a stream's, or was."""
        return self.purpose == "context"


class Sequences(dict[int, SequenceLife]):
    """All sequences of a log, by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.num_sessions = 0

    def born(self, ident: int, parent: int, purpose: Purpose, now: int) -> int:
        """The session whose a new sequence is: its own, or that of a context which it serves."""
        if purpose == "context":
            self.num_sessions += 1
            session = self.num_sessions
        else:
            session = self[parent].session if parent in self else 0
        self[ident] = SequenceLife(ident, parent, purpose, session, now)
        return session


@dataclass(slots=True)
class Levels:
    """Pages of the pool by state, as columns: one entry an event."""

    at_us: array[int] = field(default_factory=lambda: array("q"))
    free: array[int] = field(default_factory=lambda: array("q"))
    cached: array[int] = field(default_factory=lambda: array("q"))
    in_flight: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("q"))  # in live pages
    peak: int = 0  # most pages live or in flight

    def note(self, now: int, free: int, cached: int, in_flight: int, tokens: int) -> None:
        """So it is after an event."""
        self.at_us.append(now)
        self.free.append(free)
        self.cached.append(cached)
        self.in_flight.append(in_flight)
        self.tokens.append(tokens)


@dataclass(slots=True)
class Lookups:
    """What could be found, as columns: found, or else computed."""

    at_us: array[int] = field(default_factory=lambda: array("q"))
    found: array[int] = field(default_factory=lambda: array("b"))
    num_found: int = 0

    def note(self, now: int, *, found: bool) -> None:
        """One more."""
        self.at_us.append(now)
        self.found.append(found)
        self.num_found += found

    @property
    def rate(self) -> float:
        """Share that was found; NaN without any."""
        return self.num_found / len(self.found) if self.found else float("nan")


class Drop(NamedTuple):
    """Segments that left at once."""

    at_us: int
    sequence: int
    rule: str
    num_frames: int
    num_segments: int
    num_pages: int


class Drops(list[Drop]):
    """All drops of a log that came to pass."""

    def undo(self, sequence: int) -> None:
        """The last one of a sequence has never been. IndexError when there is none."""
        last = len(self) - 1
        while self[last].sequence != sequence:
            last -= 1
        del self[last]
