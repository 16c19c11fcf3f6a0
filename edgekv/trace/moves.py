"""Frames that leave and come back, counted by column and lane.

Guarantees: a session's frames are counted in the lane of its bar; what its own rule chose is told
apart from what had to go for another session.
Does not know: colours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.reclaim import RECLAIM
from edgekv.trace.clock import Columns
from edgekv.trace.lives import RECALLED
from edgekv.trace.timeline import Timeline

CHOSEN, FORCED, BACK = range(3)  # let go by rule or caller, or for others; brought back


@dataclass(frozen=True, slots=True)
class Moves:
    """Columns of counts, growing by kind."""

    kind: NDArray[np.uint8]  # (n,) CHOSEN, FORCED or BACK
    lane: NDArray[np.int32]  # (n,)
    column: NDArray[np.int32]  # (n,)
    count: NDArray[np.int32]  # (n,) frames
    base: NDArray[np.int32]  # (n,) frames of a lower kind that its bar stands behind

    def num(self, kind: int) -> int:
        """Frames of one kind."""
        return int(self.count[self.kind == kind].sum())

    @property
    def most(self) -> int:
        """Frames of the longest bar, at least 1."""
        return int((self.base + self.count).max(initial=1))


def count_moves(timeline: Timeline, column: Columns, lane_of: dict[int, int]) -> Moves:
    """Count what left and came back; ``lane_of`` is by sequence."""
    lives = timeline.lives
    drops = [d for d in timeline.drops if timeline.sequences[d.sequence].is_context]
    back = np.flatnonzero(np.asarray(lives.kind, np.int8) == RECALLED)
    sequence = [d.sequence for d in drops] + np.asarray(lives.sequence, np.int64)[back].tolist()
    at_us = [d.at_us for d in drops] + np.asarray(lives.came_us, np.int64)[back].tolist()
    kind = [FORCED if d.rule == RECLAIM else CHOSEN for d in drops] + [BACK] * back.size
    frames = [d.num_frames for d in drops] + [1] * back.size
    where = np.zeros((len(kind), 3), np.int32)
    where[:, 0], where[:, 2] = kind, column.of(np.array(at_us, np.int64))
    where[:, 1] = [lane_of.get(number, 0) for number in sequence]
    where = where[np.array(frames, np.int64) > 0]
    shown, which = np.unique(where, axis=0, return_inverse=True)
    count = np.bincount(which.ravel(), [n for n in frames if n], minlength=len(shown))
    chosen = {(lane, c): n for (k, lane, c), n in zip(shown.tolist(), count, strict=True) if not k}
    base = [chosen.get((lane, c), 0) if k == FORCED else 0 for k, lane, c in shown.tolist()]
    return Moves(
        shown[:, 0].astype(np.uint8),
        shown[:, 1],
        shown[:, 2],
        count.astype(np.int32),
        np.array(base, np.int32),
    )
