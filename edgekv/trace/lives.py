"""What a timeline remembers: segments, sequences and drops, as columns where there are many.

Guarantees: plain numbers in arrays, so that a log of millions of events fits.
Does not know: events, pictures, what is held now.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

CACHED = 4  # what a page holds, beside the kinds of segments: one that was, and can be found
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

    def add(self, kind: int, sequence: int, index: int, time_s: float, came_us: int) -> int:
        """A new segment's number."""
        self.kind.append(kind)
        self.sequence.append(sequence)
        self.index.append(index)
        self.time_s.append(time_s)
        self.num_tokens.append(0)
        self.num_pages.append(0)
        self.came_us.append(came_us)
        self.left_us.append(-1)
        self.end.append(STILL)
        return len(self.kind) - 1

    def leave(self, life: int, now: int, end: int) -> None:
        """The segment is gone, for the reason ``end``."""
        self.left_us[life], self.end[life] = now, end


@dataclass(slots=True)
class Spans:
    """Stretches of one page being held, as columns."""

    page: array[int] = field(default_factory=lambda: array("q"))
    life: array[int] = field(default_factory=lambda: array("q"))
    from_us: array[int] = field(default_factory=lambda: array("q"))
    to_us: array[int] = field(default_factory=lambda: array("q"))

    def begin(self, page: int, life: int, now: int) -> int:
        """A new stretch's number."""
        self.page.append(page)
        self.life.append(life)
        self.from_us.append(now)
        self.to_us.append(-1)
        return len(self.page) - 1


@dataclass(slots=True)
class SequenceLife:
    """One sequence: the live context of a session, or a fork."""

    id: int
    parent: int  # -1 = none
    opened_us: int
    closed_us: int = -1
    num_frames: int = 0  # that it wrote itself
    num_text: int = 0  # text segments it wrote itself
    num_answer_tokens: int = 0

    @property
    def is_question(self) -> bool:
        """A fork that was told something and took in no frame of its own."""
        return self.parent >= 0 and self.num_frames == 0 and self.num_text > 0

    @property
    def is_safeguard(self) -> bool:
        """A fork that wrote nothing: it held what an eviction took until the step was done."""
        wrote = self.num_frames + self.num_text + self.num_answer_tokens > 0
        return self.parent >= 0 and not wrote and self.closed_us >= 0


class Drop(NamedTuple):
    """Segments that left at once."""

    at_us: int
    sequence: int
    rule: str
    num_frames: int
    num_segments: int
    num_pages: int
