"""Video files.

Owns: telling a video file from what only looks like one.
Guarantees: frames come in order, with the times the container gives them, turned as its rotation
metadata asks; a file without a frame that can be read is refused with one line.
Does not know: codecs and containers (OpenCV's FFmpeg does).

Limits: after a change of size mid-clip OpenCV scales frames to the first size; before 4.13 it
repeats the last picture instead. Damage at the very end cannot be told from the end, and frames
whose very headers are gone show as a gap in time, not as bad frames.
"""

from __future__ import annotations

from pathlib import Path

from edgekv.errors import SourceError
from edgekv.media.capture import (
    CaptureReader,
    PresentationClock,
    has_backend,
    load_cv2,
    open_capture,
)

# More than a minute of undecodable frames; at the end of a file this costs about 20 ms.
_MAX_FAILURES = 2000
_SNIFF_BYTES = 4096


def open_file(path: Path) -> CaptureReader:
    """A reader over one video file. Raises SourceError."""
    try:
        with path.open("rb") as file:
            head = file.read(_SNIFF_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise SourceError(f"{path}: cannot be read ({reason}), expected a video file") from error
    if not head:
        raise SourceError(f"{path}: the file is empty, expected a video")
    if _is_text(head):
        raise SourceError(f"{path}: the file holds text, expected a video")
    cv2 = load_cv2()
    backend = "FFMPEG" if has_backend("FFMPEG") else "ANY"
    expected = "a whole video file that OpenCV can decode (mp4, mkv, avi, ...)"
    capture = open_capture(str(path), backend, str(path), expected)
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
    clock = PresentationClock(capture.get(cv2.CAP_PROP_FPS))
    return CaptureReader(capture, clock, max_failures=_MAX_FAILURES)


def _is_text(head: bytes) -> bool:
    """FFmpeg would draw text as a film, and follow the addresses in a playlist."""
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may be cut at the end of what was read.
        return len(head) == _SNIFF_BYTES and error.start >= len(head) - 3
    return True
