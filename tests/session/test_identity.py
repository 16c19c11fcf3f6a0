"""What sessions share is what each would have computed, to the last bit; and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.bundle import Bundle
from edgekv.cache import PageCache, sha256
from edgekv.executors import create_decoder, create_vision
from edgekv.executors.ort_cpu import OrtDecoder, OrtVision
from edgekv.generate import Runner
from edgekv.inputs import InputEncoder
from tests.session.helpers import QUESTION, Picture, count_calls, push

STREET = "You watch a street. Say what moves, and where it goes."


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
