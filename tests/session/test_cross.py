"""Sessions that look and hear by cross-attention: the right tokens, one copy, nothing mixed up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv import Frame, SamplingOptions, Sound
from edgekv.cache import CrossCounts
from edgekv.executors.ort_cpu import OrtDecoder
from edgekv.executors.ort_cross import OrtCross, OrtEncoder
from tests.session.cross_bundle import Reference, save_cross_bundle

SHORT = SamplingOptions(max_new_tokens=6)
QUESTION = "What?"
SIZES = ((4, 4), (3, 9), (12, 5), (8, 8))  # one tile, two side by side, two stacked, one
START = "<s>You watch.</s>"
PICTURES, SOUNDS = Reference("pictures"), Reference("sounds")


def picture(k: int) -> NDArray[np.uint8]:
    return np.random.default_rng(k).integers(0, 256, (*SIZES[k % 4], 3), np.uint8)


def sound(k: int) -> NDArray[np.float32]:
    return np.random.default_rng(k).normal(0, 0.3, 500 + 400 * k).astype(np.float32)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cross")
    save_cross_bundle(root / "pictures", "pictures")
    save_cross_bundle(root / "sounds", "sounds")
    return root


@pytest.fixture
def seeing(bundles: Path) -> Iterator[edgekv.Model]:
    """Room for four of the largest pictures: each 6 states, 2 pages of 4."""
    with edgekv.load(bundles / "pictures", kv_budget="64KiB", num_threads=1) as model:
        yield model


@pytest.fixture
def hearing(bundles: Path) -> Iterator[edgekv.Model]:
    with edgekv.load(bundles / "sounds", kv_budget="64KiB", num_threads=1) as model:
        yield model


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each run of an encoder."""
    counted: list[int] = []
    encode = OrtEncoder.encode

    def counting(self: OrtEncoder, inputs: Any) -> NDArray[np.float32]:
        counted.append(1)
        return encode(self, inputs)

    monkeypatch.setattr(OrtEncoder, "encode", counting)
    return counted


def cross(session: edgekv.Session) -> CrossCounts:
    counts = session.stats().cross
    assert counts is not None
    assert counts.live + counts.cached + counts.free == counts.num_pages
    return counts


def asked(session: edgekv.Session, question: str = QUESTION) -> tuple[int, ...]:
    return session.ask(question, SHORT).token_ids


def told(k: int, question: str = QUESTION) -> tuple[int, ...]:
    """What the model must say about picture k."""
    states = PICTURES.states(picture(k))
    return PICTURES.answer([(START, None), (f"<|image|>{question}</s>", states)], 6)


def heard(k: int, task: str = "<|task|>") -> tuple[int, ...]:
    return SOUNDS.answer([(f"<|start|>{task}", SOUNDS.states(sound(k)))], 6)


def watch(model: edgekv.Model) -> edgekv.Session:
    return model.session(instructions="You watch.", retain="window")


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


@pytest.mark.parametrize("kind", ["pictures", "sounds"])
def test_a_saved_session_sees_what_it_saw(
    bundles: Path, tmp_path: Path, runs: list[int], kind: str
) -> None:
    def load() -> edgekv.Model:
        return edgekv.load(bundles / kind, kv_budget="64KiB", num_threads=1)

    path, content = tmp_path / "file", picture(1) if kind == "pictures" else sound(1)
    with load() as model, model.session() as session:
        session.push(content, 0.0)
        if kind == "pictures":
            session.say("Two.")
        expected = session.logits(QUESTION)
        session.save(path)
        with model.restore(path) as again:  # in the cache still
            np.testing.assert_array_equal(again.logits(QUESTION), expected)
            assert cross(again).num_hits == 1
    with load() as model:
        with model.restore(path) as session:
            np.testing.assert_array_equal(session.logits(QUESTION), expected)
            assert cross(session).live == len(runs) * (2 if kind == "pictures" else 1)
            with model.session() as other:
                other.push(content, 5.0)  # found by its content
                assert cross(other).live == cross(session).live
            session.push(content, 9.0)
        assert len(runs) == 1


