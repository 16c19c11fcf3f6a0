"""What fails on the way changes nothing: not the context, not the pool, not the next logits."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

import edgekv
from edgekv import Frame, SamplingOptions
from edgekv.executors.ort_cpu import OrtDecoder, OrtVision
from edgekv.intake import Intake
from edgekv.trace import read_log
from edgekv.trace.replay import replay
from edgekv.trace.timeline import build_timeline
from tests.session.helpers import QUESTION, SHORT, Picture, load_pages, push
from tests.waiting import HANG_S


class BrokenError(Exception):
    pass


@pytest.fixture
def small(bundle_path: Path) -> Iterator[edgekv.Model]:
    """A pool for eight frames, a short pinned start and a question."""
    with load_pages(bundle_path, 14) as loaded:
        yield loaded


def small_session(model: edgekv.Model) -> edgekv.Session:
    return model.session(reserve_tokens=64)


@pytest.mark.parametrize("num_frames", [2, 20], ids=["room", "full"])
def test_a_push_that_fails_after_its_step_was_never_made(
    small: edgekv.Model,
    picture: Picture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    num_frames: int,
) -> None:
    def failing(*_: object) -> None:
        raise MemoryError

    small.trace(tmp_path / "log")
    with small_session(small) as session:
        push(session, picture, 0, num_frames)
        before, frames = session.stats(), session.context_frames()
        with monkeypatch.context() as patch:
            patch.setattr(Intake, "_count_frame", failing)
            for _ in range(5):
                with pytest.raises(MemoryError):
                    session.push(picture(99), 99.0)
        now = session.stats()
        assert (now.num_frames, now.num_evicted_frames) == (num_frames, before.num_evicted_frames)
        assert (session.context_frames() == frames).all()
        session.save(tmp_path / "saved")
        num_dropped = small.figures().counters.dropped_segments["window"]
        assert num_dropped == before.num_evicted_frames
    small.trace(None)
    timeline = build_timeline(read_log(tmp_path / "log"))
    assert timeline.frames.num == num_frames
    assert sum(drop.num_frames for drop in timeline.drops) == before.num_evicted_frames
    assert replay(read_log(tmp_path / "log")).difference is None
    with small.restore(tmp_path / "saved") as restored:
        assert (restored.context_frames() == frames).all()


@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_push_whose_step_fails_leaves_everything_as_it_was(
    small: edgekv.Model,
    picture: Picture,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    after: bool,
) -> None:
    run = OrtDecoder.run

    def failing(*args: object) -> NDArray[np.float32]:
        if after:
            run(*args)  # type: ignore[arg-type]
        raise error

    with small_session(small) as session:
        push(session, picture, 0, 10)
        for k in range(10, 15):  # the pool is full: frames leave
            session.push(picture(k), float(k))
            before, logits = session.stats(), session.logits(QUESTION)
            with monkeypatch.context() as patch:
                patch.setattr(OrtDecoder, "run", failing)
                for use in (
                    lambda: session.push(picture(99), 99.0),
                    lambda: session.say("Is there a red circle?"),
                    lambda: session.ask(QUESTION, SHORT),
                ):
                    with pytest.raises(error):
                        use()
            np.testing.assert_array_equal(session.logits(QUESTION), logits)
            now = session.stats()
            assert now.pages_available == before.pages_available
            assert now.num_context_frames == before.num_context_frames
            assert now.num_evicted_frames == before.num_evicted_frames
            assert now.num_tokens == before.num_tokens


def test_a_push_whose_picture_fails_leaves_everything_as_it_was(
    small: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> NDArray[np.float32]:
        raise BrokenError

    with small_session(small) as session:
        push(session, picture, 0, 12)
        before = session.stats()
        with monkeypatch.context() as patch:
            patch.setattr(OrtVision, "encode", failing)
            with pytest.raises(BrokenError):
                session.push(picture(99), 99.0)
        assert session.stats() == before
        push(session, picture, 12, 3)


@pytest.mark.parametrize(
    ("time_s", "index"),
    [
        (float("inf"), 0),
        (float("-inf"), 0),
        (10**400, 0),
        ("1", 0),
        (1j, 0),
        (np.array([1.0]), 0),
        (1.0, 2**63),
        (1.0, -2),
        (1.0, 1.5),
        (1.0, "x"),
        (1.0, None),
    ],
)
def test_a_time_or_number_that_cannot_be_is_refused(
    session: edgekv.Session, picture: Picture, time_s: float, index: int
) -> None:
    for k in range(2):  # as the first frame, and after another
        before = session.stats()
        with pytest.raises(ValueError, match=r"time|index"):
            session.push(Frame(picture(9), time_s, index))
        assert session.stats() == before
        session.push(picture(k), float(k))


@pytest.mark.parametrize("text", ["", "  ", "\ud800", "a<image>b", None, 5, b"bytes"])
def test_a_text_that_cannot_be_is_refused_everywhere(
    model: edgekv.Model, session: edgekv.Session, picture: Picture, text: str
) -> None:
    session.push(picture(0), 0.0)
    before = session.stats()
    uses = [session.ask, session.ask_iter, session.say, session.logits]
    if text is not None:
        uses.append(lambda words: model.session(instructions=words).close())
    for use in uses:
        with pytest.raises(ValueError, match=r"must (not )?(be|hold)"):
            use(text)
    assert session.stats() == before


@pytest.mark.parametrize("text", ["<end_of_utterance>", "<|im_start|>", "\x00", "{{ 7 * 7 }}"])
def test_odd_texts_are_what_the_tokenizer_makes_of_them(
    session: edgekv.Session, picture: Picture, bundle_path: Path, text: str
) -> None:
    tokenizer = Tokenizer.from_file(str(bundle_path / "tokenizer.json"))
    session.push(picture(0), 0.0)
    before = session.stats()
    session.ask(text, SHORT)
    assert session.stats().num_tokens == before.num_tokens
    session.say(text)
    num_said = session.stats().num_tokens - before.num_tokens
    assert num_said == len(tokenizer.encode(text, add_special_tokens=False).ids)
    session.push(picture(1), 1.0)
    assert session.stats().num_context_frames == 2


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": 1.5},
        {"seed": "a"},
        {"max_new_tokens": 1.5},
        {"max_new_tokens": "3"},
        {"temperature": "1"},
        {"temperature": None},
        {"top_p": None},
        {"stop": (1,)},
        {"stop": None},
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SamplingOptions(**options)  # type: ignore[arg-type]


def test_an_answer_that_cannot_begin_gives_its_pages_back(
    session: edgekv.Session, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise BrokenError

    session.push(picture(0), 0.0)
    monkeypatch.setattr("edgekv.drawing.Sampler", failing)
    with pytest.raises(BrokenError):
        session.ask(QUESTION)
    push(session, picture, 1, 60)  # the first frame's page is free again only without the fork
    stats = session.stats()
    assert stats.pages_live == stats.num_context_frames + 1


def test_a_stream_goes_on_while_answers_hold_the_room_of_questions(
    small: edgekv.Model, picture: Picture
) -> None:
    with small_session(small) as session:
        push(session, picture, 0, 12)
        before = session.stats()
        answer = session.ask_iter(QUESTION, SHORT)
        push(session, picture, 12, 2)
        assert "".join(answer)
        del answer
        push(session, picture, 14, 20)
        now = session.stats()
        assert now.num_frames == 34
        assert now.pages_free >= min(before.pages_free, 5)


def test_open_answers_run_into_a_typed_error_and_every_page_comes_back(
    small: edgekv.Model, picture: Picture
) -> None:
    with small_session(small) as session:
        push(session, picture, 0, 12)
        before, logits = session.stats(), session.logits(QUESTION)
        answers: list[Iterator[str]] = []

        def ask_until_full() -> None:
            while len(answers) < 100:
                answers.append(session.ask_iter(QUESTION, SamplingOptions(max_new_tokens=40)))

        with pytest.raises(edgekv.OutOfPagesError):
            ask_until_full()
        assert answers
        answers.clear()
        gc.collect()
        assert session.stats().pages_available == before.pages_available
        np.testing.assert_array_equal(session.logits(QUESTION), logits)
        push(session, picture, 12, 20)


def test_sessions_that_are_forgotten_give_their_pages_back(
    model: edgekv.Model, picture: Picture
) -> None:
    with model.session() as probe:
        free = probe.stats().pages_available
        for k in range(30):
            forgotten = model.session(instructions=f"You watch street {k}.")
            forgotten.push(picture(k), 0.0)
            cycle: list[object] = [forgotten]  # found by gc only
            cycle.append(cycle)
            forgotten = forgotten.fork()
            forgotten.push(picture(k + 1), 1.0)
        del forgotten, cycle
        gc.collect()
        assert probe.stats().pages_available == free


def test_collecting_forgotten_sessions_amid_other_work_is_safe(
    model: edgekv.Model, picture: Picture
) -> None:
    """Python may run a finalizer at any allocation, also inside the cache's own bookkeeping."""
    with model.session() as session:
        push(session, picture, 0, 30)
        expected, free = session.logits(QUESTION), session.stats().pages_available
        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(10):
                child = session.fork()
                cycle: list[object] = [child, child.ask_iter(QUESTION, SHORT)]
                cycle.append(cycle)
                del child, cycle
                np.testing.assert_array_equal(session.logits(QUESTION), expected)
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert session.stats().pages_available == free


