"""A folder of pictures, played as a clip.

Owns: which files count as pictures, by their names; their order and their times. The order is
natural ("2.png" before "10.png"); picture number i stands at i / ``folder_fps`` seconds. A picture
that cannot be read keeps its number and its time. Other files, and hidden ones, are ignored.
Does not know: how a picture is decoded.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import SourceError
from edgekv.media.images import read_image
from edgekv.media.source import Mark

# fmt: off
_SUFFIXES = frozenset((
    ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png",
    ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
))
# fmt: on


def is_still(path: Path) -> bool:
    """Whether a file is named as one picture; a gif by itself is a film."""
    return path.suffix.lower() in _SUFFIXES - {".gif"}


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sorts "frame2" before "frame10", letters without regard to case."""
    parts = re.findall(r"\d+|\D+", name.lower())
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts)


class FolderReader:
    """A ``Reader`` over the pictures of a folder, or over one picture."""

    def __init__(self, path: Path, folder_fps: float) -> None:
        try:
            files = [path] if path.is_file() else [p for p in path.iterdir() if p.is_file()]
        except OSError as error:
            raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
        images = [p for p in files if p == path or _is_picture(p)]
        if not images:
            found = f"found {len(files)} other files" if files else "found none"
            raise SourceError(f"{path}: expected pictures (png, jpg, ...), {found}")
        self._images = sorted(images, key=lambda file: (natural_key(file.name), file.name))
        self._fps = folder_fps
        self._index = -1
        self.num_bad_frames = 0

    def grab(self) -> Mark | None:
        if self._index + 1 >= len(self._images):
            return None
        self._index += 1
        return Mark(self._index, self._index / self._fps)

    def retrieve(self) -> NDArray[np.uint8] | None:
        pixels = read_image(self._images[self._index])
        if pixels is None:
            self.num_bad_frames += 1
        return pixels

    def close(self) -> None:
        """Nothing is held open between pictures."""
