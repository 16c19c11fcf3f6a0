"""OpenCV's ``VideoCapture`` as a ``Reader``: the only module that touches cv2.

Owns: loading cv2 quietly, the times of frames, what a failed ``grab`` means, BGR to RGB.
Guarantees: pictures are C-contiguous (height, width, 3) uint8 RGB arrays of their own; times rise;
OpenCV and FFmpeg print nothing (unless OPENCV_FFMPEG_LOGLEVEL or OPENCV_LOG_LEVEL ask for it).
Does not know: files, cameras, addresses.

Measured with OpenCV 5.0 and FFmpeg: ``CAP_PROP_POS_MSEC`` is the time of a frame from its ``grab``
until the next one, and 0 before the first and after the last. FFmpeg's ``grab`` decodes (later
frames need it), ``retrieve`` converts the colours. A ``grab`` that fails is not the end: it fails
once for each frame that cannot be decoded, then goes on; at the end it fails forever.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import SourceError
from edgekv.media.source import Mark

# A frame that refers to one that was lost shows smears. After a loss, frames are skipped up to the
# next that stands alone; streams that refresh piece by piece have none, hence a limit.
MAX_SMEARED_FRAMES = 300
_DEFAULT_FPS = 25.0
# pip's hides the system's, also in an environment that sees the system's packages.
_JETPACK_CV2 = (
    "on a Jetson take JetPack's: pip uninstall opencv-python-headless, in a virtual environment "
    "made with --system-site-packages (docs/jetson.md)"
)
_RESTART_S = 1.0  # a time that falls by more than this starts anew, by less it is disorder


def load_cv2() -> Any:
    """The cv2 module, told to be quiet. Raises SourceError when there is none."""
    # FFmpeg's level is read once, when its first capture opens.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    try:
        import cv2
    except ImportError as error:
        raise SourceError(f"video needs OpenCV's Python module cv2: {error}") from error
    module: Any = cv2  # what it offers depends on how it was built
    if "OPENCV_LOG_LEVEL" not in os.environ:
        # OpenCV 5 and 4 name it differently.
        where = module.utils.logging if hasattr(module.utils, "logging") else module
        where.setLogLevel(0)
    return module


def has_backend(name: str) -> bool:
    """Whether this OpenCV reads video through FFMPEG, V4L2 or GSTREAMER."""
    built_in = {"FFMPEG": "FFMPEG", "V4L2": "v4l/v4l2", "GSTREAMER": "GStreamer"}[name]
    lines = load_cv2().getBuildInformation().splitlines()
    return any(line.split(":")[-1].strip().startswith("YES") for line in lines if built_in in line)


def need_backend(name: str, source: str) -> None:
    """Raises SourceError when this OpenCV was built without a backend ``source`` needs."""
    if not has_backend(name):
        cv2 = load_cv2()
        where = f"{cv2.__version__}, {Path(cv2.__file__).parent}"
        hint = f"; {_JETPACK_CV2}" if name == "GSTREAMER" else ""
        raise SourceError(f"{source}: this OpenCV ({where}) is built without {name}{hint}")


def _repeats_after_change(version: str) -> bool:
    numbers = version.split(".")
    return (int(numbers[0]), int(numbers[1])) < (4, 13)


def backends() -> dict[str, str]:
    """What can be opened here, and what cannot and why, for people: kind of source -> answer."""
    try:
        version = load_cv2().__version__
    except SourceError as error:
        return {"folders of pictures": "yes, pillow", "video": f"no: {error}"}
    needs = {"files, rtsp://": "FFMPEG", "/dev/video*": "V4L2", "csi://": "GSTREAMER"}
    answers = {kind: f"yes, {name}" for kind, name in needs.items() if has_backend(name)}
    if _repeats_after_change(version):
        version += " (before 4.13: repeats a picture when the size changes mid-clip)"
    lacks = {kind: f"no: this OpenCV has no {name}" for kind, name in needs.items()}
    lacks["csi://"] += f"; {_JETPACK_CV2}"
    return {"OpenCV": version, "folders of pictures": "yes, pillow", **lacks, **answers}


def open_capture(
    target: str | int,
    backend: str,
    name: str,
    expected: str,
    params: Sequence[tuple[str, int]] = (),
) -> Any:
    """An opened ``VideoCapture``. ``backend`` and ``params`` are cv2 names without their prefix.

    A parameter this OpenCV does not know is left out. Raises SourceError that says ``expected``.
    """
    cv2 = load_cv2()
    codes = [(getattr(cv2, f"CAP_PROP_{key}", None), value) for key, value in params]
    flat = [number for key, value in codes if key is not None for number in (key, value)]
    capture = cv2.VideoCapture(target, getattr(cv2, f"CAP_{backend}"), flat)
    if not capture.isOpened():
        capture.release()
        raise SourceError(f"{name}: cannot be opened, expected {expected}")
    return capture


class PresentationClock:
    """Frame times from a container's own, made to rise from 0.

    A time that stands still (a container without times) moves on by the nominal interval; one that
    falls far (a stream that started anew) goes on from where it was; one that falls a little is
    disorder and is held.
    """

    def __init__(self, fps: float) -> None:
        usable = math.isfinite(fps) and 0.01 <= fps <= 1000
        self._interval_s = 1 / (fps if usable else _DEFAULT_FPS)
        self._last_raw_s: float | None = None
        self._offset_s = 0.0
        self._last_s = 0.0

    def tick(self, raw_s: float, num_steps: int = 1) -> float:
        """Time of a frame that says ``raw_s`` and is ``num_steps`` frames after the last one.

        The first frame stands at 0, or later when ``num_steps - 1`` frames before it were bad.
        """
        if not math.isfinite(raw_s):
            raw_s = self._last_raw_s or 0.0
        if self._last_raw_s is None:
            # Below 0: OpenCV reports the decoding time of a frame whose time is exactly 0.
            raw_s = max(raw_s, 0.0)
            self._last_s = (num_steps - 1) * self._interval_s
            self._last_raw_s, self._offset_s = raw_s, self._last_s - raw_s
            return self._last_s
        time_s = raw_s + self._offset_s
        if raw_s < self._last_raw_s - _RESTART_S:
            time_s = self._last_s + num_steps * self._interval_s
            self._offset_s = time_s - raw_s
        elif time_s <= self._last_s:
            stuck = raw_s == self._last_raw_s
            time_s = self._last_s + (num_steps * self._interval_s if stuck else 1e-6)
        self._last_raw_s, self._last_s = raw_s, time_s
        return time_s


class ArrivalClock:
    """Frame times by when they came, for sources whose own clock restarts or jumps."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._start_s: float | None = None
        self._last_s = 0.0

    def tick(self, _raw_s: float, _num_steps: int = 1) -> float:
        now_s = self._now()
        if self._start_s is None:
            self._start_s = now_s
            return 0.0
        self._last_s = max(now_s - self._start_s, self._last_s + 1e-6)
        return self._last_s


