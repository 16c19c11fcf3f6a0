"""Sessions that look and hear by cross-attention: the right tokens, one copy, nothing mixed up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgekv
from edgekv.cache import CrossCounts
from edgekv.executors.ort_cpu import OrtDecoder
from edgekv.executors.ort_cross import OrtCross, OrtEncoder
from tests.session.cross_model import (
    PICTURES,
    QUESTION,
    SHORT,
    SOUNDS,
    START,
    asked,
    cross,
    heard,
    picture,
    sound,
    told,
    watch,
)


def test_answers_are_those_of_the_newest_picture_alone(seeing: edgekv.Model) -> None:
    with watch(seeing) as session:
        for k in range(6):
            session.push(picture(k), float(k))
            for question in (QUESTION, "Which one is it, then?"):
                assert asked(session, question) == told(k, question)
        assert len({told(k) for k in range(6)}) > 1
        assert session.context_frames().tolist() == [5]
        assert session.stats().num_evicted_frames == 5


def test_before_the_first_picture_nothing_is_seen(seeing: edgekv.Model) -> None:
    with watch(seeing) as session:
        assert asked(session) == PICTURES.answer([(f"{START}{QUESTION}</s>", None)], 6)


def test_what_is_said_keeps_what_it_saw(seeing: edgekv.Model) -> None:
    first, second = (PICTURES.states(picture(k)) for k in (0, 1))
    with watch(seeing) as session:
        session.push(picture(0), 0.0)
        session.say("One.")
        session.push(picture(1), 1.0)
        parts = [(START, None), ("One.", first), (f"<|image|>{QUESTION}</s>", second)]
        assert asked(session) == PICTURES.answer(parts, 6)


def test_transcripts_and_tasks(hearing: edgekv.Model) -> None:
    with hearing.session() as session:
        for k in range(4):
            session.push(sound(k), float(k))
            assert asked(session, "") == heard(k)
            assert asked(session, "<|task|>x") == heard(k, "<|task|>x")
        assert len({heard(k) for k in range(4)}) > 1
        assert session.retain == "keep"
        assert session.stats().num_tokens == 0


def test_instructions_of_a_model_that_hears_come_with_each_question(hearing: edgekv.Model) -> None:
    with hearing.session(instructions="Names: Ada.") as session:
        session.push(sound(0), 0.0)
        expected = SOUNDS.answer([("Names: Ada.<|start|><|task|>", SOUNDS.states(sound(0)))], 6)
        assert asked(session, "") == expected


@pytest.mark.parametrize("num_questions", [1, 10, 100])
@pytest.mark.parametrize("kind", ["pictures", "sounds"])
def test_many_questions_take_one_encoder_run_and_one_copy(
    seeing: edgekv.Model,
    hearing: edgekv.Model,
    runs: list[int],
    kind: str,
    num_questions: int,
) -> None:
    model, content = (seeing, picture(1)) if kind == "pictures" else (hearing, sound(1))
    with model.session() as session:
        session.push(content, 0.0)
        once = cross(session)
        answers = {asked(session) for _ in range(num_questions)}
        streams = [session.ask_iter(QUESTION, SHORT) for _ in range(4)]  # four forks at once
        assert cross(session) == once
        assert [len("".join(pieces)) for pieces in streams]
        assert len(answers) == 1
        assert len(runs) == 1
        assert (once.live, once.cached) == (2 if kind == "pictures" else 1, 0)
    assert model.session().stats().cross == CrossCounts(
        **{**_fields(once), "live": 0, "cached": once.live}
    )


def _fields(counts: CrossCounts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in counts.__slots__}


def test_two_sessions_share_one_picture(seeing: edgekv.Model, runs: list[int]) -> None:
    with watch(seeing) as first, watch(seeing) as second:
        first.push(picture(1), 0.0)
        second.push(picture(1).copy(), 7.0)
        counts = cross(first)
        assert (len(runs), counts.live, counts.num_hits, counts.num_misses) == (1, 2, 1, 1)
        assert asked(first) == asked(second) == told(1)
        first.close()
        assert cross(second).live == 2
        assert asked(second) == told(1)


def test_red_then_blue(seeing: edgekv.Model, runs: list[int]) -> None:
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    blue = np.ascontiguousarray(red[..., ::-1])
    with watch(seeing) as one, watch(seeing) as two:
        for k, colour in enumerate((red, blue, red, blue)):
            one.push(colour, float(k))
            two.push(np.ascontiguousarray(colour[..., ::-1]), float(k))
            for session, seen in ((one, colour), (two, colour[..., ::-1])):
                states = PICTURES.states(np.ascontiguousarray(seen))
                parts = [(START, None), (f"<|image|>{QUESTION}</s>", states)]
                assert asked(session) == PICTURES.answer(parts, 6)
        assert len(runs) == 2
        assert cross(one).num_hits == 6


def test_a_fork_goes_on_seeing_its_own_picture(seeing: edgekv.Model) -> None:
    with watch(seeing) as session:
        session.push(picture(0), 0.0)
        pieces = session.ask_iter(QUESTION, SHORT)
        with session.fork() as child:
            for k in range(1, 4):
                session.push(picture(k), float(k))
            assert asked(child) == told(0)
            assert asked(session) == told(3)
        assert "".join(pieces) == _text(seeing, told(0))


def _text(model: edgekv.Model, ids: tuple[int, ...]) -> str:
    with watch(model) as session:
        session.push(picture(0), 0.0)
        answer = session.ask(QUESTION, SHORT)
    assert answer.token_ids == ids
    return answer.text


def test_what_a_session_sees_is_never_evicted(bundles: Path, runs: list[int]) -> None:
    budget = 4 * 512  # bytes of a page: keys and values of 4 tokens of 2 heads of 8 float32
    path = bundles / "pictures"
    with (
        edgekv.load(path, kv_budget="64KiB", cross_budget=budget, num_threads=1) as model,
        watch(model) as one,
        watch(model) as two,
    ):
        one.push(picture(1), 0.0)
        two.push(picture(2), 0.0)
        before = cross(one)
        assert (before.live, before.free) == (4, 0)
        for session in (one, two):
            with pytest.raises(edgekv.OutOfPagesError, match="need 2 pages, 0 free"):
                session.push(picture(5), 1.0)
        assert asked(one) == told(1)
        assert asked(two) == told(2)
        assert len(runs) == 2  # room is looked for before the encoder runs
        assert one.stats().num_frames == 1
        two.close()
        one.push(picture(5), 1.0)  # its room is there now, by eviction
        assert asked(one) == told(5)
        assert cross(one).num_evicted == 1


@pytest.mark.parametrize("where", [OrtDecoder.run, OrtEncoder.encode, OrtCross.write])
def test_a_push_that_fails_leaves_the_last_picture(
    seeing: edgekv.Model, monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    def failing(*_: object) -> None:
        raise KeyboardInterrupt

    owner = {f: o for o in (OrtDecoder, OrtEncoder, OrtCross) for f in vars(o).values()}[where]
    with watch(seeing) as session:
        session.push(picture(0), 0.0)
        before = session.stats()
        with monkeypatch.context() as patch:
            patch.setattr(owner, where.__name__, failing)
            with pytest.raises(KeyboardInterrupt):
                session.push(picture(1), 1.0)
        now = session.stats()
        assert (now.num_frames, now.num_tokens) == (before.num_frames, before.num_tokens)
        assert cross(session).live == 1
        assert asked(session) == told(0)
        session.push(picture(1), 1.0)
        assert asked(session) == told(1)


def test_threads_that_show_the_same_picture_encode_it_once(
    seeing: edgekv.Model, runs: list[int]
) -> None:
    sessions = [watch(seeing) for _ in range(4)]
    gate = threading.Barrier(4)

    def show(session: edgekv.Session) -> None:
        gate.wait()
        session.push(picture(1), 0.0)

    threads = [threading.Thread(target=show, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1
    assert cross(sessions[0]).live == 2
    for session in sessions:
        assert asked(session) == told(1)
        session.close()


def test_half_precision_pools(bundles: Path) -> None:
    path = bundles / "pictures"
    with (
        edgekv.load(path, kv_budget="64KiB", kv_dtype="float16", num_threads=1) as model,
        watch(model) as session,
    ):
        session.push(picture(1), 0.0)
        states = PICTURES.states(picture(1))
        text = [*_ids(START)], [*_ids(f"<|image|>{QUESTION}</s>")]
        seen = [None] * len(text[0]) + [states] * len(text[1])
        expected = PICTURES.logits([*text[0], *text[1]], seen)
        assert np.abs(session.logits(QUESTION) - expected).max() <= 2e-2 * np.abs(expected).max()


def _ids(text: str) -> list[int]:
    from tests.session.cross_bundle import encode

    return encode(text)
