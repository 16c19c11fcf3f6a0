"""Live sources: the newest frame wins, nothing piles up, everything is let go of.

A file played at its own pace stands in for a camera; where a device's faults are needed, a small
reader of the test's own has them. No assertion depends on how fast the machine is: what is silent
for how long, a clock of the test's own says.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from edgekv.errors import SourceError
from edgekv.media import open_video
from edgekv.media.source import Mark, SequentialSource
from tests.media import clips
from tests.media.devices import Clock, Device, live, watching
from tests.waiting import HANG_S, wait_until

TraceFunction = Callable[[FrameType, str, object], object]


def test_the_newest_frame_wins_and_the_others_are_counted() -> None:
    device = Device(100)
    device.step(1)
    with watching(device) as source:
        assert next(source).index == 0
        device.step(30)
        wait_until(lambda: source.stats().num_dropped_frames == 29)
        frame = next(source)
        assert (frame.index, clips.read_number(frame.pixels)) == (30, 30)
        stats = source.stats()
        assert (stats.num_frames, stats.num_dropped_frames) == (2, 29)


def test_frames_not_due_are_neither_decoded_nor_dropped() -> None:
    device = Device(100)
    device.step(1)
    with watching(device, fps=1) as source:
        assert next(source).index == 0
        device.step(10)
        assert next(source).index == 10
        assert device.num_retrieved == 2
        assert source.stats().num_dropped_frames == 0


def test_the_age_of_a_frame_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    device, clock = Device(10), Clock(monkeypatch)
    device.step(1)
    with watching(device) as source:
        for age_s in (0.25, 1.5, 0.5):
            wait_until(lambda: device.num_retrieved > source.stats().num_frames)
            clock.now_s += age_s
            next(source)
            assert source.stats().age_s == age_s
            device.step(1)
        assert source.stats().max_age_s == 1.5


@pytest.mark.parametrize("how", ["close", "with", "error", "early"])
def test_the_thread_ends_and_lets_go_of_the_device(how: str) -> None:
    device = Device(10**9)
    device.step(1)
    before = set(threading.enumerate())
    source = live(device)
    (thread,) = set(threading.enumerate()) - before
    device.run_freely()
    if how == "close":
        source.close()
        source.close()
    elif how == "early":
        next(source)
        source.close()
    elif how == "with":
        with source:
            next(source)
    else:
        with pytest.raises(ZeroDivisionError), source:
            1 / 0  # noqa: B018 - any error of the user's
    assert not thread.is_alive()
    assert device.closed_by is thread
    with pytest.raises(StopIteration):
        next(source)
    assert source.stats().num_frames <= 1


def test_a_source_that_is_dropped_is_let_go_of() -> None:
    """As a file that is dropped: at once, and with a warning where those are shown."""
    device = Device(100)
    device.step(1)
    before, warned = set(threading.enumerate()), threading.Event()
    source = live(device)
    (thread,) = set(threading.enumerate()) - before
    next(source)

    def show(*arguments: object, **_: object) -> None:
        if "the source the camera was never closed" in str(arguments[0]):
            warned.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = show
        del source
        device.step(1)  # the read in progress ends
        thread.join(60)
    assert not thread.is_alive()
    assert device.closed_by is thread
    assert warned.is_set()


def test_a_played_file_that_is_dropped_waits_for_no_frame(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", "mp4v", 25, 3)
    clips.set_mp4_times(path, [0, 40, 3_600_000])
    before = set(threading.enumerate())
    source = open_video(path, fps=None, realtime=True)
    (thread,) = set(threading.enumerate()) - before
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del source
        thread.join(60)
    assert not thread.is_alive()


def test_a_signal_that_comes_anywhere_leaves_nothing_held() -> None:
    """At one place after the other of a read that waits, as Ctrl-C may come."""

    class StopError(Exception):
        pass

    places = 0
    for place in itertools.count():
        device = Device(100)
        device.step(1)
        source = live(device)
        left = place

        def interrupt(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
            nonlocal left, places
            del event, argument
            if frame.f_code.co_filename.endswith(("live.py", "threading.py", "queue.py")):
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    places += 1
                    raise StopError
            return interrupt

        traced = sys.gettrace()
        sys.settrace(interrupt)
        try:
            next(source)
            source.stop()
            with suppress(StopIteration):
                next(source)
        except StopError:
            pass
        else:
            break
        finally:
            sys.settrace(traced)
            device.step(100)
            source.close()
        assert device.closed_by is not None
    assert places > 10


def test_closing_from_another_thread_ends_the_loop() -> None:
    device = Device(100)
    device.step(1)
    with watching(device) as source:
        next(source)
        threading.Timer(0.05, source.close).start()
        assert list(source) == []


def test_stopping_amid_a_read_waits_for_nothing() -> None:
    """As a signal handler does: it runs in the thread that reads, between any two lines."""

    class Stopping(Device):
        source: SequentialSource | None = None

        def grab(self) -> Mark | None:
            if self.source is not None:
                self.source.stop()
            return super().grab()

    device = Stopping(5)
    device.step(5)
    with SequentialSource(device, "device", fps=None) as source:
        next(source)
        device.source = source
        assert list(source) == []


def test_an_endless_source_that_ends_is_lost() -> None:
    device = Device(3)
    device.step(1)
    with watching(device) as source:
        assert next(source).index == 0
        device.step(2)
        wait_until(lambda: source.stats().num_dropped_frames == 1)
        assert next(source).index == 2, "what came is given before the loss is reported"
        with pytest.raises(SourceError, match="the camera: lost after 2 frames"):
            next(source)


def test_an_error_in_the_thread_reaches_the_user() -> None:
    def fail() -> None:
        raise RuntimeError("the driver broke")

    device = Device(1, at_end=fail)
    device.step(1)
    with watching(device) as source:
        next(source)
        with pytest.raises(SourceError, match="the driver broke") as caught:
            next(source)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert device.closed_by is not None


def test_a_device_that_cannot_be_closed_does_not_hang_the_user() -> None:
    class Stuck(Device):
        def close(self) -> None:
            raise OSError("device busy")

    device = Stuck(1)
    device.step(1)
    with watching(device) as source:
        next(source)
        with pytest.raises(SourceError, match="device busy"):
            next(source)


def test_no_frame_at_all() -> None:
    device = Device(0)
    with pytest.raises(SourceError, match="the camera: expected at least one readable frame"):
        live(device)
    assert device.closed_by is not None


def test_silence_ends_in_an_error_not_in_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    device, clock = Device(10), Clock(monkeypatch)
    device.step(1)
    with watching(device, timeout_s=0.1) as source:
        next(source)
        clock.now_s += 0.2
        with pytest.raises(SourceError, match=r"the camera: no frame for 0\.1 s"):
            next(source)


def test_a_program_that_was_stopped_does_not_take_that_for_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its reader was stopped with it, and needs a moment to come to the next frame."""
    device, clock = Device(10), Clock(monkeypatch)
    device.step(1)
    with watching(device, timeout_s=HANG_S) as source:
        next(source)
        clock.now_s += 100 * HANG_S
        later = threading.Timer(0.1, device.step, [1])
        later.start()
        assert next(source).index == 1
        later.join()
        clock.now_s += 100 * HANG_S
        device.run_freely()
        assert next(source).index >= 2


