"""What a frame's pages say: means of their values, read once, for rules that compare frames."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.cache import PageCache, Sequence
from edgekv.native.columns import PageValues
from tests.cache.helpers import add, frames, make_cache

Pool = np.ndarray  # (num_pages, 1, 4, 1) float16, NaN where nothing was written


@pytest.fixture(params=["read", "found in memory"])
def looked_at(request: pytest.FixtureRequest) -> tuple[PageCache, Pool]:
    """A cache that keeps summaries, and what its pages hold."""
    cache = make_cache(8)
    pool = np.full((8, 1, 4, 1), np.nan, np.float16)
    cache.summaries.keep()
    if request.param == "read":
        cache.summaries.read_from(lambda pages: pool[pages])
    else:
        values = PageValues(pool)
        cache.summaries.read_from(pytest.fail, lambda: values)
    return cache, pool


def show(cache: PageCache, sequence: Sequence, pool: Pool, number: float) -> None:
    """A frame of 6 tokens, every value of which is ``number``; unused slots hold NaN."""
    add(cache, sequence, "frame", 6)
    full, part = sequence.segments[-1].pages
    pool[full], pool[part] = number, np.nan
    pool[part, :, :2] = number


def test_a_summary_is_the_mean_over_the_tokens_of_a_frame(
    looked_at: tuple[PageCache, Pool],
) -> None:
    cache, pool = looked_at
    sequence = cache.open()
    add(cache, sequence, "text", 3)
    show(cache, sequence, pool, 3.0)
    pool[sequence.segments[-1].pages[0], 0, 0] = 9.0
    np.testing.assert_array_equal(sequence.summaries()[:, 0], [np.nan, 4.0])


def test_without_anybody_who_can_read_there_are_none() -> None:
    cache = make_cache()
    cache.summaries.keep()
    assert np.isnan(frames(cache, 2).summaries()).all()


def test_summaries_leave_with_their_frames_and_a_fork_keeps_its_own(
    looked_at: tuple[PageCache, Pool],
) -> None:
    cache, pool = looked_at
    sequence = cache.open()
    for number in range(3):
        show(cache, sequence, pool, number)
    with sequence.fork() as fork:
        sequence.drop([0])
        assert sequence.summaries()[:, 0].tolist() == [1, 2]
        assert fork.summaries()[:, 0].tolist() == [0, 1, 2]
    show(cache, sequence, pool, 3)  # in pages that were written before
    assert sequence.summaries()[:, 0].tolist() == [1, 2, 3]


def test_a_context_that_is_brought_in_has_no_summary_of_what_its_pages_held_before(
    looked_at: tuple[PageCache, Pool],
) -> None:
    cache, pool = looked_at
    sequence = cache.open()
    show(cache, sequence, pool, 3.0)
    assert sequence.summaries().tolist() == [[3.0]]
    state = sequence.export_state()
    sequence.close()
    pool[:] = 5.0
    assert cache.import_state(state).summaries().tolist() == [[5.0]]


def test_nothing_is_kept_before_somebody_asks() -> None:
    cache = make_cache()
    assert frames(cache, 2).summaries().shape == (3, 0)


def test_frames_are_summed_up_when_a_rule_first_looks_and_read_once() -> None:
    cache, asked = make_cache(), []

    def read(pages: np.ndarray) -> np.ndarray:
        asked.append(pages.tolist())
        values = np.full((len(pages), 1, 4, 1), np.nan, np.float16)
        values[:] = pages[:, None, None, None]
        return values

    cache.summaries.read_from(read)
    sequence = frames(cache, 3)  # 3 tokens in page 0, then 6 in two pages each
    assert sequence.summaries().shape == (4, 0)
    assert asked == []
    cache.summaries.keep()
    means = [np.nan, (4 * 1 + 2 * 2) / 6, (4 * 3 + 2 * 4) / 6, (4 * 5 + 2 * 6) / 6]
    np.testing.assert_allclose(sequence.summaries()[:, 0], means, rtol=1e-6)
    add(cache, sequence, "text", 3)
    add(cache, sequence, "frame", 3, index=3)
    np.testing.assert_allclose(sequence.summaries()[:, 0], [*means, np.nan, 8], rtol=1e-6)
    sequence.drop([2])
    np.testing.assert_allclose(sequence.summaries()[:, 0], [*means[:2], means[3], np.nan, 8])
    assert asked == [[1, 2, 3, 4, 5, 6], [8]]
