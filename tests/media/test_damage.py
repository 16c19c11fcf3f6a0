"""Broken, odd and empty sources: skipped and counted, or refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgekv.errors import SourceError
from edgekv.media import SourceStats, VideoSource, open_video
from tests.media import clips

needs_4_13 = pytest.mark.skipif(
    tuple(int(part) for part in cv2.__version__.split(".")[:2]) < (4, 13),
    reason="OpenCV before 4.13, or its FFmpeg, loses the pictures after the change",
)


def play(source: VideoSource) -> tuple[list[int], SourceStats]:
    """The drawn numbers of all frames. A picture must have them at any index it claims."""
    with source:
        numbers = []
        for frame in source:
            assert frame.pixels.size
            numbers.append(clips.read_number(frame.pixels))
    return numbers, source.stats()


def damage(path: Path, first: float, last: float) -> None:
    """Zero the bytes between two fractions of the file."""
    data = bytearray(path.read_bytes())
    start, end = int(len(data) * first), int(len(data) * last)
    data[start:end] = bytes(end - start)
    path.write_bytes(data)


@pytest.mark.parametrize("bad", [[3], [0], [2, 3, 4], [0, 1, 5, 11]])
def test_bad_frames_are_skipped_and_counted(tmp_path: Path, bad: list[int]) -> None:
    jpegs = [clips.jpeg(clips.draw(i)) for i in range(14)]
    for i in bad:
        jpegs[i] = bytes(len(jpegs[i]))
    path = clips.write_mjpeg_avi(tmp_path / "clip.avi", jpegs, 10)
    good = [i for i in range(14) if i not in bad]
    with open_video(path, fps=None) as source:
        frames = list(source)
    assert [clips.read_number(frame.pixels) for frame in frames] == good
    assert [frame.index for frame in frames] == good
    assert [frame.time_s for frame in frames] == pytest.approx([i / 10 for i in good])
    assert source.stats().num_bad_frames == len(bad)


def test_many_bad_frames_in_a_row_do_not_end_the_clip(tmp_path: Path) -> None:
    jpegs = [clips.jpeg(clips.draw(i % 200)) for i in range(700)]
    jpegs[50:650] = [bytes(200)] * 600
    path = clips.write_mjpeg_avi(tmp_path / "clip.avi", jpegs, 25)
    numbers, stats = play(open_video(path, fps=None))
    assert numbers == [i % 200 for i in (*range(50), *range(650, 700))]
    assert stats.num_bad_frames == 600


def test_a_bad_frame_at_a_boundary_gives_the_next_good_one(tmp_path: Path) -> None:
    jpegs = [clips.jpeg(clips.draw(i)) for i in range(20)]
    jpegs[5] = jpegs[6] = bytes(300)
    path = clips.write_mjpeg_avi(tmp_path / "clip.avi", jpegs, 10)
    with open_video(path, fps=2) as source:
        assert [frame.index for frame in source] == [0, 7, 10, 15]


@needs_4_13
def test_size_and_pixel_format_change_mid_clip(tmp_path: Path) -> None:
    jpegs = [clips.jpeg(clips.draw(i)) for i in range(8)]
    jpegs[2] = clips.jpeg(clips.draw(2, 160, 128))
    jpegs[3] = clips.jpeg(clips.draw(3), "L")
    jpegs[5] = clips.jpeg(clips.draw(5, 48, 32))
    jpegs[6] = clips.jpeg(clips.draw(6), "CMYK")
    path = clips.write_mjpeg_avi(tmp_path / "clip.avi", jpegs, 10)
    with open_video(path, fps=None) as source:
        frames = list(source)
    assert [clips.read_number(frame.pixels) for frame in frames] == list(range(8))
    assert all(frame.pixels.shape[2] == 3 for frame in frames)


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [("mp4v", "mp4"), ("MJPG", "avi"), pytest.param("FFV1", "mkv", marks=needs_4_13)],
)
def test_zeroed_bytes_mid_file(tmp_path: Path, codec: str, suffix: str) -> None:
    path = clips.write_clip(tmp_path / f"clip.{suffix}", codec, 10, 60)
    damage(path, 0.5, 0.6)
    numbers, _ = play(open_video(path, fps=None))
    assert numbers[:10] == list(range(10))
    assert numbers[-1] == 59, "the clip goes on after the damage"


def test_no_smears_after_lost_frames(tmp_path: Path) -> None:
    """Frames that refer to lost ones are skipped up to the next that stands alone."""
    path = clips.write_clip(tmp_path / "clip.mp4", "mp4v", 10, 60)
    damage(path, 0.4, 0.5)
    with open_video(path, fps=None) as source:
        frames = [(frame.index, clips.read_number(frame.pixels)) for frame in source]
    gap = next(i for i in range(1, len(frames)) if frames[i][0] > frames[i - 1][0] + 1)
    assert frames[gap:]
    assert all(index == number for index, number in frames[gap:])
    assert source.stats().num_bad_frames > 4
    assert source.stats().num_bad_frames + len(frames) == 60


@pytest.mark.parametrize(("codec", "suffix"), [("XVID", "avi"), ("MJPG", "avi"), ("FFV1", "mkv")])
def test_truncated_file_plays_up_to_the_cut(tmp_path: Path, codec: str, suffix: str) -> None:
    path = clips.write_clip(tmp_path / f"clip.{suffix}", codec, 10, 60)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])
    numbers, _ = play(open_video(path, fps=None))
    assert 10 < len(numbers) < 60
    assert numbers[:10] == list(range(10))


def mp4_without_index(path: Path) -> None:
    clips.write_clip(path, "mp4v", 10, 40)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])


REFUSED = {
    "empty.mp4": (lambda p: p.write_bytes(b""), "empty"),
    "text.mp4": (lambda p: p.write_text("This is not a film.\n" * 500), "text"),
    "text.avi": (lambda p: p.write_text("\x1b[31mred\x1b[0m \u00e9\n" * 999), "text"),
    "list.m3u8": (lambda p: p.write_text("#EXTM3U\nhttp://127.0.0.1/a.ts\n"), "text"),
    "noise.mp4": (
        lambda p: p.write_bytes(np.random.default_rng(0).bytes(9000)),
        "cannot be opened",
    ),
    "zeros.mkv": (lambda p: p.write_bytes(bytes(9000)), "cannot be opened"),
    "cut.mp4": (mp4_without_index, "cannot be opened"),
    "none.avi": (lambda p: clips.write_clip(p, "MJPG", 10, 0), "at least one readable frame"),
    "none.mp4": (lambda p: clips.write_clip(p, "mp4v", 10, 0), "cannot be opened"),
    "bad.avi": (lambda p: clips.write_mjpeg_avi(p, [bytes(300)] * 5, 10), "at least one readable"),
    "bad.png": (lambda p: p.write_bytes(b"\x89PNG\r\n\x1a\nnothing"), "1 that cannot be decoded"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("realtime", [False, True])
def test_unreadable_and_empty_files_are_refused(tmp_path: Path, name: str, realtime: bool) -> None:
    make, reason = REFUSED[name]
    make(tmp_path / name)
    with pytest.raises(SourceError) as caught:
        open_video(tmp_path / name, realtime=realtime)
    message = str(caught.value)
    assert name in message
    assert "\n" not in message
    assert reason in message or realtime


def test_nothing_is_printed(tmp_path: Path) -> None:
    """In a process of its own: FFmpeg reads its log level once."""
    jpegs = [clips.jpeg(clips.draw(i)) for i in range(6)]
    jpegs[2], jpegs[4] = bytes(400), jpegs[4][: len(jpegs[4]) // 2]
    clips.write_mjpeg_avi(tmp_path / "bad.avi", jpegs, 10)
    mp4_without_index(tmp_path / "cut.mp4")
    code = """
import sys
from edgekv.errors import SourceError
from edgekv.media import open_video
for name in ("bad.avi", "cut.mp4", "none.mp4", "/dev/video99", "rtsp://127.0.0.1:1/x"):
    try:
        with open_video(name, fps=None) as source:
            list(source)
    except SourceError as error:
        assert name in str(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
