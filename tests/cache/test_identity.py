"""What is found, what is given up for whom, and that nothing grows."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.cache import PageCache, Sequence, check
from edgekv.errors import CacheError, OutOfPagesError
from tests.cache.helpers import add, make_cache


def context(cache: PageCache, *contents: bytes, num_tokens: int = 6) -> Sequence:
    """A context that holds these, each found or else computed and kept."""
    sequence = cache.open()
    for content in contents:
        go_on(cache, sequence, content, num_tokens=num_tokens)
    return sequence


def go_on(cache: PageCache, sequence: Sequence, content: bytes, *, num_tokens: int = 6) -> bool:
    """Whether the content was found."""
    found = sequence.find("frame", content)
    if found is not None:
        sequence.take(found)
        return True
    add(cache, sequence, "frame", num_tokens)
    assert sequence.keep(content)
    return False


def known(cache: PageCache, *contents: bytes) -> int:
    """How many of these, one behind another, can be found."""
    with cache.open() as probe:
        for number, content in enumerate(contents):
            found = probe.find("frame", content)
            if found is None:
                return number
            probe.take(found)
    return len(contents)


def test_contexts_that_begin_alike_hold_one_copy_of_what_is_alike() -> None:
    cache = make_cache(32)
    one, other = context(cache, b"a", b"b", b"c"), context(cache, b"a", b"b", b"d")
    np.testing.assert_array_equal(one.table.page_ids[:4], other.table.page_ids[:4])
    assert not set(one.table.page_ids[4:]) & set(other.table.page_ids[4:])
    assert (cache.counts.live, cache.counts.cached) == (8, 0)
    assert (cache.index.counts.hits, cache.index.counts.misses) == (2, 4)
    assert other.num_tokens == 18
    assert other.next_position.tolist() == [18]
    check(cache.snapshot())


def test_pages_that_nobody_holds_are_cached_and_count_as_available() -> None:
    cache = make_cache(8)
    context(cache, b"a", b"b").close()
    counts = cache.counts
    assert (counts.free, counts.live, counts.cached, counts.available) == (4, 0, 4, 8)
    again = context(cache, b"a")
    assert (cache.counts.live, cache.counts.cached) == (2, 2)
    add(cache, again, "text", 24)  # all that is free, and what is cached
    assert (cache.counts.free, cache.counts.live, cache.counts.cached) == (0, 8, 0)
    check(cache.snapshot())


def test_what_does_not_fit_with_all_that_is_cached_gives_nothing_up() -> None:
    cache = make_cache(8)
    context(cache, b"a", b"b").close()
    with cache.open() as sequence, pytest.raises(OutOfPagesError, match="need 9 pages, 8 free"):
        sequence.append("text", 33)
    assert known(cache, b"a", b"b") == 2


def test_the_last_of_the_context_used_longest_ago_is_given_up_first() -> None:
    cache = make_cache(16)
    names: dict[int, str] = {}  # by first page
    for name in ("old", "new", "old"):  # used again: the other is older now
        with context(cache, *(f"{name}{k}".encode() for k in range(3))) as sequence:
            names |= {int(sequence.table.page_ids[2 * k]): f"{name}{k}" for k in range(3)}
    assert (cache.counts.free, cache.counts.cached) == (4, 12)
    left = []
    with cache.open() as sequence:
        for _ in range(5):
            add(cache, sequence, "text", 12)
            entries = cache.snapshot().entries
            left.append(sorted(names[int(entry.pages[0])] for entry in entries))
    assert left == [
        ["new0", "new1", "new2", "old0", "old1", "old2"],
        ["new0", "new1", "old0", "old1", "old2"],
        ["old0", "old1", "old2"],
        ["old0", "old1"],
        [],
    ]


def test_with_a_segment_goes_what_is_behind_it_held_or_not() -> None:
    cache = make_cache(8)
    sequence = context(cache, b"a", b"b", b"c")
    sequence.drop([0])  # its pages are cached; what is behind it is held
    assert (cache.counts.live, cache.counts.cached, cache.counts.free) == (4, 2, 2)
    with cache.open() as other:
        add(cache, other, "text", 16)
        assert cache.index.counts.segments == 0
        assert (cache.counts.live, cache.counts.free) == (8, 0)
        check(cache.snapshot())
    assert sequence.num_tokens == 12


def test_after_the_first_drop_a_context_is_private() -> None:
    cache = make_cache(32)
    one, other = context(cache, b"a", b"b", b"c"), context(cache, b"a", b"b")
    one.drop([0])
    add(cache, one, "frame", 6)
    assert not one.is_findable
    assert not one.keep(b"d")
    assert one.find("frame", b"e") is None
    assert other.is_findable
    assert go_on(cache, other, b"c"), "what was kept before can be found still"
    assert known(cache, b"b") == 0


def test_what_has_something_unkept_in_it_is_neither_found_nor_kept() -> None:
    cache = make_cache(32)
    sequence = context(cache, b"a")
    add(cache, sequence, "text", 5)
    assert sequence.find("frame", b"b") is None
    add(cache, sequence, "frame", 6)
    assert not sequence.keep(b"b")
    sequence.truncate(6)
    assert sequence.is_findable, "it is again what it was"
    sequence.truncate(0)
    assert not sequence.is_findable


def test_whoever_goes_on_inside_a_kept_segment_writes_into_a_copy() -> None:
    cache = make_cache(32)
    one = cache.open()
    add(cache, one, "text", 6)
    assert one.keep(b"a")
    page = int(one.table.page_ids[-1])
    step = add(cache, one, "text", 1, extend=True)
    assert step.copies.tolist() == [[page, int(one.table.page_ids[-1])]]
    assert not one.is_findable
    assert cache.counts.cached == 1
    with cache.open() as other:
        found = other.find("text", b"a")
        assert found is not None
        assert page in found.pages


def test_kinds_and_order_are_part_of_what_is_found() -> None:
    cache = make_cache(32)
    sequence = context(cache, b"a", b"b")
    with cache.open() as other:
        assert other.find("text", b"a") is None
        assert other.find("frame", b"b") is None
        assert other.find("frame", b"a") is not None
    assert sequence.find("frame", b"b") is None


def test_models_of_another_identity_have_other_keys() -> None:
    keys = []
    for identity in (b"one", b"other"):
        cache = make_cache(8, identity=identity)
        context(cache, b"a")
        keys.append(cache.snapshot().entries[0].key)
    assert keys[0] != keys[1]
    assert len(keys[0]) == 32


def test_where_all_digests_are_the_same_nothing_false_is_found() -> None:
    cache = make_cache(32, digest=lambda _: b"")
    one = context(cache, b"a")
    other = cache.open()
    assert other.find("frame", b"b") is None
    add(cache, other, "frame", 6)
    assert not other.keep(b"b"), "the place is taken, the pages stay private"
    assert not other.is_findable
    assert cache.index.counts.collisions == 1
    third = cache.open()
    assert go_on(cache, third, b"a")
    np.testing.assert_array_equal(third.table.page_ids, one.table.page_ids)
    check(cache.snapshot())


def test_two_that_compute_the_same_at_once_keep_one() -> None:
    cache = make_cache(32)
    one, other = cache.open(), cache.open()
    for sequence in (one, other):
        add(cache, sequence, "frame", 6)
    assert one.keep(b"a")
    assert not other.keep(b"a")
    assert not other.is_findable


def test_forks_keep_for_each_other() -> None:
    cache = make_cache(32)
    parent = cache.open()
    add(cache, parent, "frame", 6)
    child = parent.fork()
    assert parent.keep(b"a")
    assert child.keep(b"a"), "they are the same pages"
    assert go_on(cache, child, b"b") is False
    assert go_on(cache, parent, b"b") is True
    check(cache.snapshot())


def test_what_was_found_must_be_taken_before_it_is_given_up() -> None:
    cache = make_cache(8)
    context(cache, b"a").close()
    late = cache.open()
    found = late.find("frame", b"a")
    assert found is not None
    with cache.open() as greedy:
        add(cache, greedy, "text", 32)
    before = cache.counts
    with pytest.raises(CacheError, match="given up before it was taken"):
        late.take(found)
    other = context(cache, b"b")
    with pytest.raises(CacheError, match="behind another context"):
        other.take(found)
    other.close()
    assert cache.counts.available == before.available
    assert late.num_tokens == 0


def test_without_sharing_every_context_is_private() -> None:
    cache = make_cache(32, share=False)
    sequence = cache.open()
    add(cache, sequence, "frame", 6)
    assert not sequence.keep(b"a")
    sequence.close()
    assert (cache.counts.cached, cache.index.counts.segments) == (0, 0)


def test_sharing_that_is_stopped_leaves_contexts_as_they_are() -> None:
    cache = make_cache(32)
    context(cache, b"a", b"b").close()
    sequence = context(cache, b"a")
    cache.stop_sharing()
    assert (cache.counts.live, cache.counts.cached) == (2, 0)
    assert not sequence.is_findable
    assert known(cache, b"a") == 0
    check(cache.snapshot())


def test_two_thousand_contexts_grow_nothing() -> None:
    cache = make_cache(16)
    for k in range(2_000):
        context(cache, b"start", str(k).encode(), num_tokens=3).close()
        assert cache.index.counts.segments <= 16
    check(cache.snapshot())
    assert cache.index.counts.hits == 1_999
    assert cache.counts.available == 16
