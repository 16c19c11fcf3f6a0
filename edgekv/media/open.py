"""From one string to a source.

Owns: which string means which kind.
Does not know: any kind's details; each is imported only when it is asked for.
"""

from __future__ import annotations

import math
from pathlib import Path

from edgekv.errors import SourceError
from edgekv.media.source import Reader, SequentialSource, VideoSource

_KINDS = "a video file, a folder of pictures, /dev/video0, csi://0 or rtsp://..."


def open_video(
    source: str | Path,
    *,
    fps: float | None = 2.0,
    realtime: bool = False,
    folder_fps: float = 2.0,
    timeout_s: float = 10.0,
) -> VideoSource:
    """Open a source of frames: a context manager that iterates over ``Frame``.

    ``source``: a video file, a picture or a folder of pictures, ``/dev/video0`` or ``0``,
    ``csi://0``, ``rtsp://...``.
    ``fps``: frames wanted per second of video, each the first at or after k / fps; None for all.
    ``realtime``: play a file or folder at its own pace, newest frame first, as if it were a camera.
    ``folder_fps``: pictures per second of a folder; number i stands at i / folder_fps seconds.
    ``timeout_s``: how long to wait for a live source to open, and for each of its frames.

    Files wait for their user. Live sources do not: whoever is slow gets the newest frame, and
    ``stats()`` counts what was dropped. Raises SourceError, in one line, when there is no source or
    no frame that can be read, and ValueError for a number out of range.
    """
    for name, value in (("folder_fps", folder_fps), ("timeout_s", timeout_s), ("fps", fps)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, got {value!r}")
    text = str(source)
    if text.isdecimal() or text.startswith("/dev/video") or "://" in text:
        return _open_live(text, fps, timeout_s)
    reader = _open_stored(Path(source), folder_fps)
    if realtime:
        from edgekv.media.live import LiveSource

        return LiveSource(reader, text, fps=fps, timeout_s=timeout_s, paced=True, endless=False)
    return SequentialSource(reader, text, fps=fps)


def _open_live(source: str, fps: float | None, timeout_s: float) -> VideoSource:
    from edgekv.media.live import LiveSource
    from edgekv.media.rtsp import open_rtsp, without_password

    scheme = source.partition("://")[0].lower() if "://" in source else ""
    if scheme == "csi":
        from edgekv.media.csi import open_csi

        return LiveSource(open_csi(source), source, fps=fps, timeout_s=timeout_s)
    if scheme in ("rtsp", "rtsps"):
        name = without_password(source)
        return LiveSource(open_rtsp(source, timeout_s), name, fps=fps, timeout_s=timeout_s)
    if scheme:
        raise SourceError(f"{without_password(source)}: unknown kind of source, expected {_KINDS}")
    from edgekv.media.camera import open_camera

    return LiveSource(open_camera(source), source, fps=fps, timeout_s=timeout_s)


def _open_stored(path: Path, folder_fps: float) -> Reader:
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder, expected {_KINDS}")
    if path.is_dir():
        from edgekv.media.folder import FolderReader

        return FolderReader(path, folder_fps)
    from edgekv.media.images import is_image_name

    if is_image_name(path) and path.suffix.lower() != ".gif":
        from edgekv.media.folder import FolderReader

        return FolderReader(path, folder_fps)
    from edgekv.media.files import open_file

    return open_file(path)
