"""From one string to a source.

Owns: which string means which kind.
Does not know: any kind's details. Reconnecting belongs in ``_open_live``: a ``Reader`` that wraps
the opened one, and opens it again when it ends, goes to ``LiveSource`` in its place.
"""

from __future__ import annotations

from pathlib import Path

from edgekv.checks import path_of, positive, refuse, switch, whole
from edgekv.errors import SourceError
from edgekv.media.camera import open_camera
from edgekv.media.csi import open_csi
from edgekv.media.files import open_file
from edgekv.media.live import LiveSource
from edgekv.media.rtsp import open_rtsp, without_password
from edgekv.media.source import Reader, SequentialSource, VideoSource

_MIN_FPS, _MAX_FPS = 1e-6, 1e6
_MAX_TIMEOUT_S = 1e6  # OpenCV counts milliseconds in 32 bits
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
    fps = None if fps is None else positive(fps, "fps")
    folder_fps, timeout_s = positive(folder_fps, "folder_fps"), positive(timeout_s, "timeout_s")
    if not _MIN_FPS <= folder_fps <= _MAX_FPS:
        refuse("folder_fps", f"be a number from {_MIN_FPS:g} to {_MAX_FPS:g}", folder_fps)
    if timeout_s > _MAX_TIMEOUT_S:
        refuse("timeout_s", f"be at most {_MAX_TIMEOUT_S:g} seconds", timeout_s)
    realtime = switch(realtime, "realtime")
    text = _as_text(source)
    if _is_live(text):
        return _open_live(text, fps, timeout_s)
    reader = _open_stored(Path(text), folder_fps)
    if realtime:
        return LiveSource(reader, text, fps=fps, timeout_s=timeout_s, paced=True)
    return SequentialSource(reader, text, fps=fps)


def check_source(source: str | Path) -> None:
    """Raise SourceError, as ``open_video`` would, for a file or folder that is not there. Nothing
    is opened, and no camera is asked."""
    text = _as_text(source)
    if not _is_live(text):
        _is_folder(Path(text))


def _as_text(source: object) -> str:
    """The source in words. Raises SourceError for none, ValueError for what can be none."""
    if isinstance(source, int) and not isinstance(source, bool):
        return str(whole(source, "source", least=0))  # a camera's number
    if source == "":
        raise SourceError(f"the source is an empty string, expected {_KINDS}")
    if isinstance(source, str) and "://" in source and "\0" not in source:
        return source
    try:
        return str(path_of(source, "source"))
    except ValueError as error:
        if isinstance(source, str | Path):
            raise SourceError(f"{error}, expected {_KINDS}") from None
        raise


def _is_live(text: str) -> bool:
    return text.isdecimal() or "://" in text or _is_device(text)


def _is_device(text: str) -> bool:
    """Whether this names a device, present or not, and not a file that merely lies in /dev/shm."""
    return text.startswith("/dev/") and not (Path(text).is_file() or Path(text).is_dir())


def _open_live(source: str, fps: float | None, timeout_s: float) -> VideoSource:
    name = f"camera {source}" if source.isdecimal() else without_password(source)
    scheme = source.partition("://")[0].lower() if "://" in source else ""
    reader: Reader
    if scheme == "csi":
        reader = open_csi(source, timeout_s)
    elif scheme in ("rtsp", "rtsps"):
        reader = open_rtsp(source, timeout_s)
    elif scheme:
        raise SourceError(f"{name}: unknown kind of source, expected {_KINDS}")
    else:
        reader = open_camera(source, name)
    return LiveSource(reader, name, fps=fps, timeout_s=timeout_s)


def _is_folder(path: Path) -> bool:
    """Whether it is a folder and not a file. Raises SourceError for neither."""
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}, expected {_KINDS}") from error
    if not is_folder and not is_file:
        raise SourceError(f"{path}: no such file or folder, expected {_KINDS}")
    return is_folder


def _open_stored(path: Path, folder_fps: float) -> Reader:
    is_folder = _is_folder(path)
    # Here, because it brings pillow along.
    from edgekv.media.folder import FolderReader, is_still

    if is_folder or is_still(path):
        return FolderReader(path, folder_fps)
    return open_file(path)
