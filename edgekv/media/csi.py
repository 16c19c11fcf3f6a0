"""Ribbon-cable cameras of NVIDIA's boards: csi://0, csi://1?width=1920&height=1080&fps=30&flip=2.

Owns: the GStreamer pipeline, whose conversions run on the board's video hardware.
Does not know: frames. Needs a cv2 built with GStreamer, as NVIDIA's own is.
"""

from __future__ import annotations

import ctypes
import re
from urllib.parse import parse_qsl

from edgekv.errors import SourceError
from edgekv.media.capture import ArrivalClock, CaptureReader, need_backend, open_capture

_DEFAULTS = {"width": 1280, "height": 720, "fps": 30, "flip": 0}
_EXPECTED = "csi://SENSOR[?width=1280&height=720&fps=30&flip=0]"
_CAMERA = "nvarguscamerasrc"
_MAX_FAILURES = 64


def csi_pipeline(source: str) -> str:
    """The GStreamer pipeline for a ``csi://`` source. Raises SourceError when it is misspelt."""
    match = re.fullmatch(r"csi://(\d+)/?(?:\?(.*))?", source)
    if match is None:
        raise SourceError(f"{source}: expected {_EXPECTED}")
    options = dict(_DEFAULTS)
    for key, value in parse_qsl(match[2] or "", keep_blank_values=True):
        if key not in options or not value.isdecimal():
            raise SourceError(f"{source}: cannot use {key}={value}, expected {_EXPECTED}")
        options[key] = int(value)
    # drop and max-buffers: the newest picture wins inside the pipeline too.
    return (
        f"{_CAMERA} sensor-id={match[1]} ! "
        f"video/x-raw(memory:NVMM), width={options['width']}, height={options['height']}, "
        f"framerate={options['fps']}/1 ! "
        f"nvvidconv flip-method={options['flip']} ! video/x-raw, format=BGRx ! "
        "videoconvert ! video/x-raw, format=BGR ! "
        "appsink drop=true max-buffers=1 sync=false"
    )


def _has_element(name: str) -> bool:
    """Whether GStreamer has an element; OpenCV 4.6 hangs on a pipeline with one that is missing."""
    try:
        gstreamer = ctypes.CDLL("libgstreamer-1.0.so.0")
    except OSError:
        return True  # OpenCV brings its own: only it can tell
    gstreamer.gst_init(None, None)
    gstreamer.gst_element_factory_find.restype = ctypes.c_void_p
    return bool(gstreamer.gst_element_factory_find(name.encode()))


def open_csi(source: str, timeout_s: float) -> CaptureReader:
    """A reader over a CSI camera. Raises SourceError."""
    pipeline = csi_pipeline(source)
    need_backend("GSTREAMER", source)
    if not _has_element(_CAMERA):
        raise SourceError(f"{source}: GStreamer has no {_CAMERA} here, expected an NVIDIA board")
    milliseconds = max(1, round(timeout_s * 1000))
    params = [("OPEN_TIMEOUT_MSEC", milliseconds), ("READ_TIMEOUT_MSEC", milliseconds)]
    expected = "a camera on that CSI port"
    try:
        capture = open_capture(pipeline, "GSTREAMER", source, expected, params)
    except SourceError:
        # OpenCV 4.6 fails to open when it does not know a parameter of this backend.
        capture = open_capture(pipeline, "GSTREAMER", source, expected)
    return CaptureReader(
        capture, ArrivalClock(), max_failures=_MAX_FAILURES, patience_s=timeout_s / 2
    )
