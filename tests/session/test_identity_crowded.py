"""What sessions share when the pool is full, and when all of them want it at once."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

import edgekv
from tests.session.helpers import QUESTION, SHORT, Picture, load_pages, push


def test_sessions_that_share_every_frame_go_on_when_the_pool_is_full(
    bundle_path: Path, picture: Picture
) -> None:
    """Nobody frees a page by dropping what others hold: there must be room to go on without."""
    with (
        load_pages(bundle_path, 26) as model,
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
    instructions = "You watch a street. " * 30
    with (
        load_pages(bundle_path, 34) as model,
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
