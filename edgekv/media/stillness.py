"""Whether a frame shows anything new, told from its pixels before anything is encoded.

Owns: the small pictures that are compared, the last one that was taken, and when a frame must be
taken anyway. Guarantees: noise and a change of exposure over the whole picture are nothing new, an
object of a few cells that moves is; what drifts slowly is compared with what was taken last, not
with the frame before, so it counts once it has gone far enough; a cut is never missed.
Does not know: models, contexts, what becomes of a frame.

Each picture is averaged over a grid of cells. The new one is brought to the brightness of the last
taken one, channel by channel (median of the ratios), and then differs in some cell by more than the
noise allows, or it does not. The noise is measured on the pair itself (median of all differences):
most cells show no movement, and where most do the limit stands in for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from edgekv.checks import positive
from edgekv.media.preprocess import check_pixels

_CELL_PIXELS = 4  # a side, at least
_MAX_CELLS = 64  # a side
_LEAST = 4.0  # levels of 255 by which a cell must differ
_MOST = 16.0  # levels that are something new however noisy the pair is
_EXPOSURE = 1.5  # times brighter or darker; a lamp that is switched on is something new
_SIGMAS = 7.0  # of thousands of cells none is further out by chance


@dataclass(frozen=True, slots=True)
class Look:
    """A frame as the gate saw it."""

    cells: NDArray[np.float32]  # (rows, columns, 3) levels
    time_s: float
    still: bool  # nothing new since the last frame taken
    skip: bool


class StillnessGate:
    """Lets frames pass that show something new, and one every ``key_every_s`` seconds."""

    def __init__(self, key_every_s: float) -> None:
        self.key_every_s = positive(key_every_s, "skip_still")
        self._last: Look | None = None

    def look(self, pixels: NDArray[np.uint8], time_s: float) -> Look:
        """What to do with a frame (height, width, 3). Raises ValueError as ``check_pixels``.

        The first still frame passes: that nothing moves any more is news, and a model that sees one
        picture cannot tell it. Changes nothing; call ``take`` with the frames that were taken in.
        """
        check_pixels(pixels)
        cells, last = _cells(pixels), self._last
        if last is None or last.cells.shape != cells.shape:
            return Look(cells, time_s, still=False, skip=False)
        still = not _differs(last.cells, cells)
        due = time_s - last.time_s >= self.key_every_s
        return Look(cells, time_s, still, skip=still and last.still and not due)

    def take(self, look: Look) -> None:
        """The frame is in the context: later ones are compared with it."""
        self._last = look

    def copy(self) -> StillnessGate:
        """One that has seen the same."""
        twin = StillnessGate(self.key_every_s)
        twin._last = self._last
        return twin


def _cells(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(rows, columns, 3) means of cells."""
    rows, columns = (min(max(size // _CELL_PIXELS, 1), _MAX_CELLS) for size in pixels.shape[:2])
    image = Image.fromarray(np.ascontiguousarray(pixels))
    small = image.resize((columns, rows), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32)


def _differs(before: NDArray[np.float32], now: NDArray[np.float32]) -> bool:
    """Whether some cell differs by more than noise and exposure explain."""
    ratio = np.clip(_median((before + 1) / (now + 1)), 1 / _EXPOSURE, _EXPOSURE)  # (3,)
    away = np.abs(now * ratio - before)
    sigma = 1.4826 * float(_median(away).mean())
    return bool(away.max() > min(max(_SIGMAS * sigma, _LEAST), _MOST))


def _median(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """(3,) of each channel, the upper one of two."""
    flat = values.reshape(-1, values.shape[-1])
    middle = len(flat) // 2
    medians: NDArray[np.float32] = np.partition(flat, middle, axis=0)[middle]
    return medians
