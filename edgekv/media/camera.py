"""Cameras the system knows: /dev/video0, or just 0.

Owns: how a camera is opened. Its size and rate are the driver's own choice.
Does not know: frames.
"""

from __future__ import annotations

import sys

from edgekv.media.capture import ArrivalClock, CaptureReader, load_cv2, open_capture

_MAX_FAILURES = 64
_PATIENCE_S = 5.0  # V4L2 gives up a read after 10 s


def open_camera(source: str, name: str) -> CaptureReader:
    """A reader over the camera ``source``, called ``name`` in messages. Raises SourceError."""
    target = int(source) if source.isdecimal() else source
    backend = "V4L2" if sys.platform.startswith("linux") else "ANY"
    expected = "a camera that is connected and not in use"
    capture = open_capture(target, backend, name, expected)
    # With more, a camera that is read slowly gives ever older frames. A wish: drivers differ.
    capture.set(load_cv2().CAP_PROP_BUFFERSIZE, 1)
    return CaptureReader(
        capture, ArrivalClock(), max_failures=_MAX_FAILURES, patience_s=_PATIENCE_S
    )
