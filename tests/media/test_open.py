"""Which string means which source, and what is not loaded before it is needed."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from edgekv.errors import SourceError
from edgekv.media import backends, open_video
from edgekv.media.csi import csi_pipeline
from edgekv.media.rtsp import without_password
from tests.media import clips
from tests.media.rtsp_server import RtspServer
from tests.waiting import HANG_S


def test_importing_loads_neither_opencv_nor_pillow() -> None:
    code = "import edgekv.media, sys; print({'cv2', 'PIL', 'torch'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("", "a video file"),
        ("no/such/file.mp4", "no such file or folder"),
        ("x" * 5000, "a video file"),
        ("ftp://host/film.mp4", "unknown kind of source"),
        ("/dev/video99", "a camera that is connected"),
        ("99", "camera 99"),
        ("/dev/null", "a camera"),
        ("csi://front", "csi://SENSOR"),
        ("csi://0?width=wide", "cannot use width=wide"),
        ("csi://0?zoom=2", "cannot use zoom=2"),
    ],
)
def test_what_is_no_source_is_refused_in_one_line(source: str, wanted: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_video(source)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["folder_fps", "timeout_s"])
def test_numbers_out_of_range(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be a positive number, got 0"):
        open_video("film.mp4", **{option: 0})


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("folder_fps", 5e-324, r"be a number from 1e-06 to 1e\+06, got 5e-324"),
        ("folder_fps", 1e308, r"be a number from 1e-06 to 1e\+06, got 1e\+308"),
        ("timeout_s", 1e308, r"be at most 1e\+06 seconds, got 1e\+308"),
    ],
)
def test_numbers_that_nothing_can_be_counted_in(option: str, value: float, said: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must {said}"):
        open_video("rtsp://127.0.0.1:1/film", **{option: value})


def test_csi_pipeline() -> None:
    assert csi_pipeline("csi://0") == (
        "nvarguscamerasrc sensor-id=0 ! "
        "video/x-raw(memory:NVMM), width=1280, height=720, framerate=30/1 ! "
        "nvvidconv flip-method=0 ! video/x-raw, format=BGRx ! "
        "videoconvert ! video/x-raw, format=BGR ! "
        "appsink drop=true max-buffers=1 sync=false"
    )
    changed = csi_pipeline("csi://1?width=1920&height=1080&fps=15&flip=2")
    assert "sensor-id=1 " in changed
    assert "width=1920, height=1080, framerate=15/1" in changed
    assert "flip-method=2" in changed


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rtsp://camera/stream", "rtsp://camera/stream"),
        ("rtsp://me:secret@camera:554/a", "rtsp://me:***@camera:554/a"),
        ("rtsp://me:s@cret@camera/a", "rtsp://me:***@camera/a"),
        ("rtsp://me:s/e?c#t@camera/a", "rtsp://me:***@camera/a"),
        ("rtsp://camera:554/a", "rtsp://camera:554/a"),
    ],
)
def test_passwords_do_not_show(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_an_rtsp_server_that_is_not_there_or_silent() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        url = f"rtsp://me:secret@127.0.0.1:{server.getsockname()[1]}/stream"
        for listening in (False, True):
            if listening:
                server.listen()
            with pytest.raises(SourceError, match=r"rtsp://me:\*\*\*@.* within 0\.3 s") as caught:
                open_video(url, timeout_s=0.3)
            assert "secret" not in str(caught.value)


def test_a_path_or_a_string(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.avi", "MJPG", 10, 3)
    for source in (path, str(path)):
        with open_video(source, fps=None) as video:
            assert len(list(video)) == 3
            assert list(video) == []


def test_a_closed_file_gives_no_more_frames(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.avi", "MJPG", 10, 3)
    video = open_video(path, fps=None)
    video.close()
    video.close()
    assert list(video) == []
    assert video.stats().num_frames == 0


def test_a_file_closed_by_another_thread_while_it_is_read(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.avi", "MJPG", 10, 2000)
    for _ in range(20):
        video = open_video(path, fps=0.001)
        next(video)
        timer = threading.Timer(0.002, video.close)
        timer.start()
        assert list(video) == []
        timer.join()


def test_what_can_be_opened_here_is_said() -> None:
    answers = backends()
    assert {"files, rtsp://", "/dev/video*", "csi://", "folders of pictures"} < set(answers)
    assert answers["files, rtsp://"] == "yes, FFMPEG"
    assert all(answer.startswith(("yes", "no: ")) for k, answer in answers.items() if k != "OpenCV")


def test_rtsp_over_tcp_until_the_server_hangs_up() -> None:
    frames = []
    with (
        RtspServer(100, "hang up") as server,
        open_video(server.url, fps=None, timeout_s=HANG_S) as source,
        pytest.raises(SourceError, match=r"me:\*\*\*@.*lost after \d+ frames"),
    ):
        frames.extend(source)
    assert "RTP/AVP/TCP" in server.transport
    numbers = [clips.read_number(frame.pixels) for frame in frames]
    assert numbers == [frame.index for frame in frames] == sorted(set(numbers))
    assert numbers[-1] == 99
    times_s = [frame.time_s for frame in frames]
    assert times_s == sorted(set(times_s))
    assert source.stats().num_frames + source.stats().num_dropped_frames == 100


def test_a_silent_rtsp_server_is_given_up() -> None:
    before = set(threading.enumerate())
    # Long enough for this machine to open the stream in, no longer than it must.
    for timeout_s in (1, 4, 16, 64):
        with RtspServer(100, "silent") as server, suppress(SourceError):
            source = open_video(server.url, timeout_s=timeout_s)
            with (
                source,
                pytest.raises(SourceError, match=rf"no frame for {timeout_s} s|lost after"),
            ):
                list(source)
            break
    else:
        pytest.fail("the server that speaks at first could not be opened")
    assert set(threading.enumerate()) <= before


def test_a_program_that_forgets_to_close_ends_cleanly() -> None:
    code = """
import sys
from edgekv.media import open_video
print(next(open_video(sys.argv[1], timeout_s=300)).index)
"""
    root = Path(__file__).parents[2]
    with RtspServer(10_000, "silent") as server:
        command = [sys.executable, "-c", code, server.url]
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "0\n", "")
