"""Wrong calls: one clear error each, and the session goes on as if nothing had happened."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv import Frame, SamplingOptions
from edgekv.drawing import Drawing
from edgekv.executors.ort_cpu import OrtDecoder
from tests.session.helpers import Picture
from tests.waiting import in_another_thread

UNSEEN = itertools.count(10**6)  # pictures that no session has computed, so that one must


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((64, 64), np.uint8),
        np.zeros((64, 64, 4), np.uint8),
        np.zeros((64, 64, 3), np.float32),
        np.zeros((0, 64, 3), np.uint8),
        "picture.png",
    ],
)
def test_a_wrong_frame_is_refused_and_changes_nothing(
    session: edgekv.Session, picture: Picture, pixels: object
) -> None:
    session.push(picture(0), 0.0)
    before = session.stats()
    with pytest.raises(ValueError, match=r"\(height, width, 3\)"):
        session.push(pixels, 1.0)  # type: ignore[arg-type]
    assert session.stats() == before
    session.push(picture(1), 0.5)  # the time of the refused frame does not count


def test_times_must_not_go_backwards(session: edgekv.Session, picture: Picture) -> None:
    session.push(Frame(picture(0), 2.0))
    with pytest.raises(ValueError, match=r"backwards: got 1.0 s after 2.0 s"):
        session.push(Frame(picture(1), 1.0))
    with pytest.raises(ValueError, match="backwards"):
        session.push(Frame(picture(1), float("nan")))
    session.push(Frame(picture(1), 2.0))
    assert session.stats().num_frames == 2


def test_an_array_needs_a_time(session: edgekv.Session, picture: Picture) -> None:
    with pytest.raises(ValueError, match="needs its time"):
        session.push(picture(0))


def test_a_wrong_option_is_refused_before_anything_is_taken(
    model: edgekv.Model, session: edgekv.Session, picture: Picture
) -> None:
    session.push(picture(0), 0.0)
    before = model.figures().counts
    with pytest.raises(ValueError, match="options must be SamplingOptions, got a dict"):
        session.ask("What?", {"max_new_tokens": 4})  # type: ignore[arg-type]
    for priority in ("high", None, 1.5):
        with pytest.raises(ValueError, match="priority must be a whole number"):
            model.session(priority=priority)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reserve_tokens must be a whole number"):
        model.session(reserve_tokens=2.5)  # type: ignore[arg-type]
    assert model.figures().counts == before


def test_closing_gives_every_page_back(model: edgekv.Model, picture: Picture) -> None:
    with model.session() as probe:
        free = probe.stats().pages_available
        with model.session() as session:
            for k in range(40):
                session.push(picture(k), float(k))
            session.fork().close()
        assert probe.stats().pages_available == free


def test_an_answer_outlives_its_session(model: edgekv.Model, picture: Picture) -> None:
    with model.session() as session:
        session.push(picture(0), 0.0)
        expected = session.ask("What do you see?").text
        pieces = session.ask_iter("What do you see?")
    assert "".join(pieces) == expected


@pytest.mark.parametrize("use", [next, Drawing.close])
def test_a_second_thread_neither_draws_nor_closes_an_answer(
    model: edgekv.Model,
    picture: Picture,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[object], object],
) -> None:
    run, said = OrtDecoder.run, []

    def use_it() -> None:
        try:
            use(pieces)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    def run_beside(*arguments: Any) -> NDArray[np.float32]:
        in_another_thread(use_it)
        return run(*arguments)

    with model.session() as session:
        session.push(picture(0), 0.0)
        expected = session.ask("What do you see?").text
        pieces = session.ask_iter("What do you see?")
        monkeypatch.setattr(OrtDecoder, "run", run_beside)
        assert "".join(pieces) == expected
    refused = "SessionError: another thread is drawing this answer; draw it from one thread"
    assert set(said) == {refused}


@pytest.mark.parametrize("name", ["", "newest", "WINDOW"])
def test_an_unknown_rule_names_the_choices(model: edgekv.Model, name: str) -> None:
    with pytest.raises(ValueError, match="window"):
        model.session(retain=name)


def test_an_unknown_device_names_the_choices(bundle_path: str) -> None:
    with pytest.raises(ValueError, match="auto, cpu, cuda, tensorrt"):
        edgekv.load(bundle_path, device="gpu")
    with pytest.raises(edgekv.ExecutorError, match="tensorrt"):
        edgekv.load(bundle_path, device="tensorrt")


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_question_is_refused(session: edgekv.Session, picture: Picture, text: str) -> None:
    session.push(picture(0), 0.0)
    before = session.stats()
    with pytest.raises(ValueError, match="empty"):
        session.ask(text)
    assert session.stats() == before


def test_pushing_from_two_threads_is_an_error_and_never_a_crash(
    model: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, outcomes = OrtDecoder.run, list[str]()
    refused = "another thread is changing this session; push and say from one thread"
    with model.session() as session:

        def push(k: int) -> None:
            try:
                # Pictures of its own: one that the pool holds already is not computed.
                session.push(Frame(picture(900 + k), 1.0))
                outcomes.append("pushed")
            except edgekv.SessionError as error:
                outcomes.append(str(error))

        def run_beside(*arguments: Any) -> NDArray[np.float32]:
            in_another_thread(lambda: push(2))
            return run(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(OrtDecoder, "run", run_beside)
            push(next(UNSEEN))
        assert outcomes == [refused, "pushed"]

        def push_many(k: int) -> None:
            for _ in range(50):
                push(k)

        threads = [threading.Thread(target=push_many, args=(k,)) for k in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 102
        assert set(outcomes) == {"pushed", refused}
        assert session.stats().num_frames == outcomes.count("pushed")


def test_asking_from_other_threads_while_one_pushes(model: edgekv.Model, picture: Picture) -> None:
    with model.session() as session:
        session.push(picture(0), 0.0)
        answers: list[edgekv.Answer] = []

        def ask() -> None:
            for _ in range(5):
                answers.append(session.ask("What do you see?", SamplingOptions(max_new_tokens=3)))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for k in range(1, 60):
            session.push(picture(k), float(k))
        for thread in threads:
            thread.join()
        assert len(answers) == 15
        stats = session.stats()
        assert stats.num_frames == 60
        assert stats.num_questions == 15
