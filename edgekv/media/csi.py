"""Ribbon-cable cameras of NVIDIA's boards: csi://0, csi://1?width=1920&height=1080&fps=30&flip=2.

Owns: the GStreamer pipeline, whose conversions run on the board's video hardware.
Does not know: frames. Needs a cv2 built with GStreamer, as NVIDIA's own is.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from edgekv.errors import SourceError
from edgekv.media.capture import ArrivalClock, CaptureReader, need_backend, open_capture

_DEFAULTS = {"width": 1280, "height": 720, "fps": 30, "flip": 0}
_EXPECTED = "csi://SENSOR[?width=1280&height=720&fps=30&flip=0]"
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
        f"nvarguscamerasrc sensor-id={match[1]} ! "
        f"video/x-raw(memory:NVMM), width={options['width']}, height={options['height']}, "
        f"framerate={options['fps']}/1 ! "
        f"nvvidconv flip-method={options['flip']} ! video/x-raw, format=BGRx ! "
        "videoconvert ! video/x-raw, format=BGR ! "
        "appsink drop=true max-buffers=1 sync=false"
    )


def open_csi(source: str, timeout_s: float) -> CaptureReader:
    """A reader over a CSI camera. Raises SourceError."""
    pipeline = csi_pipeline(source)
    need_backend("GSTREAMER", source)
    milliseconds = max(1, round(timeout_s * 1000))
    params = [("OPEN_TIMEOUT_MSEC", milliseconds), ("READ_TIMEOUT_MSEC", milliseconds)]
    capture = open_capture(pipeline, "GSTREAMER", source, "a camera on that CSI port", params)
    return CaptureReader(
        capture, ArrivalClock(), max_failures=_MAX_FAILURES, patience_s=timeout_s / 2
    )