class CaptureReader:
    """A ``Reader`` over an opened ``VideoCapture``.

    The stream has ended after ``max_failures`` failed grabs in a row, or when those take longer
    than ``patience_s``: a frame that cannot be decoded fails at once, silence by its time-out.
    """

    def __init__(
        self,
        capture: Any,
        clock: PresentationClock | ArrivalClock,
        *,
        max_failures: int,
        patience_s: float = math.inf,
    ) -> None:
        self._cv2 = load_cv2()
        self._capture = capture
        self._clock = clock
        self._max_failures = max_failures
        self._patience_s = patience_s
        self._frame_type = getattr(self._cv2, "CAP_PROP_FRAME_TYPE", None)
        self._next_index = 0
        self._smear_limit = 0  # frames that may still be skipped while waiting for a whole one
        self.num_bad_frames = 0

    def grab(self) -> Mark | None:
        failures = 0
        num_steps = 1
        start_s = time.monotonic()
        while failures < self._max_failures:
            if not self._capture.grab():
                failures += 1
                if time.monotonic() - start_s > self._patience_s:
                    return None
                continue
            if failures:
                self._lose(failures)
                self._smear_limit = MAX_SMEARED_FRAMES
                num_steps += failures
                failures = 0
            mark = Mark(self._next_index, self._time(num_steps))
            if self._smear_limit and self._is_dependent():
                self._smear_limit -= 1
                self._lose(1)
                num_steps = 1
                continue
            self._smear_limit = 0
            self._next_index += 1
            return mark
        return None

    def _lose(self, num_frames: int) -> None:
        self.num_bad_frames += num_frames
        self._next_index += num_frames

    def _time(self, num_steps: int) -> float:
        raw_s = self._capture.get(self._cv2.CAP_PROP_POS_MSEC) / 1000
        return self._clock.tick(raw_s, num_steps)

    def _is_dependent(self) -> bool:
        """Whether the frame was coded as a change to others; False when the backend cannot say."""
        if self._frame_type is None:
            return False
        return int(self._capture.get(self._frame_type)) in (ord("P"), ord("B"))

    def retrieve(self) -> NDArray[np.uint8] | None:
        done, pixels = self._capture.retrieve()
        rgb = to_rgb(self._cv2, pixels) if done else None
        if rgb is None:
            self.num_bad_frames += 1
        return rgb

    def close(self) -> None:
        self._capture.release()


def to_rgb(cv2: Any, pixels: NDArray[Any] | None) -> NDArray[np.uint8] | None:
    """Grey, BGR or BGRA from a backend as (height, width, 3) RGB; None when it is no picture."""
    if pixels is None or pixels.size == 0 or pixels.dtype != np.uint8:
        return None
    channels = 1 if pixels.ndim == 2 else pixels.shape[2] if pixels.ndim == 3 else 0
    codes = {1: cv2.COLOR_GRAY2RGB, 3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGB}
    if channels not in codes:
        return None
    return np.ascontiguousarray(cv2.cvtColor(pixels, codes[channels]), dtype=np.uint8)
