"""What each frame's pages say in one vector: for retention rules that compare frames.

Owns: one array with a row for every page of the pool; a frame's row is that of its first page.
Guarantees: nothing is taken until somebody asks for summaries, and nothing grows afterwards; a
    frame is read once, together with all others that came since, when a rule first looks at it;
    pages that are taken anew have no summary until then, so a stale one is never given; forks
    share rows as they share pages, because pages of a frame are never written again.
Does not know: where pages lie, which rule compares, how.

A summary is the mean of the frame's *values* in one layer. Keys would have to be turned back by the
position they were written at; values carry no position, whatever the model's rotation is. Measured
on the demo model, unrotated keys chose no better. Two thirds of the way through the layers a value
says what is in the picture; the first layers say how the picture looks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import FRAME_CODE
from edgekv.config import KVGeometry
from edgekv.native.columns import PageRows, PageValues

ReadValues = Callable[[NDArray[np.int32]], NDArray[np.generic]]  # pages (n,) -> (n, Hk, S, D)
FindValues = Callable[[], PageValues | None]  # those of all pages, where they are in memory


class FrameSummaries:
    """Rows of ``num_kv_heads * head_dim`` numbers; of none until ``keep``."""

    def __init__(
        self,
        geometry: KVGeometry,
        times_taken: NDArray[np.int64],  # (num_pages,) of the pool's ledger
    ) -> None:
        self.layer = 2 * geometry.num_layers // 3  # whose values are summed up
        self._geometry = geometry
        self._times_taken = times_taken
        self._known: PageRows | None = None
        self._read: ReadValues | None = None
        self._find: FindValues | None = None
        self._found: Callable[[], PageValues | None] = _nothing  # by ``find``, while it lasts

    @property
    def kept(self) -> bool:
        """Whether anybody has asked for summaries."""
        return self._known is not None

    def keep(self) -> None:
        """Take the memory, once: ``num_pages * num_kv_heads * head_dim`` float32."""
        if self._known is None:
            geometry = self._geometry
            self._known = PageRows(
                self._times_taken,
                geometry.num_kv_heads * geometry.head_dim,
                num_axes=max(geometry.num_rope_axes, 1),
                frame_kind=FRAME_CODE,
            )

    def read_from(self, read: ReadValues, find: FindValues | None = None) -> None:
        """Make what is missing of what ``find`` finds, and its owner keeps, or, where that is
        nothing, of what ``read`` gives."""
        self._read, self._find, self._found = read, find, _nothing

    def rows(self) -> PageRows | None:
        """The rows, to be made of what is in memory; None until ``keep``."""
        if self._known is not None and self._found() is None:
            self._look(self._known)
        return self._known

    def of(self, segments: bytes, num_segments: int, pages: bytes) -> NDArray[np.float32]:
        """(num_segments, width) summaries, a copy; NaN for what is no frame, and where nothing can
        be read. ``segments`` and ``pages`` as in ``edgekv.native.columns``."""
        rows = self.rows()
        if rows is None:
            return np.empty((num_segments, 0), dtype=np.float32)
        missing = rows.make(segments, num_segments, pages)
        if missing is not None and self._read is not None:
            values = self._read(missing.pages)
            half = values.dtype == np.float16
            numbers = np.ascontiguousarray(values, np.float16 if half else np.float32)
            rows.fill(segments, num_segments, missing, PageValues(numbers))
        return rows.of(segments, num_segments, pages)

    def _look(self, rows: PageRows) -> None:
        values = None if self._find is None else self._find()
        rows.make_from(values)
        self._found = _nothing if values is None else weakref.ref(values)


def _nothing() -> None:
    """In place of a reference to what is not there."""
