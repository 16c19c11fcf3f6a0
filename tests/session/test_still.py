"""Frames that show nothing new: counted, not encoded, and time goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgekv
from tests.session.helpers import QUESTION, Picture


def test_still_frames_are_counted_and_the_newest_stands_for_them(
    model: edgekv.Model, picture: Picture
) -> None:
    with model.session(skip_still=100.0) as session, model.session() as plain:
        taken = [session.push(picture(k // 5), k / 2) for k in range(20)]
        assert taken == [True, True, False, False, False] * 4
        stats = session.stats()
        assert (stats.num_frames, stats.num_still_frames) == (20, 12)
        assert stats.num_context_frames == 8
        assert session.last_time_s == 9.5
        assert session.context_frames().tolist() == [0, 1, 5, 6, 10, 11, 15, 16]
        with pytest.raises(ValueError, match="must not go backwards"):
            session.push(picture(3), 9.0)
        for k in session.context_frames():
            plain.push(picture(int(k) // 5), k / 2)
        np.testing.assert_array_equal(session.logits(QUESTION), plain.logits(QUESTION))


def test_a_frame_is_taken_every_so_many_seconds(model: edgekv.Model, picture: Picture) -> None:
    with model.session(skip_still=4.0) as session:
        times = [k / 2 for k in range(30) if session.push(picture(0), k / 2)]
    assert times == [0.0, 0.5, 4.5, 8.5, 12.5]


def test_off_unless_asked_for(session: edgekv.Session, picture: Picture) -> None:
    assert all(session.push(picture(0), float(k)) for k in range(5))
    assert session.stats().num_still_frames == 0


def test_a_fork_and_its_parent_compare_with_frames_of_their_own(
    model: edgekv.Model, picture: Picture
) -> None:
    with model.session(skip_still=100.0) as session:
        for k in range(3):
            session.push(picture(0), k / 2)
        with session.fork() as child:
            assert child.push(picture(1), 2.0)
            assert not session.push(picture(0), 2.0)
            assert child.push(picture(0), 2.5)


def test_a_frame_whose_push_failed_is_not_what_later_ones_are_compared_with(
    model: edgekv.Model, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.session(skip_still=100.0) as session:
        for k in range(2):
            session.push(picture(8100), k / 2)
        with monkeypatch.context() as patch:
            patch.setattr(type(model._inputs), "frame", _fail)
            with pytest.raises(edgekv.ExecutorError):
                session.push(picture(8101), 1.0)
        assert session.push(picture(8101), 1.0)


def _fail(*_: object) -> None:
    raise edgekv.ExecutorError("no encoder today")


def test_a_restored_session_takes_its_first_frame(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    with model.session(skip_still=100.0) as session:
        for k in range(3):
            session.push(picture(0), k / 2)
        session.save(tmp_path / "saved")
    with model.restore(tmp_path / "saved", skip_still=100.0) as restored:
        assert restored.push(picture(0), 2.0)
        assert restored.stats().num_still_frames == 0


def test_a_wrong_time_is_refused_before_anything_is_taken(model: edgekv.Model) -> None:
    before = model.figures().counts
    with pytest.raises(ValueError, match="skip_still must be a positive number"):
        model.session(skip_still=0.0)
    assert model.figures().counts == before
