"""The native plan of an append against plain arithmetic, and what is left when one fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekv.cache import Append, CacheObserver, PageCache, Sequence, check
from edgekv.config import KVGeometry
from edgekv.errors import ContextError
from tests.cache.compare import assert_same, assert_same_held, flat
from tests.cache.helpers import PAGE_SIZE, add, frames, make_cache

LARGEST = 2**31 - 1


# -- what a plan is: NumPy, one line for each array


def tail_tokens(sequence: Sequence, num_tokens: int, page_size: int, *, extend: bool) -> int:
    """How many go into the page that the sequence ends with."""
    if not extend:
        return 0
    last = sequence.table.rows[-1]
    if last[2 : 2 + sequence.table.num_axes].any():
        return 0
    return min(num_tokens, page_size - int(last[1]))


def must_copy(cache: PageCache, page: int) -> bool:
    held = cache.snapshot().allocator
    return bool(held.refs[page] != 1 or held.fences[page] or held.kept[page])


def must_take(cache: PageCache, sequence: Sequence, num_pages: int) -> list[int]:
    """The reserve's pages that no step uses, then the free ones, each in their order."""
    held = cache.snapshot().allocator
    own = [page for page in sequence.reserved_pages.tolist() if not held.fences[page]]
    return (own + held.free.tolist())[:num_pages]


def assert_planned(
    append: Append,
    options: dict[str, Any],
    *,
    page_size: int,
    tail: int,
    copy: bool,
    taken: list[int],
) -> None:
    """Every array of ``append`` is as defined, of its dtype."""
    sequence, n, table = append.sequence, append.num_tokens, append.sequence.table
    num_axes = table.num_axes
    relative = options["positions"]
    if relative is None:
        relative = np.broadcast_to(np.arange(n), (num_axes, n))
    advance = options["advance"]
    if advance is None:
        advance = relative.max() + 1
    runs = options["bidirectional"]
    runs = ([(0, n)] if runs else []) if isinstance(runs, bool) else runs
    indices = np.arange(sequence.num_tokens, sequence.num_tokens + n)
    limits = indices + 1
    for start, stop in runs:
        limits[start:stop] = limits[stop - 1]
    fresh = taken[copy:]
    slots = (np.array(fresh, np.int64).reshape(-1, 1) * page_size + np.arange(page_size)).ravel()
    if tail:
        page, valid = (taken[0] if copy else table.rows[-1, 0]), table.rows[-1, 1]
        slots = np.append(page * page_size + valid + np.arange(tail), slots)
    arrays: dict[str, tuple[Any, Any]] = {
        "taken": (taken, np.int32),
        "pages": (fresh, np.int32),
        "slots": (slots[:n], np.int32),
        "query_indices": (indices, np.int32),
        "kv_limits": (limits, np.int32),
        "positions": (relative + sequence.next_position[:, None], np.int64),
        "advance": (np.full(num_axes, advance), np.int32),
    }
    for name, (value, dtype) in arrays.items():
        array = getattr(append, name)
        assert array.dtype == dtype, name
        assert np.array_equal(array, value), name
    assert append.copy_page == (taken[0] if copy else -1)
    assert append.tail_tokens == tail
    assert append.uniform == (
        options["positions"] is None and bool((np.full(num_axes, advance) == n).all())
    )
    base = sequence.next_position
    if append.extend:
        base = base - np.array(sequence.segments[-1].span)
    rows = np.zeros((len(fresh), 2 + 2 * num_axes), np.int32)
    rows[:, 0], rows[:, 1], rows[:, 2 + num_axes :] = fresh, page_size, base
    rows[-1:, 1] -= len(fresh) * page_size - (n - tail)
    assert np.array_equal(table.memory[table.num_pages :][: len(fresh)], rows)


# -- drawn appends behind drawn contexts


@st.composite
def appends(draw: st.DrawFn) -> tuple[PageCache, Sequence, dict[str, Any]]:
    """A cache, a sequence in whatever state, and what to append to it."""
    axes, page_size = draw(st.sampled_from([0, 1, 3])), draw(st.sampled_from([1, 4, 16]))
    cache = PageCache(KVGeometry(1, 1, 1, page_size, "float32", axes), 200)
    sequence, sizes = cache.open(), st.integers(1, 3 * page_size)
    for _ in range(draw(st.integers(0, 4))):
        add(cache, sequence, "text", draw(sizes), advance=draw(st.sampled_from([None, 5])))
    if sequence.num_segments > 1 and draw(st.booleans()):
        sequence.drop([draw(st.integers(0, sequence.num_segments - 2))])
    if sequence.num_segments and draw(st.booleans()):
        sequence.keep(b"kept")
    if draw(st.booleans()):
        sequence.fork()
    if draw(st.booleans()):
        sequence.reserve(draw(sizes))
        if draw(st.booleans()):  # a step uses what an append drew and gave back
            append = sequence.append("text", draw(sizes), extend=bool(sequence.num_segments))
            cache.begin_step([append])
            append.abort()
    n = draw(sizes)
    offsets = st.integers(0, 40)
    rows = st.lists(st.lists(offsets, min_size=n, max_size=n), min_size=max(axes, 1))
    cut = draw(st.integers(1, n))
    options = {
        "extend": bool(sequence.num_segments) and draw(st.booleans()),
        "positions": np.array(draw(rows)[: max(axes, 1)]) if draw(st.booleans()) else None,
        "advance": draw(st.sampled_from([None, 0, n, 7, tuple(range(max(axes, 1)))])),
        "bidirectional": draw(st.sampled_from([False, True, [(0, cut)], [(0, n), (n - cut, n)]])),
    }
    return cache, sequence, {"num_tokens": n, **options}


