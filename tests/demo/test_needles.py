"""A needle is seen early and never again; the questions about it have the answers they claim."""

from __future__ import annotations

import numpy as np

from edgekv.demo import MAX_FRAMES, identity_name
from edgekv.demo.needles import MIN_SIGHTINGS, NOW_KINDS, PAST_KINDS, needle_streams
from edgekv.demo.questions import ABSENT


def test_the_needle_is_seen_early_only_and_the_stranger_never() -> None:
    streams = list(needle_streams(3, 4 * MAX_FRAMES))
    assert len({stream.seed for stream in streams}) == 3
    for stream in streams:
        clip = stream.clip
        assert len(clip) == 4 * MAX_FRAMES
        assert len(stream.sightings) >= MIN_SIGHTINGS
        assert stream.sightings.max() < MAX_FRAMES
        assert (clip.inside[MAX_FRAMES:, stream.needle] <= ABSENT).all()
        assert (clip.inside[:, stream.stranger] <= ABSENT).all()
        yes, no = stream.about_needle()
        assert (yes.answer, no.answer) == ("yes", "no")
        assert identity_name(stream.needle) in yes.text
        assert identity_name(stream.stranger) in no.text


def test_streams_and_questions_are_the_same_every_time() -> None:
    (one,), (two,) = (list(needle_streams(1, 3 * MAX_FRAMES)) for _ in range(2))
    np.testing.assert_array_equal(one.clip.frames, two.clip.frames)
    assert one.about_needle() == two.about_needle()
    assert one.about_now() == two.about_now()


def test_what_is_asked_about_kept_frames_follows_from_them_alone() -> None:
    (stream,) = needle_streams(1, 3 * MAX_FRAMES)
    assert {q.kind for q in stream.about_now()} <= set(NOW_KINDS)
    kept = np.array([0, 10, 20, 70, 71])
    questions = stream.about_kept(kept)
    assert {q.kind for q in questions} <= set(PAST_KINDS)
    assert all((q.first, q.last) == (0, 4) for q in questions)
