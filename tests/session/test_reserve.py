"""A long input fits or fails before anything is computed; an answer never fails half-way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv import SamplingOptions
from edgekv.cache import PageCache, check
from edgekv.executors.ort_cpu import OrtDecoder
from edgekv.generate import Runner
from tests.cache.compare import assert_same
from tests.cache.helpers import PAGE_SIZE, add, make_cache
from tests.session.helpers import QUESTION, Picture, load_pages


class CountingDecoder:
    """Stands in for a decoder: counts its steps, and breaks at the one it is told to."""

    shows_queries = False

    def __init__(self, cache: PageCache, break_at: int = -1) -> None:
        self._cache, self._break_at = cache, break_at
        self.num_steps = 0
        self.free: list[int] = []  # pages free at each step

    def run(self, *_: object) -> NDArray[np.float32]:
        if self.num_steps == self._break_at:
            raise MemoryError
        self.num_steps += 1
        self.free.append(self._cache.counts.free)
        return np.zeros((1, 2), np.float32)


def runner_over(cache: PageCache, break_at: int = -1) -> tuple[Runner, CountingDecoder]:
    """A runner whose chunks are two pages long."""
    decoder = CountingDecoder(cache, break_at)
    return Runner(decoder, cache, max_step_tokens=2 * PAGE_SIZE), decoder  # type: ignore[arg-type]


def embeds(num_pages: int) -> NDArray[np.float32]:
    return np.zeros((num_pages * PAGE_SIZE, 3), np.float32)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, edgekv.OutOfPagesError),
        ({"max_pages": 6}, edgekv.ContextError),
        ({"max_positions": 6 * PAGE_SIZE}, edgekv.ContextError),
    ],
    ids=["pool", "pages", "positions"],
)
def test_a_long_text_that_does_not_fit_fails_before_anything_is_computed(
    options: dict[str, int], error: type[Exception]
) -> None:
    cache = make_cache(8, **options)
    runner, decoder = runner_over(cache)
    sequence = cache.open()
    add(cache, sequence, "system", 2 * PAGE_SIZE)
    before = cache.snapshot()
    with pytest.raises(error):
        runner.feed(sequence, "text", embeds(7 if not options else 5))
    assert decoder.num_steps == 0
    assert_same(before, cache.snapshot())


def test_a_long_text_holds_its_pages_from_the_first_step_and_nothing_after() -> None:
    cache = make_cache(8)
    runner, decoder = runner_over(cache)
    with cache.open() as sequence:
        runner.feed(sequence, "text", embeds(5)[:-1])
        assert decoder.free == [3, 3, 3]
        assert (sequence.num_pages, sequence.reserved_pages.size) == (5, 0)
        runner.feed(sequence, "text", embeds(2), extend=True)  # one token fits its last page
        assert sequence.reserved_pages.size == 0
        check(cache.snapshot())


def test_a_long_text_that_breaks_half_way_leaves_nothing() -> None:
    cache = make_cache(8)
    runner, decoder = runner_over(cache, break_at=2)
    sequence = cache.open()
    with pytest.raises(MemoryError):
        runner.feed(sequence, "text", embeds(6))
    assert decoder.num_steps == 2
    assert (sequence.num_tokens, sequence.reserved_pages.size, cache.counts.free) == (0, 0, 8)
    check(cache.snapshot())


def test_a_text_of_several_pieces_uses_the_reserve_that_was_made_for_it() -> None:
    cache = make_cache(8)
    runner, decoder = runner_over(cache)
    sequence = cache.open()
    sequence.reserve(5 * PAGE_SIZE)
    sequence.reserve(2 * PAGE_SIZE)
    runner.feed(sequence, "text", embeds(5))
    assert decoder.free == [1, 1, 1]
    assert sequence.reserved_pages.size == 2


@pytest.fixture
def small(bundle_path: Path) -> Iterator[edgekv.Model]:
    """A pool for eight frames, a short pinned start and a question."""
    with load_pages(bundle_path, 24, share=False) as loaded:
        yield loaded


def never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model never says that its answer is complete: each is as long as it may be."""
    run = OrtDecoder.run

    def endless(*args: object) -> NDArray[np.float32]:
        logits = np.full_like(run(*args), -1.0)  # type: ignore[arg-type]
        logits[:, 100] = 1.0
        return logits

    monkeypatch.setattr(OrtDecoder, "run", endless)


def test_an_answer_never_fails_half_way_while_another_session_fills_the_pool(
    small: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_ends(monkeypatch)
    with (
        small.session(reserve_tokens=96) as asked,
        small.session(reserve_tokens=32, priority=1) as greedy,
    ):
        asked.push(picture(0), 0.0)
        greedy.push(picture(1), 0.0)
        live = asked.stats().pages_live
        pieces = asked.ask_iter(QUESTION, SamplingOptions(max_new_tokens=64))
        assert asked.stats().pages_live >= live + 4, "the pages of 63 tokens are held at once"
        for k in range(40):
            greedy.push(picture(k), 1.0 + k)
        assert greedy.stats().num_evicted_frames > 0, "the pool is full"
        num_pieces = 0
        for k, _ in enumerate(pieces):
            num_pieces += 1
            greedy.push(picture(k), 50.0 + k)
        assert num_pieces > 10
        greedy.push(picture(0), 200.0)
    with small.session(reserve_tokens=64) as alone:
        assert alone.stats().pages_live <= 2, "everything has come back"


def test_an_answer_that_is_shorter_than_it_may_be_gives_back_the_rest(
    small: edgekv.Model, picture: Picture
) -> None:
    with small.session(reserve_tokens=96) as session:
        session.push(picture(0), 0.0)
        before = session.stats()
        pieces = session.ask_iter(QUESTION, SamplingOptions(max_new_tokens=64))
        assert session.stats().pages_live > before.pages_live
        del pieces
        session.ask(QUESTION, SamplingOptions(max_new_tokens=1))
        assert session.stats().pages_live == before.pages_live


def test_a_second_answer_is_as_long_as_what_the_first_has_left(
    small: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two promises are never made of the same pages."""
    never_ends(monkeypatch)
    with small.session(reserve_tokens=64) as session:
        for k in range(40):
            session.push(picture(k), float(k))
        first = session.ask_iter(QUESTION, SamplingOptions(max_new_tokens=40))
        available = session.stats().pages_available
        assert available < 4
        try:
            second = session.ask(QUESTION, SamplingOptions(max_new_tokens=64))
        except edgekv.OutOfPagesError:
            assert available < 2, "there is no room for the prompt"
        else:
            assert len(second.token_ids) < 64
        assert len("".join(first)) > 0
        assert session.ask(QUESTION, SamplingOptions(max_new_tokens=40)).finish_reason == "length"
