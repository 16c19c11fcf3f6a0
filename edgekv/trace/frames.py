"""Frames that came in, that were there before, and that came back.

Guarantees: a frame counts once however many contexts hold its pages. Does not know: pages, events.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from edgekv.trace.contexts import Context
from edgekv.trace.lives import SequenceLife


@dataclass(slots=True)
class Frames:
    """Counts of frames, and when they came."""

    num: int = 0  # that came in
    num_before: int = 0  # that were there when the log began, or were restored
    num_recalled: int = 0  # that came back to a context that had let them go
    most: int = 0  # that one sequence held
    at_us: array[int] = field(default_factory=lambda: array("q"))  # of those with a stream time
    stream_s: array[float] = field(default_factory=lambda: array("d"))  # theirs

    def came(self, sequence: SequenceLife, context: Context, at_us: int, time_s: float) -> None:
        """One more came in to a sequence; NaN = it has no stream time."""
        self.num += 1
        sequence.num_frames += 1
        if sequence.first_frame_us < 0:
            sequence.first_frame_us = at_us
        sequence.last_frame_us = at_us
        context.num_frames += 1
        self.held(context)
        if time_s == time_s:
            self.at_us.append(at_us)
            self.stream_s.append(time_s)

    def went_again(self, sequence: SequenceLife, came_us: int) -> None:
        """The one that came last to a sequence, at ``came_us``, has never come: its step failed."""
        self.num -= 1
        sequence.num_frames -= 1
        if self.at_us and self.at_us[-1] == came_us:
            self.at_us.pop()
            self.stream_s.pop()

    def came_back(self, sequence: SequenceLife, context: Context, count: int) -> None:
        """So many that had left are there again."""
        context.num_frames += count
        sequence.num_recalled += count
        self.num_recalled += count

    def held(self, context: Context) -> None:
        """So many are held now."""
        self.most = max(self.most, context.num_frames)
