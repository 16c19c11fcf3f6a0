"""Which frames a source gives, and when: checked by the number drawn into each frame."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from edgekv.media import open_video
from edgekv.media.capture import PresentationClock
from edgekv.media.source import FrameSampler
from edgekv.types import Frame
from tests.media import clips

NTSC = 30_000 / 1001
NUM_FRAMES = 100
CLIPS = [
    ("mp4v", "mp4", 7.0),
    ("mp4v", "mp4", NTSC),
    ("mp4v", "mp4", 25.0),
    ("MJPG", "avi", 7.0),
    ("XVID", "avi", NTSC),
    ("FFV1", "mkv", 7.0),
    ("MJPG", "mkv", NTSC),
]


def expected(times_s: list[float], fps: float | None) -> list[int]:
    """The rule said as plainly as possible: for each boundary, the first frame at or after it."""
    if fps is None:
        return list(range(len(times_s)))
    chosen: list[int] = []
    for k in range(int((times_s[-1] + 0.001) * fps) + 1):
        first = next(i for i, t in enumerate(times_s) if t >= k / fps - 0.001)
        if first not in chosen:
            chosen.append(first)
    return chosen


def check(frames: list[Frame], times_s: list[float], fps: float | None) -> None:
    indices = expected(times_s, fps)
    assert [frame.index for frame in frames] == indices
    assert [clips.read_number(frame.pixels) for frame in frames] == indices
    for frame in frames:
        assert frame.time_s == pytest.approx(times_s[frame.index], abs=0.0006)
    steps = np.diff([frame.time_s for frame in frames])
    assert (steps > 0).all()


@pytest.fixture(scope="module", params=CLIPS, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]:.2f}")
def clip(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    codec, suffix, rate = request.param
    path = tmp_path_factory.mktemp("clips") / f"clip.{suffix}"
    return clips.write_clip(path, codec, rate, NUM_FRAMES), rate


@pytest.mark.parametrize("fps", [None, 0.5, 2.0, 3.0, 7.0, NTSC, 60.0])
def test_constant_rate(clip: tuple[Path, float], fps: float | None) -> None:
    path, rate = clip
    with open_video(str(path), fps=fps) as source:
        frames = list(source)
    check(frames, [i / rate for i in range(NUM_FRAMES)], fps)
    assert source.stats().num_frames == len(frames)
    assert source.stats().num_bad_frames == 0


@pytest.mark.parametrize("fps", [None, 1.0, 2.0, 10.0])
def test_variable_rate(tmp_path: Path, fps: float | None) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", "mp4v", 25, 60)
    steps_ms = np.random.default_rng(3).integers(1, 700, 59)
    times_ms = [0, *np.cumsum(steps_ms).tolist()]
    clips.set_mp4_times(path, times_ms)
    with open_video(path, fps=fps) as source:
        check(list(source), [t / 1000 for t in times_ms], fps)


def test_29_97_is_not_30(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", "mp4v", NTSC, 200)
    with open_video(path, fps=NTSC) as source:
        frames = list(source)
    assert [frame.index for frame in frames] == list(range(200))
    assert frames[-1].time_s == pytest.approx(199 * 1001 / 30_000, abs=1e-4)


def test_pictures_are_whole_arrays_of_their_own(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.avi", "MJPG", 10, 4)
    with open_video(path, fps=None) as source:
        frames = list(source)
    for frame in frames:
        assert frame.pixels.dtype == np.uint8
        assert frame.pixels.shape == (clips.HEIGHT, clips.WIDTH, 3)
        assert frame.pixels.flags.c_contiguous
    assert not any(np.shares_memory(a.pixels, b.pixels) for a, b in itertools.pairwise(frames))
    error = frames[2].pixels.astype(int) - clips.draw(2)
    assert np.abs(error).mean() < 4, "red and blue are where they were drawn"


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_metadata_is_applied(tmp_path: Path, degrees: int) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", "mp4v", 10, 2)
    upright = next(iter(open_video(path))).pixels
    clips.rotate_mp4(path, degrees)
    turned = next(iter(open_video(path))).pixels
    wanted = np.rot90(upright, -degrees // 90)  # the metadata turns clockwise
    assert turned.shape == wanted.shape
    assert np.abs(turned.astype(int) - wanted).mean() < 1


# The two rules by themselves, on times no encoder here writes.


def test_sampler_against_the_plain_rule() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        times_s = np.cumsum(rng.exponential(rng.choice([0.01, 0.1, 1.0]), 50)).tolist()
        fps = float(rng.choice([0.3, 1.0, 2.0, 7.0, 30.0]))
        sampler = FrameSampler(fps)
        chosen = []
        for index, time_s in enumerate(times_s):
            if sampler.is_due(time_s):
                sampler.take(time_s)
                chosen.append(index)
        assert chosen == expected(times_s, fps)


def test_a_bad_due_frame_is_replaced_by_the_next_good_one() -> None:
    sampler = FrameSampler(2.0)
    sampler.take(0.0)
    assert sampler.is_due(0.5), "the frame at 0.5 s is bad: not taken"
    assert sampler.is_due(0.6)
    sampler.take(0.6)
    assert not sampler.is_due(0.9)
    assert sampler.is_due(1.0)


@pytest.mark.parametrize("fps", [5e-324, 1e-300, 1e300, 1.7e308])
def test_a_rate_beyond_all_frames_takes_the_first_or_all(fps: float) -> None:
    sampler, taken = FrameSampler(fps), 0
    for time_s in (0.0, 0.5, 2.0, 1e6):
        if sampler.is_due(time_s):
            sampler.take(time_s)
            taken += 1
    assert taken == (1 if fps < 1 else 4)


@pytest.mark.parametrize("fps", [0.0, -1.0, math.nan, math.inf])
def test_fps_out_of_range(tmp_path: Path, fps: float) -> None:
    path = clips.write_clip(tmp_path / "clip.avi", "MJPG", 10, 2)
    with pytest.raises(ValueError, match="fps must be a positive number"):
        open_video(path, fps=fps)


@pytest.mark.parametrize(
    ("raw_s", "wanted_s"),
    [
        ([0.0, 0.1, 0.2], [0.0, 0.1, 0.2]),
        ([5.0, 5.1, 5.4], [0.0, 0.1, 0.4]),  # does not begin at 0
        ([-0.08, 0.04, 0.08], [0.0, 0.04, 0.08]),  # OpenCV's decoding time for the first frame
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.1, 0.2, 0.3]),  # no times at all
        ([9e15, 9e15, 9e15], [0.0, 0.1, 0.2]),
        ([math.nan, math.nan, 0.5], [0.0, 0.1, 0.5]),
        ([0.0, 9.0, 0.0, 0.1, 0.2], [0.0, 9.0, 9.1, 9.2, 9.3]),  # starts anew
        ([0.0, 0.2, 0.1, 0.3], [0.0, 0.2, 0.2, 0.3]),  # slight disorder
    ],
)
def test_presentation_clock(raw_s: list[float], wanted_s: list[float]) -> None:
    clock = PresentationClock(fps=10.0)
    times_s = [clock.tick(raw) for raw in raw_s]
    assert times_s == pytest.approx(wanted_s, abs=1e-5)
    assert (np.diff(times_s) > 0).all()


@pytest.mark.parametrize("fps", [0.0, math.nan, math.inf, 90_000.0])
def test_presentation_clock_without_a_usable_rate(fps: float) -> None:
    clock = PresentationClock(fps)
    assert [clock.tick(0.0) for _ in range(3)] == pytest.approx([0.0, 0.04, 0.08])
