import numpy as np
import pytest

from edgekv.cache import PageCache, check
from edgekv.errors import CacheError
from edgekv.types import StepTables
from tests.cache.compare import assert_same
from tests.cache.helpers import add, frames, make_cache

ARRAYS = tuple(name for name in StepTables.__slots__ if name != "cross")  # see test_cross.py


def test_the_tables_of_a_mixed_step() -> None:
    """A chunk of prefill and a decode step in one call; rows of different length."""
    cache = make_cache()
    first = frames(cache, 1)  # 3 tokens in page 0, 6 in pages 1 and 2
    second = cache.open()
    add(cache, second, "answer", 2)  # page 3
    step = cache.begin_step(
        [
            first.append("text", 5, mass_weight=0.5),
            second.append("answer", 1, extend=True),
        ]
    )
    t = step.tables
    assert t.page_table.tolist() == [
        [[0, 3, 0], [1, 4, 0], [2, 2, 0], [4, 4, 0], [5, 1, 0]],
        [[3, 3, 0], [-1, 0, 0], [-1, 0, 0], [-1, 0, 0], [-1, 0, 0]],
    ]
    assert t.query_starts.tolist() == [0, 5, 6]
    assert t.slot_mapping.tolist() == [16, 17, 18, 19, 20, 14]
    assert t.position_ids.tolist() == [[9, 10, 11, 12, 13, 2]]
    assert t.query_indices.tolist() == [9, 10, 11, 12, 13, 2]
    assert t.kv_limits.tolist() == [10, 11, 12, 13, 14, 3]
    assert t.mass_weights.tolist() == [0.5, 0.0]
    assert step.copies.tolist() == []
    assert t.cross is None
    dtypes = {name: getattr(t, name).dtype for name in ARRAYS}
    assert dtypes.pop("position_ids") == np.int64
    assert dtypes.pop("mass_weights") == np.float32
    assert set(dtypes.values()) == {np.dtype(np.int32)}


def test_bidirectional_tokens_see_to_the_end_of_their_run() -> None:
    cache = make_cache()
    sequence = frames(cache, 0)
    whole = cache.begin_step([sequence.append("frame", 4, bidirectional=True)])
    assert whole.tables.kv_limits.tolist() == [7, 7, 7, 7]
    whole.abort()
    runs = cache.begin_step([sequence.append("frame", 6, bidirectional=[(1, 3), (4, 6)])])
    assert runs.tables.kv_limits.tolist() == [4, 6, 6, 7, 9, 9]


@pytest.mark.parametrize(("num_axes", "rows", "columns"), [(0, 1, 2), (1, 1, 3), (3, 3, 5)])
def test_axes_give_columns_and_rows(num_axes: int, rows: int, columns: int) -> None:
    cache = make_cache(num_axes=num_axes)
    step = add(cache, frames(cache, 1), "text", 2)
    assert step.tables.position_ids.shape == (rows, 2)
    assert step.tables.page_table.shape == (1, 4, columns)


def test_the_tables_never_change_while_the_step_is_in_flight() -> None:
    cache = make_cache(64)
    one, two = frames(cache, 2), frames(cache, 2)
    step = cache.begin_step([one.append("text", 3)])
    before = [getattr(step.tables, name).copy() for name in ARRAYS]
    for _ in range(20):
        add(cache, two, "frame", 6)
    one.close()
    two.drop([1, 2, 3])
    for name, was in zip(ARRAYS, before, strict=True):
        now = getattr(step.tables, name)
        assert np.array_equal(now, was), name
        assert not now.flags.writeable, name


@pytest.mark.parametrize("how", ["append", "step", "with", "error"])
def test_an_abort_restores_everything(how: str) -> None:
    cache = make_cache()
    one = frames(cache, 2)
    add(cache, one, "text", 2)
    two = one.fork()
    two.drop([1])
    before = cache.snapshot()
    appends = [one.append("text", 3, extend=True), two.append("frame", 9, index=5)]
    if how == "append":
        for append in reversed(appends):
            append.abort()
    elif how == "step":
        cache.begin_step(appends).abort()
    elif how == "with":
        with cache.begin_step(appends):
            pass
    else:

        def fail() -> None:
            with cache.begin_step(appends):
                raise RuntimeError("the device is gone")

        with pytest.raises(RuntimeError, match="the device is gone"):
            fail()
    after = cache.snapshot()
    assert after.allocator.counts.peak > before.allocator.counts.peak
    object.__setattr__(after.allocator, "counts", before.allocator.counts)
    assert_same(before, after)


def test_a_committed_step_stays_at_the_end_of_its_block() -> None:
    cache = make_cache()
    sequence = cache.open()
    with cache.begin_step([sequence.append("text", 3)]) as step:
        step.commit()
    assert (step.ended, sequence.num_tokens) == (True, 3)
    for again in (step.commit, step.abort):
        with pytest.raises(CacheError, match="the step has ended already"):
            again()


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_closing_a_sequence_in_the_middle_of_its_step(end: str) -> None:
    """Its pages wait for the device; the other sequence of the step goes on."""
    cache = make_cache()
    one, two = frames(cache, 1), frames(cache, 1)
    step = cache.begin_step([one.append("text", 5), two.append("text", 5)])
    one.close()
    assert cache.counts.in_flight == 5
    check(cache.snapshot())
    getattr(step, end)()
    assert cache.counts.in_flight == 0
    assert two.num_tokens == (14 if end == "commit" else 9)
    two.close()
    assert cache.counts.free == cache.counts.num_pages


def test_a_page_that_a_step_still_uses_is_copied_not_written() -> None:
    """Given up in the middle, then tried again: the first step may still write its slots."""
    cache = make_cache()
    sequence = cache.open()
    add(cache, sequence, "text", 2)
    first = sequence.append("text", 1, extend=True)
    step = cache.begin_step([first])
    first.abort()
    second = cache.begin_step([sequence.append("text", 1, extend=True)])
    assert not set(second.tables.slot_mapping.tolist()) & set(step.tables.slot_mapping.tolist())
    assert second.copies[:, 0].tolist() == sequence.table.page_ids.tolist()
    second.commit()
    step.commit()
    assert sequence.num_tokens == 3
    check(cache.snapshot())


def test_what_cannot_be_a_step() -> None:
    cache, other = make_cache(), make_cache()
    sequence, stranger = cache.open(), other.open()
    append = sequence.append("text", 1)
    before = cache.snapshot()
    with pytest.raises(ValueError, match="at least one append"):
        cache.begin_step([])
    with pytest.raises(CacheError, match="listed twice"):
        cache.begin_step([append, append])
    with pytest.raises(CacheError, match="not open in this cache"):
        cache.begin_step([append, stranger.append("text", 1)])
    assert_same(before, cache.snapshot())
    step = cache.begin_step([append])
    with pytest.raises(CacheError, match="in a step already"):
        cache.begin_step([append])
    step.commit()
    with pytest.raises(CacheError, match=r"in a step already|committed"):
        cache.begin_step([append])


@pytest.mark.parametrize("option", ["max_pages", "max_positions"])
def test_limits_are_positive(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        make_cache(**{option: 0})


def test_sequences_are_listed_as_they_were_opened() -> None:
    cache: PageCache = make_cache()
    one = cache.open()
    two = one.fork()
    assert cache.sequences == (one, two)
