"""When something happened, in the stream's own time, and in which column of a picture.

Owns: the mapping from the log's clock to stream time. Guarantees: monotonic; frames stand exactly
at their stream time, and what happens between two frames stands between them, in proportion.
Does not know: pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.timeline import Timeline


@dataclass(frozen=True, slots=True)
class StreamClock:
    """Maps log time to the axis of a picture."""

    log_us: NDArray[np.float64]  # (n,) growing
    axis_s: NDArray[np.float64]  # (n,) growing with it
    is_stream: bool  # False: seconds since the log began

    def at(self, us: NDArray[np.int64]) -> NDArray[np.float64]:
        """Axis seconds of log times (n,)."""
        out: NDArray[np.float64] = np.interp(us, self.log_us, self.axis_s)
        return out

    @property
    def begin_s(self) -> float:
        return float(self.axis_s[0])

    @property
    def end_s(self) -> float:
        return float(self.axis_s[-1])


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of equal length in axis seconds."""

    clock: StreamClock
    count: int

    def of(self, us: NDArray[np.int64]) -> NDArray[np.int32]:
        """The column of each log time (n,)."""
        begin, end = self.clock.begin_s, self.clock.end_s
        place = (self.clock.at(us) - begin) / (end - begin) * self.count
        return np.clip(place, 0, self.count - 1).astype(np.int32)


def stream_clock(timeline: Timeline) -> StreamClock:
    """Stream time where the frames' times only grow; else seconds since the log began.

    Several streams in one pool, each with a time of its own, have no common stream time.
    """
    us = np.asarray(timeline.frames.at_us, np.float64)
    seconds = np.asarray(timeline.frames.stream_s, np.float64)
    if us.size >= 2 and seconds[-1] > seconds[0] and bool((np.diff(seconds) >= 0).all()):
        # The last frame lasts as long as frames usually do: questions after it need room.
        last_s = seconds[-1] + float(np.median(np.diff(seconds)))
        us = np.append(us, max(float(timeline.end_us), us[-1] + 1))
        return StreamClock(us, np.append(seconds, last_s), is_stream=True)
    begin, end = float(timeline.begin_us), float(timeline.end_us)
    end = max(end, begin + 1)
    return StreamClock(np.array([begin, end]), np.array([begin, end]) / 1e6, is_stream=False)
