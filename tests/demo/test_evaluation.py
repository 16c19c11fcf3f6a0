"""The held-out set is fixed, and separate from what is trained on."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.demo import HELD_OUT_SEEDS, KINDS, MAX_FRAMES, EvaluationStream, evaluation_set


def test_the_set_is_the_same_every_time() -> None:
    one, two = list(evaluation_set(6)), list(evaluation_set(6))
    for a, b in zip(one, two, strict=True):
        assert a.questions == b.questions
        np.testing.assert_array_equal(a.frames, b.frames)


def test_the_set_covers_every_kind_and_length() -> None:
    samples = list(evaluation_set(48))
    assert all(s.seed >= HELD_OUT_SEEDS for s in samples)
    assert {len(s.frames) for s in samples} == set(range(1, MAX_FRAMES + 1))
    assert {q.kind for s in samples for q in s.questions} == set(KINDS)
    for sample in samples:
        kinds = [q.kind for q in sample.questions]
        assert len(kinds) == len(set(kinds))
        assert all((q.first, q.last) == (0, len(sample.frames) - 1) for q in sample.questions)


def test_a_stream_asks_about_the_window_it_is_given() -> None:
    stream = EvaluationStream(1)
    for _ in range(150):
        stream.read()
    for num_frames in (1, 12, 24, 60):
        questions = stream.questions(num_frames)
        assert questions
        assert all((q.first, q.last) == (150 - num_frames, 149) for q in questions)
    assert stream.questions(12) == stream.questions(12)


def test_a_stream_forgets_what_it_need_not_keep() -> None:
    stream = EvaluationStream(0, keep=10)
    for _ in range(25):
        stream.read()
    assert len(stream.questions(10)) > 0
    with pytest.raises(ValueError, match="1 to 10 frames, asked for 11"):
        stream.questions(11)
