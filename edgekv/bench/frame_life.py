"""What the host does for one frame: its append, the tables of its step, its commit, and at last its
drop, for ``bench alloc``.

Frames of 5 pages and of 64 go through a window of 25: how little the number of pages matters.
"""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from edgekv.cache import PageCache
from edgekv.config import KVGeometry

_PAGE_SIZE = 16
_FRAME_PAGES = (5, 64)
_WINDOW_FRAMES, _BATCH_FRAMES = 25, 3  # that many leave at once
_NUM_FRAMES = 1_000
_WHAT = ("append", "tables", "commit", "drop")


def frame_life(*, num_frames: int = _NUM_FRAMES) -> dict[str, float]:
    """Median microseconds over ``num_frames``, at least 3, behind a full window, by
    ``frame_PAGES_WHAT_us``; ``drop`` is of a batch of frames."""
    figures: dict[str, float] = {}
    geometry = KVGeometry(1, 1, 1, _PAGE_SIZE, "float32")
    for pages in _FRAME_PAGES:
        cache = PageCache(geometry, (_WINDOW_FRAMES + 1) * pages, share=False)
        sequence, times = cache.open(), np.zeros((_WINDOW_FRAMES + num_frames, len(_WHAT)))
        for number in range(len(times)):
            full = sequence.num_segments == _WINDOW_FRAMES
            oldest = sequence.segment_table().ids[:_BATCH_FRAMES]
            marks = [perf_counter_ns()]
            if full:
                sequence.drop(oldest)
            marks.append(perf_counter_ns())
            append = sequence.append("frame", pages * _PAGE_SIZE, index=number, time_s=number / 2)
            marks.append(perf_counter_ns())
            step = cache.begin_step([append])
            marks.append(perf_counter_ns())
            step.commit()
            marks.append(perf_counter_ns())
            times[number] = np.roll(np.diff(marks), -1)
            times[number, -1] *= full or np.nan
        medians = np.nanmedian(times[_WINDOW_FRAMES:] / 1e3, axis=0)
        for what, median in zip(_WHAT, medians.tolist(), strict=True):
            figures[f"frame_{pages}_{what}_us"] = median
    return figures