def test_frames_that_are_not_due_are_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Dripping(Device):
        def grab(self) -> Mark | None:
            clock.now_s += 0.04
            time.sleep(0.002)  # time for the user to notice a silence, if it took this for one
            return super().grab()

    device = Dripping(100)
    device.run_freely()
    with watching(device, fps=0.01, timeout_s=0.05) as source:
        assert next(source).index == 0
        with pytest.raises(SourceError, match="lost after 1 frames"):
            next(source)  # none of the others is due


def test_a_file_played_like_a_camera(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.avi", "MJPG", 50, 60)
    start = time.monotonic()
    with open_video(path, fps=None, realtime=True) as source:
        frames = [next(source)]
        wait_until(lambda: source.stats().num_dropped_frames > 20)
        frames.extend(source)
    assert time.monotonic() - start >= 59 / 50, "not faster than its own pace"
    stats = source.stats()
    indices = [frame.index for frame in frames]
    assert indices == sorted(set(indices))
    assert [clips.read_number(frame.pixels) for frame in frames] == indices
    assert [frame.time_s for frame in frames] == pytest.approx([i / 50 for i in indices])
    assert stats.num_frames + stats.num_dropped_frames == 60
    assert stats.num_dropped_frames > 20


def test_a_pause_in_a_played_file_is_no_loss(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", "mp4v", 25, 3)
    clips.set_mp4_times(path, [0, 40, 700])
    with open_video(path, fps=None, realtime=True, timeout_s=0.2) as source:
        assert [frame.index for frame in source][-1] == 2
