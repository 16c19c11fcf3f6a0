"""Several sessions of one model in a pool too small for all of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.executors.ort_cpu import OrtDecoder
from tests.session.helpers import QUESTION, SHORT, Picture, load_pages, push

NUM_PAGES = 24


@pytest.fixture
def small(bundle_path: Path) -> Iterator[edgekv.Model]:
    """Nothing is held in common here: whoever wants a page needs one of its own."""
    with load_pages(bundle_path, NUM_PAGES, share=False) as loaded:
        yield loaded


def held(*sessions: edgekv.Session) -> list[int]:
    return [session.stats().num_context_frames for session in sessions]


def test_a_second_session_opens_in_a_full_pool_and_gets_its_share(
    small: edgekv.Model, picture: Picture
) -> None:
    with small.session(reserve_tokens=64) as first:
        push(first, picture, 0, 30)
        alone = held(first)[0]
        with small.session(reserve_tokens=64) as second:
            for k in range(30):
                push(first, picture, 30 + k, 1)
                push(second, picture, k, 1)
            assert min(held(first, second)) >= alone // 2 - 2
            for session in (first, second):
                stats = session.stats()
                assert stats.num_context_frames + stats.num_evicted_frames == stats.num_frames
                assert session.ask(QUESTION, SHORT).token_ids
        push(first, picture, 60, 30)
        assert held(first)[0] >= alone - 2


def test_a_session_of_higher_priority_takes_frames_and_leaves_the_newest(
    small: edgekv.Model, picture: Picture
) -> None:
    with small.session(reserve_tokens=64) as low:
        push(low, picture, 0, 30)
        with small.session(reserve_tokens=64, priority=1) as high:
            push(high, picture, 0, 30)
            assert low.context_frames().tolist() in ([29], [28, 29])
            kept = high.context_frames().tolist()
            push(low, picture, 30, 5)
            assert low.context_frames().tolist() in ([34], [33, 34])
            assert high.context_frames().tolist() == kept


def test_a_push_that_fails_takes_nothing_from_others(
    small: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> NDArray[np.float32]:
        raise KeyboardInterrupt

    with (
        small.session(reserve_tokens=64) as low,
        small.session(reserve_tokens=64, priority=1) as high,
    ):
        push(low, picture, 0, 30)
        push(high, picture, 0, 1)
        for k in range(1, 6):
            before, logits = low.stats(), low.logits(QUESTION)
            with monkeypatch.context() as patch:
                patch.setattr(OrtDecoder, "run", failing)
                with pytest.raises(KeyboardInterrupt):
                    high.push(picture(k), float(k))
            assert low.stats().num_evicted_frames == before.num_evicted_frames
            np.testing.assert_array_equal(low.context_frames(), np.sort(low.context_frames()))
            np.testing.assert_array_equal(low.logits(QUESTION), logits)
            push(high, picture, k, 1)
        assert low.stats().num_evicted_frames > before.num_evicted_frames - 1


def test_sessions_are_let_in_until_none_fits_and_told_what_would(
    small: edgekv.Model, picture: Picture
) -> None:
    sessions: list[edgekv.Session] = []

    def fill(more: Callable[[], edgekv.Session]) -> None:
        for _ in range(NUM_PAGES):
            sessions.append(more())
            push(sessions[-1], picture, 3 * len(sessions), 3)

    def open_one() -> edgekv.Session:
        return small.session(reserve_tokens=64, priority=len(sessions) % 2)

    with pytest.raises(edgekv.BudgetError, match=r"a KV budget of .* would do"):
        fill(open_one)
    assert len(sessions) >= 4
    with pytest.raises(edgekv.BudgetError, match="a frame of its own"):
        fill(sessions[0].fork)
    for session in sessions:
        push(session, picture, 90, 3)
        free = session.stats().pages_free
        assert session.ask(QUESTION, SHORT).token_ids
        assert session.stats().pages_free == free >= 5
    for session in sessions:
        session.close()


def test_a_saved_session_comes_back_into_a_pool_that_others_have_filled(
    small: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    with small.session(reserve_tokens=64) as first:
        push(first, picture, 0, 5)
        logits = first.logits(QUESTION)
        first.save(tmp_path / "s")
    with small.session(reserve_tokens=64) as other:
        push(other, picture, 50, 40)
        with small.restore(tmp_path / "s") as again:
            np.testing.assert_array_equal(again.logits(QUESTION), logits)
            assert other.context_frames()[-1] == 39
            push(other, picture, 90, 20)
            push(again, picture, 5, 20)
    with small.session(reserve_tokens=64, priority=1) as first:
        push(first, picture, 0, 40)
        free, kept = first.stats().pages_free, first.context_frames()
        first.save(tmp_path / "full")
        with pytest.raises(edgekv.BudgetError, match="pages"):
            small.restore(tmp_path / "full")
        assert first.stats().pages_free == free
        np.testing.assert_array_equal(first.context_frames(), kept)


def test_two_threads_push_and_ask_while_the_pool_is_short(
    small: edgekv.Model, picture: Picture
) -> None:
    problems: list[BaseException] = []

    def live(priority: int) -> None:
        try:
            for _ in range(3):
                with small.session(reserve_tokens=64, priority=priority) as session:
                    for k in range(15):
                        push(session, picture, k, 1)
                        if k % 5 == 4:
                            with contextlib.suppress(edgekv.OutOfPagesError):
                                session.ask(QUESTION, SHORT)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=live, args=(k % 2,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    with small.session(reserve_tokens=64) as session:
        assert session.stats().pages_live <= 2


@pytest.mark.parametrize("retain", ["window", "least-attended"])
def test_what_a_session_is_told_or_asked_never_costs_its_newest_frame(
    small: edgekv.Model, picture: Picture, retain: str
) -> None:
    with (
        small.session(reserve_tokens=64) as other,
        small.session(reserve_tokens=64, retain=retain) as session,
    ):
        push(other, picture, 50, 30)
        push(session, picture, 0, 30)
        num_said = 0
        for num_words in range(1, 400, 20):
            before, logits = session.stats(), session.logits(QUESTION)
            refused = ""
            try:
                session.say("red " * num_words)
            except (edgekv.ContextError, edgekv.OutOfPagesError) as error:
                refused = str(error)
            num_said += not refused
            if refused:
                assert refused.startswith("need ")
                assert session.stats().num_evicted_frames == before.num_evicted_frames
                np.testing.assert_array_equal(session.logits(QUESTION), logits)
            assert session.context_frames()[-1] == 29
            assert other.context_frames()[-1] == 29
        assert 0 < num_said < 20
        with pytest.raises(edgekv.ContextError, match="does not fit"):
            session.ask("red " * 2000)
        push(session, picture, 30, 1)
        assert session.context_frames()[-1] == 30
