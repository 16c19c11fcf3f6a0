"""Network cameras: rtsp:// and rtsps://, over TCP.

Owns: transport and time-outs, and that a password never shows in a message.
Does not know: reconnecting. A lost stream ends.
"""

from __future__ import annotations

import os
import re

from edgekv.media.capture import ArrivalClock, CaptureReader, need_backend, open_capture

_OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
_MAX_FAILURES = 64


def without_password(url: str) -> str:
    """``rtsp://user:secret@host/`` -> ``rtsp://user:***@host/``."""
    return re.sub(r"(://[^:/?#@]*):.*@", r"\1:***@", url)


def open_rtsp(url: str, timeout_s: float) -> CaptureReader:
    """A reader over the stream at ``url``. Raises SourceError."""
    name = without_password(url)
    need_backend("FFMPEG", name)
    # UDP loses packets, which shows as smears. Read by OpenCV when it opens; a user's own wins.
    os.environ.setdefault(_OPTIONS, "rtsp_transport;tcp")
    milliseconds = max(1, round(timeout_s * 1000))
    params = [("OPEN_TIMEOUT_MSEC", milliseconds), ("READ_TIMEOUT_MSEC", milliseconds)]
    expected = f"an RTSP camera that answers within {timeout_s:g} s"
    capture = open_capture(url, "FFMPEG", name, expected, params)
    return CaptureReader(
        capture, ArrivalClock(), max_failures=_MAX_FAILURES, patience_s=timeout_s / 2
    )
