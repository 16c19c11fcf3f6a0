"""The built-in clip is the drawn scene, with questions of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.demo import KINDS, Clip, Scene
from edgekv.demo.clip import demo_clip

cv2 = pytest.importorskip("cv2")


@pytest.fixture(scope="module")
def drawn() -> Clip:
    clip = demo_clip()
    scene = Scene(clip.seed)
    if clip.first_frame:
        scene.read(clip.first_frame)
    return scene.read(clip.num_frames)


def test_the_file_shows_the_drawn_frames(drawn: Clip) -> None:
    clip = demo_clip()
    source = cv2.VideoCapture(str(clip.path))
    assert source.get(cv2.CAP_PROP_FPS) == clip.fps
    for frame in drawn.frames:
        more, picture = source.read()
        assert more
        assert picture.shape == (256, 256, 3)
        small = cv2.resize(picture, (64, 64), interpolation=cv2.INTER_AREA)[:, :, ::-1]
        assert np.abs(small.astype(int) - frame).mean() < 2.5
    assert not source.read()[0]


def test_the_clip_is_small_and_worth_watching(drawn: Clip) -> None:
    clip = demo_clip()
    assert clip.path.stat().st_size < 1_000_000
    assert 30 <= clip.duration_s <= 60
    assert len((drawn.visible > 0.7).any(0).nonzero()[0]) >= 6


def test_questions_are_in_time_and_of_many_kinds() -> None:
    clip = demo_clip()
    times = [q.time_s for q in clip.questions]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < clip.duration_s
    assert {q.kind for q in clip.questions} == set(KINDS)
