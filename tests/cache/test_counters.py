"""Counts that a monitor reads: each thing that happens is counted once."""

from __future__ import annotations

import pytest

from edgekv.cache import ALLOCATION_BUCKETS_US
from tests.cache.helpers import add, frames, make_cache


def test_every_event_is_counted_once() -> None:
    cache = make_cache()
    sequence = frames(cache, 3)
    counters = cache.counters
    tokens = dict(counters.tokens)
    assert tokens["frame"] == sum(s.num_tokens for s in sequence.segments if s.kind == "frame")
    assert counters.num_opened == 1
    assert counters.allocated_pages == cache.counts.live
    assert sum(counters.allocations) == len(sequence.segments) == counters.num_steps
    assert counters.allocation_us > 0
    assert len(counters.allocations) == len(ALLOCATION_BUCKETS_US) + 1

    child = sequence.fork()
    add(cache, child, "text", 3)
    sequence.append("text", 2).abort()
    sequence.drop([sequence.segments[1].id], rule="window")
    sequence.drop([sequence.segments[1].id])
    child.close()
    assert counters.num_forks == 1
    assert counters.num_aborted == 1
    assert counters.tokens["text"] == 3
    assert counters.dropped_segments == {"window": 1, "caller": 1}


def test_what_is_put_back_was_never_dropped() -> None:
    cache = make_cache()
    sequence, counters = frames(cache, 3), cache.counters
    for decide in (sequence.put_back, sequence.let_go):
        sequence.set_aside(sequence.segment_table().ids[1:3], rule="window")
        assert not counters.dropped_segments
        decide()
    assert counters.dropped_segments == {"window": 2}


@pytest.mark.parametrize("decide", ["let_go", "put_back", "close"])
def test_counting_may_begin_and_end_in_the_middle(decide: str) -> None:
    """Of what had begun before, only what is heard is counted."""
    cache = make_cache()
    sequence = frames(cache, 4)
    child = sequence.fork()
    pending = child.append("text", 2)
    with cache.begin_step([pending]) as step:
        sequence.set_aside(sequence.segment_table().ids[1:3], rule="window")
        heard = type(cache.counters)()
        cache.observe(heard)
        step.commit()
        getattr(sequence, decide)()
    assert heard.tokens == {"text": 2}
    assert not heard.dropped_segments
    assert cache.counters.dropped_segments.total() == (0 if decide == "put_back" else 2)
    child.set_aside(child.segment_table().ids[1:3], rule="window")
    cache.observe(None)
    child.let_go()
    cache.observe(heard)
    child.set_aside(child.segment_table().ids[1:2], rule="window")
    child.let_go()
    assert heard.dropped_segments == {"window": 1}


def test_counting_goes_on_beside_another_observer_and_after_it() -> None:
    cache = make_cache()
    heard = type(cache.counters)()
    cache.observe(heard)
    sequence = frames(cache, 2)
    cache.observe(None)
    add(cache, sequence, "text", 1)
    assert heard.tokens["frame"] == cache.counters.tokens["frame"] > 0
    assert heard.tokens["text"] == 0
    assert cache.counters.tokens["text"] == 1
