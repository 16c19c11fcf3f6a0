"""What sessions share is what each would have computed, to the last bit; and nothing else is."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv import SamplingOptions
from edgekv.bundle import Bundle
from edgekv.cache import PageCache, sha256
from edgekv.executors import create_decoder, create_vision
from edgekv.executors.ort_cpu import OrtDecoder, OrtVision
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder

Picture = Callable[[int], NDArray[np.uint8]]
SHORT = SamplingOptions(max_new_tokens=4)
QUESTION = "What do you see?"
STREET = "You watch a street. Say what moves, and where it goes."


@pytest.fixture
def shared(bundle_path: Path) -> Iterator[edgekv.Model]:
    """A model with a pool of its own: nothing is in it yet."""
    with edgekv.load(bundle_path, kv_budget="4MiB", num_threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def alone(bundle_path: Path) -> Iterator[edgekv.Model]:
    """The same model, in which every context is computed anew."""
    with edgekv.load(
        bundle_path, kv_budget="4MiB", num_threads=1, share=False, encoder_cache=0
    ) as loaded:
        yield loaded


def push(session: edgekv.Session, picture: Picture, first: int, count: int) -> None:
    for k in range(first, first + count):
        session.push(picture(k), k / 2)


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    """A list with one entry for each later call of ``owner.name``."""
    real, calls = getattr(owner, name), list[int]()

    def counted(*arguments: object) -> object:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_a_start_that_is_there_already_is_not_computed_again(
    shared: edgekv.Model, alone: edgekv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared.session(instructions=STREET) as one:
        steps = count_calls(monkeypatch, OrtDecoder, "run")
        live = one.stats().pages_live
        with (
            shared.session(instructions=STREET) as other,
            alone.session(instructions=STREET) as own,
        ):
            assert len(steps) == 1, "the session that shares ran no step, the other one did"
            assert other.stats().pages_live == live
            np.testing.assert_array_equal(other.logits(QUESTION), own.logits(QUESTION))
        with shared.session(instructions=STREET + " Now.") as different:
            assert different.stats().pages_live == live + different.stats().num_tokens // 16 + 1


def test_twenty_sessions_hold_their_instructions_once(
    shared: edgekv.Model, alone: edgekv.Model, picture: Picture
) -> None:
    with alone.session(instructions=STREET) as own:
        prefix = own.stats().pages_live
        own.push(picture(7), 0.0)
        tail = own.stats().pages_live - prefix
        expected = own.logits(QUESTION)
    sessions = [shared.session(instructions=STREET) for _ in range(20)]
    for k, session in enumerate(sessions):
        session.push(picture(k), 0.0)
    assert sessions[0].stats().pages_live == prefix + 20 * tail
    np.testing.assert_array_equal(sessions[7].logits(QUESTION), expected)
    for session in sessions:
        session.close()


def test_sessions_that_see_the_same_share_it_until_one_lets_go(
    shared: edgekv.Model, alone: edgekv.Model, picture: Picture
) -> None:
    with (
        shared.session(instructions=STREET) as one,
        shared.session(instructions=STREET) as other,
        alone.session(instructions=STREET) as own,
    ):
        for k in range(60):
            for session in (one, other, own):
                session.push(picture(k), k / 2)
                if k == 5:
                    session.say("A truck came.")
            if not own.stats().num_evicted_frames:
                assert one.stats().pages_live == own.stats().pages_live
            if k % 6 == 0:
                expected = own.logits(QUESTION)
                np.testing.assert_array_equal(one.logits(QUESTION), expected)
                np.testing.assert_array_equal(other.logits(QUESTION), expected)
        assert own.stats().num_evicted_frames > 10
        assert one.stats().pages_live > own.stats().pages_live, "each has frames of its own now"
        hits, kept = one.stats().shared.hits, one.stats().shared.misses
        push(one, picture, 60, 3)
        push(other, picture, 60, 3)
        assert (one.stats().shared.hits, one.stats().shared.misses) == (hits, kept)


def test_a_session_finds_what_one_that_closed_has_left(
    shared: edgekv.Model, alone: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared.session() as first:
        push(first, picture, 0, 5)
        live = first.stats().pages_live
    with alone.session() as own:
        push(own, picture, 0, 4)
        expected = own.logits(QUESTION)
    steps, encoded = (
        count_calls(monkeypatch, OrtDecoder, "run"),
        count_calls(monkeypatch, OrtVision, "encode"),
    )
    with shared.session() as second:
        assert second.stats().pages_cached == live - second.stats().pages_live
        push(second, picture, 0, 4)
        assert not steps
        assert not encoded
        assert second.stats().num_frames == second.stats().num_context_frames == 4
        assert second.context_frames().tolist() == [0, 1, 2, 3]
        assert second.last_time_s == 1.5
        np.testing.assert_array_equal(second.logits(QUESTION), expected)


def test_the_order_and_the_kind_of_what_came_before_matter(
    shared: edgekv.Model, picture: Picture
) -> None:
    with shared.session() as first:
        first.push(picture(0), 0.0)
        first.push(picture(1), 1.0)
        first.say("A truck came.")
    with shared.session() as second:
        hits = second.stats().shared.hits
        second.push(picture(1), 0.0)
        second.push(picture(0), 1.0)
        second.say("A truck came.")
        assert second.stats().shared.hits == hits


@pytest.mark.parametrize("digest_bits", [256, 8, 0])
def test_red_then_blue_and_any_other_pictures_are_never_taken_for_each_other(
    bundle_path: Path, alone: edgekv.Model, digest_bits: int
) -> None:
    """Sessions over a few colours, so that contexts begin alike, in a pool too small for all."""
    rng = np.random.default_rng(5)
    colours = [(255, 0, 0), (0, 0, 255), (254, 0, 0), (0, 255, 0)]
    plain = [np.full((64, 64, 3), colour, np.uint8) for colour in colours]
    expected: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def truth(seen: tuple[int, ...]) -> NDArray[np.float32]:
        if seen not in expected:
            with alone.session() as own:
                for colour in seen:
                    own.push(plain[colour], 0.0)
                expected[seen] = own.logits(QUESTION)
        return expected[seen]

    assert not np.array_equal(truth((0,)), truth((1,)))
    with colliding_model(bundle_path, digest_bits, num_pages=40) as model:
        open_sessions: list[tuple[edgekv.Session, tuple[int, ...]]] = []
        for k in range(80):
            seen = (k % 2, *rng.integers(0, 4, rng.integers(0, 4)).tolist())
            session = model.session()
            for colour in seen:
                session.push(plain[colour], 0.0)
            np.testing.assert_array_equal(session.logits(QUESTION), truth(seen))
            open_sessions.append((session, seen))
            if len(open_sessions) > 3:
                session, seen = open_sessions.pop(int(rng.integers(0, 4)))
                np.testing.assert_array_equal(session.logits(QUESTION), truth(seen))
                session.close()
        shared = session_stats(model).shared
        if digest_bits == 256:
            assert shared.hits > 100
            assert shared.collisions == 0
        if digest_bits == 8:
            assert shared.hits > 100
        assert shared.collisions > 0 or digest_bits == 256


def colliding_model(bundle_path: Path, digest_bits: int, *, num_pages: int) -> edgekv.Model:
    """The demo model with keys of so many bits."""
    bundle = Bundle.open(bundle_path)
    mask = (1 << digest_bits) - 1
    cache = PageCache(
        bundle.geometry,
        num_pages,
        max_pages=bundle.manifest.max_context_tokens,
        max_positions=bundle.manifest.max_context_tokens,
        digest=lambda data: (int.from_bytes(sha256(data)) & mask).to_bytes(32),
    )
    decoder = create_decoder(
        "cpu", bundle.decoder_path, bundle.geometry, num_pages=num_pages, num_threads=1
    )
    assert bundle.vision_path is not None
    vision = create_vision("cpu", bundle.vision_path, num_threads=1)
    inputs = InputEncoder(bundle, vision, encoder_cache_bytes=1 << 20)
    return edgekv.Model(bundle, "cpu", Runner(decoder, cache), inputs)


def session_stats(model: edgekv.Model) -> edgekv.SessionStats:
    with model.session() as session:
        return session.stats()


@pytest.mark.parametrize("num_questions", [1, 10, 100])
def test_questions_on_one_frame_cost_one_copy_of_it(
    shared: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch, num_questions: int
) -> None:
    encoded = count_calls(monkeypatch, OrtVision, "encode")
    with shared.session(instructions=STREET) as session:
        session.push(picture(0), 0.0)
        live = session.stats().pages_live
        pieces = [session.ask_iter(QUESTION, SHORT) for _ in range(num_questions)]
        question = InputEncoder(shared.bundle, None).question_ids(QUESTION, frames=True)
        # Each holds its own question and the room of its answer, and not one page more.
        pages_for = shared.bundle.geometry.pages_for
        own = pages_for(len(question)) + pages_for(SHORT.max_new_tokens - 1)
        assert session.stats().pages_live == live + num_questions * own
        assert len({"".join(answer) for answer in pieces}) == 1
        del pieces
        gc.collect()
        assert session.stats().pages_live == live
        assert session.stats().num_questions == num_questions
    assert len(encoded) == 1


def test_a_picture_that_comes_again_is_encoded_once(
    shared: edgekv.Model, alone: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone.session() as own:
        push(own, picture, 0, 40)
        own.push(picture(39), 20.0)
        expected = own.logits(QUESTION)
    encoded = count_calls(monkeypatch, OrtVision, "encode")
    with shared.session() as session:
        push(session, picture, 0, 40)
        session.push(picture(39).copy(), 20.0)
        np.testing.assert_array_equal(session.logits(QUESTION), expected)
        stats = session.stats().encoder_cache
        assert (stats.hits, stats.misses, len(encoded)) == (1, 40, 40)
        assert 0 < stats.num_bytes <= stats.max_bytes


def test_encoder_outputs_keep_to_their_bytes_and_can_be_switched_off(
    bundle_path: Path, picture: Picture
) -> None:
    with (
        edgekv.load(bundle_path, num_threads=1, encoder_cache="30KiB") as model,
        model.session() as session,
    ):
        push(session, picture, 0, 5)
        stats = session.stats().encoder_cache
        assert (stats.num_pictures, stats.evictions) == (2, 3)
        assert stats.num_bytes <= 30 * 1024
    with (
        edgekv.load(bundle_path, num_threads=1, encoder_cache=0) as model,
        model.session() as session,
    ):
        push(session, picture, 0, 2)
        stats = session.stats().encoder_cache
        assert (stats.misses, stats.num_pictures, stats.num_bytes) == (0, 0, 0)
    with pytest.raises(ValueError, match="encoder_cache must"):
        edgekv.load(bundle_path, encoder_cache=-1)


def test_without_sharing_nothing_is_kept(alone: edgekv.Model, picture: Picture) -> None:
    with alone.session(instructions=STREET) as one, alone.session(instructions=STREET) as other:
        push(one, picture, 0, 2)
        push(other, picture, 0, 2)
        stats = one.stats()
        assert (stats.shared.segments, stats.shared.hits, stats.shared.misses) == (0, 0, 0)
    assert session_stats(alone).pages_cached == 0


def test_a_push_that_fails_leaves_what_is_shared_as_it_was(
    shared: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared.session() as one, shared.session() as other:
        push(one, picture, 0, 3)
        push(other, picture, 0, 2)
        before, logits = one.stats(), one.logits(QUESTION)
        with monkeypatch.context() as patch:
            patch.setattr(OrtDecoder, "run", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                other.push(picture(9), 5.0)
            with pytest.raises(ZeroDivisionError):
                shared.session(instructions=STREET)
        now = one.stats()
        assert (now.pages_live, now.pages_cached) == (before.pages_live, before.pages_cached)
        assert now.shared.segments == before.shared.segments
        other.push(picture(2), 5.0)
        np.testing.assert_array_equal(other.logits(QUESTION), logits)
        assert one.stats().pages_live == before.pages_live


def test_a_saved_session_that_shares_is_restored_as_it_was(
    shared: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    with shared.session() as one, shared.session() as other:
        push(one, picture, 0, 6)
        push(other, picture, 0, 6)
        other.save(tmp_path / "s")
        push(one, picture, 6, 2)
        expected = one.logits(QUESTION)
    with shared.restore(tmp_path / "s") as again:
        hits = again.stats().shared.hits
        push(again, picture, 6, 2)
        np.testing.assert_array_equal(again.logits(QUESTION), expected)
        assert again.stats().shared.hits == hits, "a restored context is private"


def test_sessions_that_share_every_frame_go_on_when_the_pool_is_full(
    bundle_path: Path, picture: Picture
) -> None:
    """Nobody frees a page by dropping what others hold: there must be room to go on without."""
    page_bytes = Bundle.open(bundle_path).geometry.page_bytes
    with (
        edgekv.load(bundle_path, kv_budget=26 * page_bytes, num_threads=1) as model,
        model.session(reserve_tokens=64) as one,
        model.session(reserve_tokens=64) as other,
    ):
        for k in range(60):
            one.push(picture(k), float(k))
            other.push(picture(k), float(k))
        for k in range(60, 90):  # one of them alone, while the other holds what it has
            other.push(picture(k), float(k))
        for k in range(60, 90):
            one.push(picture(k + 1000), float(k))
            assert one.ask(QUESTION, SHORT).token_ids
        assert one.stats().shared.hits > 5
        assert min(one.stats().num_evicted_frames, other.stats().num_evicted_frames) > 30


def test_threads_that_push_the_same_at_once_hold_it_once(
    shared: edgekv.Model, alone: edgekv.Model, picture: Picture
) -> None:
    with alone.session() as own:
        push(own, picture, 0, 20)
        expected, live = own.logits(QUESTION), own.stats().pages_live
    sessions = [shared.session() for _ in range(3)]
    threads = [
        threading.Thread(target=push, args=(session, picture, 0, 20)) for session in sessions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sessions[0].stats().pages_live == live
    for session in sessions:
        np.testing.assert_array_equal(session.logits(QUESTION), expected)
        session.close()


def test_a_newcomer_gets_its_part_of_what_two_sessions_hold_together(
    bundle_path: Path, alone: edgekv.Model, picture: Picture
) -> None:
    page_bytes = Bundle.open(bundle_path).geometry.page_bytes
    instructions = "You watch a street. " * 30
    with (
        edgekv.load(bundle_path, kv_budget=34 * page_bytes, num_threads=1) as model,
        model.session(reserve_tokens=64) as one,
        model.session(reserve_tokens=64) as other,
    ):
        for k in range(24):
            one.push(picture(k), float(k))
            other.push(picture(k), float(k))
        stats = one.stats()
        assert stats.pages_live == 25, "all frames are held by both"
        with (
            model.session(reserve_tokens=64, instructions=instructions) as third,
            alone.session(reserve_tokens=64, instructions=instructions) as own,
        ):
            for k in range(4):
                third.push(picture(k), float(k))
                own.push(picture(k), float(k))
            assert third.stats().num_context_frames == 4
            np.testing.assert_array_equal(third.logits(QUESTION), own.logits(QUESTION))
            for session in (one, other):
                assert 1 <= session.stats().num_context_frames < 24
                session.push(picture(100), 100.0)
                assert session.ask(QUESTION, SHORT).token_ids