@given(appends())
@settings(max_examples=300, deadline=None)
def test_the_native_plan_is_as_defined(drawn: tuple[PageCache, Sequence, dict[str, Any]]) -> None:
    cache, sequence, options = drawn
    n, page_size = options["num_tokens"], cache.geometry.page_size
    tail = tail_tokens(sequence, n, page_size, extend=options["extend"])
    copy = tail > 0 and must_copy(cache, int(sequence.table.page_ids[-1]))
    num_pages = copy + -(-(n - tail) // page_size)
    taken = must_take(cache, sequence, num_pages)
    before = cache.snapshot()
    assert sequence.pages_needed("text", n, extend=options["extend"]) == num_pages
    append = sequence.append("text", **options)
    assert_planned(append, options, page_size=page_size, tail=tail, copy=copy, taken=taken)
    check(cache.snapshot())
    append.abort()
    assert_same_held(before, cache.snapshot())


# -- what cannot be counted


@pytest.mark.parametrize("far", [LARGEST - 5, LARGEST, 2**40, 2**63 - 1])
def test_a_position_beyond_int32_is_refused(far: int) -> None:
    cache = make_cache()
    sequence = cache.open()
    add(cache, sequence, "text", 5)
    before, grid = cache.snapshot(), np.array([[0, far]])
    for grow in (sequence.append, lambda _, n, **o: sequence.reserve(n, **o)):
        with pytest.raises(ContextError, match=f"need position {far + 5}, .* last is 2147483646"):
            grow("text", 2, positions=grid)
    assert_same(before, cache.snapshot())
    sequence.append("text", 2, positions=np.array([[0, LARGEST - 6]]))
    assert sequence.pending is not None
    assert sequence.pending.positions.tolist() == [[5, LARGEST - 1]]


@pytest.mark.parametrize("advance", [2**31, 2**40, 2**64 - 1, (0, 2**31, 0)])
def test_an_advance_beyond_int32_is_refused(advance: Any) -> None:
    cache = make_cache(num_axes=3)
    sequence = cache.open()
    before = cache.snapshot()
    with pytest.raises(ValueError, match="advance must be at most 2147483647, got"):
        sequence.append("text", 1, advance=advance)
    assert_same(before, cache.snapshot())


def test_many_appends_cannot_pass_int32_either() -> None:
    cache = make_cache(num_axes=3)
    sequence = cache.open()
    add(cache, sequence, "text", 1, advance=(0, 0, LARGEST - 4))
    add(cache, sequence, "text", 1, advance=3)
    assert sequence.next_position.tolist() == [3, 3, LARGEST - 1]
    before = cache.snapshot()
    for advance, grid in ((2, 0), (None, [[1], [0], [0]])):
        with pytest.raises(ContextError, match="next position would be 2147483648, at most 21474"):
            sequence.append("text", 1, advance=advance, positions=np.zeros((3, 1), int) + grid)
    with pytest.raises(ContextError, match="need position 2147483647, a page table's last is"):
        sequence.append("text", 2)
    assert_same(before, cache.snapshot())
    add(cache, sequence, "text", 1)
    assert sequence.next_position.tolist() == [4, 4, LARGEST]


def test_what_comes_back_cannot_pass_int32_either() -> None:
    cache = make_cache()
    sequence = cache.open()
    for _ in range(2):
        add(cache, sequence, "text", 1, advance=2**30)
        state = sequence.export_state()
        sequence.drop([sequence.next_segment_id - 1])
    add(cache, sequence, "text", 1, advance=2**30)
    before = cache.snapshot()
    with pytest.raises(ContextError, match="need position 2147483647, a page table's last is"):
        sequence.insert(state)
    assert_same(before, cache.snapshot())


def test_a_pool_has_no_more_slots_than_int32_can_number() -> None:
    with pytest.raises(ValueError, match="at most 2147483647 slots, got 536870912 pages of 4"):
        make_cache(2**29)


# -- what is left when something fails half way


def fails(*_: Any, **__: Any) -> None:
    raise MemoryError("no memory")


def assert_unchanged(before: Any, cache: PageCache) -> None:
    """Equal, the order of the free pages included, but for how much there once was."""
    assert flat(before)[1:] == flat(cache.snapshot())[1:]
    check(cache.snapshot())


@pytest.mark.parametrize(
    "what", ["edgekv.native.appends.AppendPlanner.planned", "edgekv.cache.planning.Append"]
)
@pytest.mark.parametrize("reserved", [0, PAGE_SIZE, 9 * PAGE_SIZE])
def test_a_plan_that_fails_once_its_pages_are_taken_gives_them_back(
    what: str, reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    fork = sequence.fork()
    if reserved:
        sequence.reserve(reserved)
    before = cache.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(what, fails)
        with pytest.raises(MemoryError):
            sequence.append("frame", 3 * PAGE_SIZE, extend=True)
        assert_unchanged(before, cache)
    append = sequence.append("frame", 3 * PAGE_SIZE, extend=True)
    assert append.copy_page >= 0, "the fork holds the page too"
    append.abort()
    assert_unchanged(before, cache)
    fork.close()


@pytest.mark.parametrize("what", ["planned", "stepped"])
def test_who_observes_and_fails_leaves_nothing_taken(what: str) -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    before = cache.snapshot()
    cache.observe(type("Failing", (CacheObserver,), {what: fails})())
    with pytest.raises(MemoryError):
        add(cache, sequence, "frame", 9)
    if sequence.pending is not None:
        assert not sequence.pending.in_step
        sequence.pending.abort()
    cache.observe(None)
    assert_unchanged(before, cache)
    add(cache, sequence, "frame", 9)
