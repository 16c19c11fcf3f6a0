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

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import FRAME_CODE
from edgekv.config import KVGeometry

ReadValues = Callable[[NDArray[np.int32]], NDArray[np.generic]]  # pages (n,) -> (n, Hk, S, D)


class FrameSummaries:
    """Rows (num_pages, width) float32, NaN = none; width 0 until ``keep``."""

    def __init__(self, geometry: KVGeometry, num_pages: int) -> None:
        self.layer = 2 * geometry.num_layers // 3  # whose values are summed up
        self._width = geometry.num_kv_heads * geometry.head_dim
        self._rows = np.empty((num_pages, 0), dtype=np.float32)
        self._read: ReadValues | None = None

    @property
    def kept(self) -> bool:
        """Whether anybody has asked for summaries."""
        return self._rows.shape[1] > 0

    def keep(self) -> None:
        """Take the memory, once: ``num_pages * num_kv_heads * head_dim`` float32."""
        if not self.kept:
            self._rows = np.full((len(self._rows), self._width), np.nan, dtype=np.float32)

    def read_from(self, read: ReadValues) -> None:
        """Fill in what is missing with what ``read`` gives, from now on."""
        self._read = read

    def put(
        self,
        pages: NDArray[np.int32],  # (n,) the first of each frame
        values: NDArray[np.generic],  # (n, pages of a frame, Hk, S, D) in ``layer``
        num_tokens: int,  # of each frame
    ) -> None:
        """Sum up frames of one size. Slots behind the last token are not looked at."""
        full, rest = divmod(num_tokens, values.shape[3])
        total = np.add.reduce(values[:, :full], axis=(1, 3), dtype=np.float32)  # (n, Hk, D)
        if rest:
            total += np.add.reduce(values[:, full, :, :rest], axis=2, dtype=np.float32)
        self._rows[pages] = total.reshape(pages.size, -1) / np.float32(num_tokens)

    def forget(self, pages: NDArray[np.int32]) -> None:
        """Pages (n,) are about to hold something else."""
        if self.kept:
            self._rows[pages] = np.nan

    def of(
        self,
        pages: NDArray[np.int32],  # (n,) of segments, in order
        segments: NDArray[np.void],  # (k,) stored segments; their ``num_pages`` sum to n
    ) -> NDArray[np.float32]:
        """(k, width) summaries, a copy; NaN for what is no frame, and where nothing can be read."""
        starts = segments["num_pages"].cumsum() - segments["num_pages"]
        first = pages.take(starts)
        rows: NDArray[np.float32] = self._rows.take(first, axis=0)
        if self.kept and self._read is not None:
            missing = np.isnan(rows[:, 0]) & (segments["kind"] == FRAME_CODE)
            if np.count_nonzero(missing):
                self._fill(pages, starts[missing], segments[missing], self._read)
                rows = self._rows.take(first, axis=0)
        return rows

    def _fill(
        self,
        pages: NDArray[np.int32],  # (n,)
        starts: NDArray[np.int64],  # (k,) where the first page of each frame is among them
        frames: NDArray[np.void],  # (k,) stored segments
        read: ReadValues,
    ) -> None:
        sizes = list(zip(frames["num_pages"].tolist(), frames["num_tokens"].tolist(), strict=True))
        for size in dict.fromkeys(sizes):  # nearly always one
            count, num_tokens = size
            same = [other == size for other in sizes]
            grid = starts[same][:, None] + np.arange(count)  # (frames, count)
            values = read(pages[grid.ravel()])
            self.put(pages[grid[:, 0]], values.reshape(*grid.shape, *values.shape[1:]), num_tokens)