def test_figures_add_up_at_every_moment(model: edgekv.Model, picture: Picture) -> None:
    with model.session() as session:
        done = threading.Event()
        wrong: list[edgekv.SessionStats] = []

        def watch() -> None:
            while not done.is_set():
                with session.fork() as child:
                    for stats in (child.stats(), session.stats()):
                        if stats.num_context_frames + stats.num_evicted_frames != stats.num_frames:
                            wrong.append(stats)

        watcher = threading.Thread(target=watch)
        watcher.start()
        push(session, picture, 0, 80)
        done.set()
        watcher.join()
        assert not wrong


@pytest.mark.parametrize("close_model", [False, True], ids=["session", "model"])
def test_closing_under_a_push_is_a_clear_error(
    bundle_path: Path, picture: Picture, close_model: bool
) -> None:
    with edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1) as model:
        session = model.session()
        errors: list[BaseException] = []
        begun = threading.Event()

        def push_on() -> None:
            try:
                for k in itertools.count():
                    session.push(picture(k % 5), float(k))
                    begun.set()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=push_on)
        thread.start()
        assert begun.wait(HANG_S)
        (model if close_model else session).close()
        thread.join(HANG_S)
        kind = edgekv.ModelError if close_model else edgekv.SessionError
        assert [type(error) for error in errors] == [kind]
        assert "closed" in str(errors[0])


def test_a_forgotten_answer_never_waits_for_the_pool(model: edgekv.Model, picture: Picture) -> None:
    """A finalizer may run in a thread that holds what the pool's user waits for."""
    with model.session() as session:
        session.push(picture(0), 0.0)
        live = session.stats().pages_live
        answer = session.ask_iter("What do you see?")
        held, done = threading.Event(), threading.Event()

        def use_the_pool() -> None:
            with model._runner.lock:
                held.set()
                assert done.wait(HANG_S), "the finalizer waits"

        user = threading.Thread(target=use_the_pool)
        user.start()
        assert held.wait(HANG_S)
        del answer
        gc.collect()
        done.set()
        user.join(HANG_S)
        assert session.stats().pages_live == live
