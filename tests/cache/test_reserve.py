"""Pages held for tokens to come: the edges. Random operations are played in test_machine."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.cache import CacheObserver, PageCache, Sequence, check
from edgekv.errors import CacheError, ContextError, OutOfPagesError
from tests.cache.compare import assert_same
from tests.cache.helpers import PAGE_SIZE, add, frames, make_cache


def test_an_append_draws_from_the_reserve_and_the_pool_fills_up_beside_it() -> None:
    cache = make_cache(8)
    sequence, other = cache.open(), cache.open()
    sequence.reserve(3 * PAGE_SIZE - 1)
    held = sequence.reserved_pages.tolist()
    assert (len(held), cache.counts.live, sequence.num_pages) == (3, 3, 0)
    add(cache, other, "text", 5 * PAGE_SIZE)
    for size in (1, PAGE_SIZE, 2 * PAGE_SIZE - 2):
        add(cache, sequence, "text", size, extend=sequence.num_tokens > 0)
    assert sequence.table.page_ids.tolist() == held
    assert sequence.reserved_pages.size == 0
    with pytest.raises(OutOfPagesError, match="0 free"):
        sequence.append("text", 1)
    check(cache.snapshot())


def test_what_the_reserve_lacks_comes_from_the_pool() -> None:
    cache = make_cache(8)
    sequence = cache.open()
    sequence.reserve(2 * PAGE_SIZE)
    held = sequence.reserved_pages.tolist()
    append = sequence.append("text", 5 * PAGE_SIZE)
    assert append.pages[:2].tolist() == held
    assert (append.num_reserved, cache.counts.live) == (2, 5)
    before = cache.counts
    append.abort()
    assert sequence.reserved_pages.tolist() == held
    assert cache.counts.live == 2
    assert before.live + before.free == 8


def test_reserves_add_up_and_what_is_left_goes_back() -> None:
    cache = make_cache(8)
    sequence = cache.open()
    sequence.reserve(1)
    sequence.reserve(PAGE_SIZE + 1)
    assert sequence.reserved_pages.size == 3
    add(cache, sequence, "text", 1)
    sequence.release_reserve()
    sequence.release_reserve()
    assert (cache.counts.live, sequence.reserved_pages.size) == (1, 0)
    sequence.reserve(1)
    sequence.append("text", 1)
    sequence.close()
    assert cache.counts.free == 8
    check(cache.snapshot())


@pytest.mark.parametrize(
    ("cache", "num_tokens", "error", "said"),
    [
        (make_cache(7), 3 * PAGE_SIZE, OutOfPagesError, "need 3 pages, 2 free"),
        (make_cache(max_pages=6), 2 * PAGE_SIZE, ContextError, "holds 5 of at most 6"),
        (make_cache(max_positions=20), 6, ContextError, "need position 20, the model's last is 19"),
        (make_cache(), 0, ValueError, "at least 1 token, got 0"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    cache: PageCache, num_tokens: int, error: type[Exception], said: str
) -> None:
    sequence = frames(cache, 2)  # 3 + 2 * 6 tokens in 5 pages
    before = cache.snapshot()
    with pytest.raises(error, match=said):
        sequence.reserve(num_tokens)
    assert_same(before, cache.snapshot())


def test_a_reserve_counts_towards_the_most_that_a_sequence_may_hold() -> None:
    cache = make_cache(max_pages=6)
    sequence = frames(cache, 2)
    sequence.reserve(1)
    with pytest.raises(ContextError, match="holds 6 of at most 6"):
        sequence.reserve(1)
    add(cache, sequence, "text", PAGE_SIZE)


def test_a_reserve_does_not_let_a_sequence_grow_beyond_its_most() -> None:
    cache = make_cache(12, max_pages=6)
    sequence, other = frames(cache, 1), cache.open()
    sequence.reserve(3 * PAGE_SIZE)
    add(cache, other, "text", (cache.counts.free - 1) * PAGE_SIZE)
    before = cache.snapshot()
    with pytest.raises(ContextError, match="need 4 more pages, the sequence holds 3 of at most 6"):
        sequence.append("text", 4 * PAGE_SIZE)  # three of them reserved, one free
    assert_same(before, cache.snapshot())


def test_positions_of_its_own_count_as_in_an_append() -> None:
    """A frame that stands at one place in time takes pages, and hardly a position."""
    cache = make_cache(num_axes=3, max_positions=20)
    sequence = cache.open()
    grid = np.zeros((3, 24), np.int64)
    with pytest.raises(ContextError):
        sequence.reserve(24)
    sequence.reserve(24, positions=grid)
    add(cache, sequence, "frame", 24, positions=grid, advance=1)
    assert sequence.reserved_pages.size == 0


def test_a_fork_inherits_no_reserve_and_is_refused_what_its_parent_holds() -> None:
    cache = make_cache(6)
    sequence = frames(cache, 1)
    sequence.reserve(3 * PAGE_SIZE)
    with sequence.fork() as fork:
        assert fork.reserved_pages.size == 0
        with pytest.raises(OutOfPagesError, match="0 free"):
            fork.append("text", 1)
    assert sequence.reserved_pages.size == 3


def test_a_copy_of_a_shared_page_is_drawn_too() -> None:
    cache = make_cache(5)
    sequence = frames(cache, 1)
    sequence.reserve(PAGE_SIZE)
    (held,) = sequence.reserved_pages.tolist()
    with sequence.fork():
        add(cache, sequence, "frame", 1, extend=True)
        assert sequence.table.page_ids[-1] == held


def test_pages_that_a_step_in_flight_uses_are_not_drawn() -> None:
    cache = make_cache(4)
    sequence = cache.open()
    sequence.reserve(2 * PAGE_SIZE)
    first, second = sequence.reserved_pages.tolist()
    append = sequence.append("text", 1)
    step = cache.begin_step([append])
    append.abort()
    assert sequence.reserved_pages.tolist() == [first, second]
    append = sequence.append("text", 1)
    assert append.pages.tolist() == [second]
    append.abort()
    with pytest.raises(OutOfPagesError, match="need 4 pages, 3 free"):
        sequence.append("text", 4 * PAGE_SIZE)
    append = sequence.append("text", 2 * PAGE_SIZE)
    assert append.pages[0] == second
    assert append.pages[1] != first
    append.abort()
    step.abort()
    assert sequence.append("text", 2 * PAGE_SIZE).pages.tolist() == [first, second]
    sequence.close()
    check(cache.snapshot())
    assert cache.counts.free == 4


def test_a_reserve_given_back_under_a_step_is_in_flight_until_it_ends() -> None:
    cache = make_cache(4)
    sequence = cache.open()
    sequence.reserve(1)
    append = sequence.append("text", 1)
    step = cache.begin_step([append])
    append.abort()
    sequence.release_reserve()
    assert (cache.counts.in_flight, cache.counts.free) == (1, 3)
    step.abort()
    assert cache.counts.free == 4


def test_cached_pages_are_given_up_for_a_reserve() -> None:
    cache = make_cache(4)
    with cache.open() as sequence:
        add(cache, sequence, "text", 4 * PAGE_SIZE)
        sequence.keep(b"text")
    assert cache.counts.cached == 4
    other = cache.open()
    other.reserve(PAGE_SIZE)
    assert (cache.counts.live, cache.counts.free) == (1, 3)
    check(cache.snapshot())


def test_only_an_idle_and_open_sequence_reserves() -> None:
    cache = make_cache()
    sequence = cache.open()
    sequence.append("text", 1)
    for refused in (lambda: sequence.reserve(1), sequence.release_reserve):
        with pytest.raises(CacheError, match="pending"):
            refused()
    sequence.close()
    with pytest.raises(CacheError, match="closed"):
        sequence.reserve(1)


def test_observers_are_told_and_a_page_counts_as_allocated_once_it_is_drawn() -> None:
    class Listener(CacheObserver):
        def __init__(self) -> None:
            self.heard: list[tuple[str, int, list[int]]] = []

        def reserved(self, how: str, sequence: Sequence, pages: np.ndarray) -> None:  # type: ignore[override]
            self.heard.append((how, sequence.id, pages.tolist()))

    cache, listener = make_cache(), Listener()
    cache.observe(listener)
    sequence = cache.open()
    sequence.reserve(2 * PAGE_SIZE)
    held = sequence.reserved_pages.tolist()
    assert cache.counters.allocated_pages == 0
    add(cache, sequence, "text", 1)
    assert cache.counters.allocated_pages == 1
    sequence.release_reserve()
    sequence.release_reserve()
    assert listener.heard == [
        ("reserved", sequence.id, held),
        ("given back", sequence.id, held[1:]),
    ]