def test_a_damaged_source_is_refused_and_leaves_nothing(bundles: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with (
        edgekv.load(bundles / "pictures", kv_budget="64KiB", num_threads=1) as model,
        model.session() as session,
    ):
        session.push(picture(1), 0.0)
        session.save(path)
    data = bytearray(path.read_bytes())
    header = 48 + int.from_bytes(data[12:16], "little")
    blocks = json.loads(data[48:header])["blocks"]
    data[header + blocks["source.pages"]["offset"] + 5] ^= 1
    path.write_bytes(data)
    with edgekv.load(bundles / "pictures", kv_budget="64KiB", num_threads=1) as model:
        with pytest.raises(edgekv.SessionFileError, match=r"source\.pages.*SHA-256 differs"):
            model.restore(path)
        with model.session() as session:
            counts = cross(session)
            assert (counts.live, counts.cached) == (0, 0)


def test_a_restore_that_finds_no_room_for_its_source_leaves_nothing(
    bundles: Path, tmp_path: Path
) -> None:
    path, budget = tmp_path / "file", 4 * 512
    with edgekv.load(bundles / "pictures", cross_budget=budget, num_threads=1) as model:
        with watch(model) as session:
            session.push(picture(1), 0.0)
            session.save(path)
        with watch(model) as one, watch(model) as two:
            one.push(picture(2), 0.0)
            two.push(picture(5), 0.0)
            live = one.stats().pages_live
            with pytest.raises(edgekv.BudgetError, match="needs 2 pages of cross-attention, 0"):
                model.restore(path)
            assert one.stats().pages_live == live
            assert cross(one).live == 4


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


def test_inputs_of_the_wrong_kind_are_refused(seeing: edgekv.Model, hearing: edgekv.Model) -> None:
    with seeing.session() as session:
        with pytest.raises(ValueError, match="takes pictures, got sound"):
            session.push(Sound(sound(0)))
        with pytest.raises(ValueError, match=r"want \(height, width, 3\) uint8 RGB"):
            session.push(np.zeros((4, 4), np.uint8), 0.0)
    with hearing.session() as session:
        with pytest.raises(ValueError, match="takes sound, got a picture"):
            session.push(Frame(picture(0), 0.0))
        for bad in (np.zeros(4), np.zeros((2, 2), np.float32), np.zeros(0, np.float32)):
            with pytest.raises(ValueError, match=r"want \(num_samples,\) float32 sound, got"):
                session.push(bad, 0.0)
        with pytest.raises(ValueError, match="not finite"):
            session.push(np.array([0, np.nan], np.float32), 0.0)
        assert cross(session).num_misses == 0


def test_a_model_that_hears_needs_a_sound_and_takes_no_text(hearing: edgekv.Model) -> None:
    with hearing.session() as session:
        with pytest.raises(edgekv.ContextError, match="push a sound first"):
            session.ask("")
        with pytest.raises(edgekv.ContextError, match="asked as a whole"):
            session.say("Hello.")
        session.push(Sound(sound(0)))
        assert asked(session, "") == heard(0)


def test_sound_for_a_model_without_cross_attention(session: edgekv.Session) -> None:
    with pytest.raises(ValueError, match="takes pictures, got sound"):
        session.push(Sound(sound(0)))
    assert session.stats().cross is None


def test_budgets(bundles: Path, bundle_path: Path) -> None:
    with pytest.raises(edgekv.BudgetError, match=r"fewer than 2 inputs .* 2\.0 KiB would do"):
        edgekv.load(bundles / "pictures", cross_budget=2047)
    with pytest.raises(ValueError, match="no cross-attention, so no cross_budget"):
        edgekv.load(bundle_path, cross_budget="1MiB")
