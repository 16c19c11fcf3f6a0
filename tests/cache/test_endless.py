"""A stream that never ends: what stays the same however many frames have left."""

from __future__ import annotations

import gc
import os
import sys

import numpy as np
import pytest

from edgekv.cache import PageCache, Sequence, check
from edgekv.cache.retention import Watermarks, retention_rule, retention_rules
from edgekv.config import KVGeometry
from tests.cache.helpers import make_room

# A million take some minutes: EDGEKV_EVICTIONS=1000000 pytest tests/cache/test_endless.py
NUM_EVICTIONS = int(os.environ.get("EDGEKV_EVICTIONS", "10000"))
WINDOW = 1000  # frames


def stream(cache: PageCache, sequence: Sequence, num_frames: int, start: int = 0) -> None:
    """Frames of one page each; when the window is full, half of it leaves."""
    rule, marks = retention_rule("window"), Watermarks(WINDOW + 2, WINDOW // 2)
    for index in range(start, start + num_frames):
        if sequence.num_pages == marks.high:
            make_room(sequence, 1, rule=rule, marks=marks, num_free=cache.allocator.num_free)
        sequence.commit(sequence.append("frame", 16, index=index))


def test_the_pinned_start_stays_and_positions_stay_small() -> None:
    cache = PageCache(KVGeometry(1, 1, 1, 16, "float32"), WINDOW + 2)
    sequence = cache.open()
    sequence.commit(sequence.append("system", 20))
    start = sequence.snapshot().page_table[:2]
    stream(cache, sequence, 3 * WINDOW)
    early = sequence.snapshot()
    # The window fills and empties in cycles. After whole cycles it must be as it was but for the
    # names of pages and segments, so what holds after a few cycles holds for ever.
    cycle = WINDOW + 2 - WINDOW // 2 + 1
    num_frames = (NUM_EVICTIONS // cycle + 1) * cycle
    stream(cache, sequence, num_frames, start=3 * WINDOW)
    late = sequence.snapshot()
    check(cache.snapshot())
    assert late.segments["index"][-1] == 3 * WINDOW + num_frames - 1
    assert np.array_equal(late.page_table[:2], start)
    assert np.abs(late.page_table[:, 2:]).max() <= (WINDOW + 2) * 16
    assert np.array_equal(late.next_position, early.next_position)
    assert late.num_tokens == early.num_tokens
    assert np.array_equal(late.page_table[:, 1:], early.page_table[:, 1:])
    assert cache.counts.peak <= WINDOW + 2


@pytest.mark.parametrize("rule_name", retention_rules())
def test_the_number_of_python_objects_is_flat(rule_name: str) -> None:
    """One frame in, one out, through steps and retention: nothing is kept per frame."""
    cache = PageCache(KVGeometry(1, 1, 1, 4, "float32"), 128)
    sequence, rule, marks = cache.open(), retention_rule(rule_name), Watermarks(100, 80)

    def push(num_frames: int) -> None:
        for index in range(num_frames):
            num_pages = sequence.pages_needed("frame", 6)
            make_room(
                sequence, num_pages, rule=rule, marks=marks, num_free=cache.allocator.num_free
            )
            with cache.begin_step([sequence.append("frame", 6, index=index)]) as step:
                step.commit()
            if index % 10 == 0:
                with sequence.fork() as fork:
                    fork.append("text", 3)

    def num_blocks() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    push(3000)  # the interpreter and NumPy keep small blocks for reuse, up to a limit
    before = num_blocks()
    push(2000)
    assert num_blocks() - before < 500, "one object kept per frame would be 2000"
