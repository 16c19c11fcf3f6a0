"""What a log says of segments that came from outside, as a cache takes it in.

Guarantees: the inverse of ``observed.held``, but for what pages hold.
Does not know: files, replays.
"""

from __future__ import annotations

import numpy as np

from edgekv.cache import SequenceState
from edgekv.cache.segments import KIND_CODES, segment_dtype
from edgekv.trace.events import KINDS, HeldSegment


def state_of(held: tuple[HeldSegment, ...], next_segment: int, num_axes: int) -> SequenceState:
    """What segments came from outside, as far as the cache is concerned."""
    segments = np.zeros(len(held), segment_dtype(num_axes))
    for row, one in zip(segments, held, strict=True):
        row["id"], row["index"], row["time_s"] = one.id, one.frame, one.time_s
        row["num_pages"], row["num_tokens"] = len(one.pages), one.num_tokens
        row["span"], row["uniform"] = one.span, one.uniform
        row["kind"] = KIND_CODES[KINDS[one.kind]]
    written = np.array([number for one in held for number in one.written], np.int32)
    written = written.reshape(-1, num_axes)
    starts = np.cumsum(segments["span"], axis=0, dtype=np.int32) - segments["span"]
    return SequenceState(
        valid=np.array([number for one in held for number in one.valid], np.int32),
        shifts=np.repeat(starts, segments["num_pages"], axis=0) - written,
        written=written,
        segments=segments,
        next_segment_id=next_segment,
    )
