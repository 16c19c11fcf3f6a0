"""What a rule could see of segments and the log does not tell otherwise: summaries and heat.

Owns: which values have been told, by first page of a segment, as both ends of a log keep them.
Guarantees: a value is told once, whoever shares the page, and again only when it is another; bits
    come back as they went in; one value of each column for a page of the pool at most.
Does not know: what the values mean, rules, sequences, bytes of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import SegmentTable

SUMMARY, HEAT = range(2)  # the format's own numbers of the columns
_CHUNK_BYTES = 4 * 2**10  # of values told at once; one value may be larger
_F4, _F8 = np.dtype("<f4"), np.dtype("<f8")
_COLD = bytes(_F8.itemsize)


class Evidence:
    """What is known of pages. Unknown is NaN throughout for a summary, 0 for heat."""

    def __init__(self) -> None:
        self._known: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})  # by column

    def forget(self, pages: Iterable[int]) -> None:
        """These pages hold something else from now on."""
        for values in self._known:
            for page in pages:
                values.pop(page, None)

    def tell(self, column: int, pages: tuple[int, ...], values: tuple[bytes, ...]) -> None:
        """Know the values of pages."""
        self._known[column].update(zip(pages, values, strict=True))

    def news(
        self, offer: SegmentTable, pages: NDArray[np.int32]
    ) -> Iterator[tuple[int, tuple[int, ...], tuple[bytes, ...]]]:
        """Column, pages and values to tell before ``offer``, whose segments begin with ``pages``
        (n,), is known: in pieces."""
        width = offer.summaries.shape[1]
        if width:
            yield from self._news(SUMMARY, pages, offer.summaries.astype(_F4), _no_summary(width))
        yield from self._news(HEAT, pages, offer.heat.astype(_F8), _COLD)

    def columns(
        self, pages: NDArray[np.int32], width: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """(n, width) summaries and (n,) heat of segments that begin with ``pages`` (n,). ValueError
        when what was told has another width."""
        (summaries, heat), no_summary = self._known, _no_summary(width)
        rows = [summaries.get(page, no_summary) if width else b"" for page in pages.tolist()]
        warm = b"".join([heat.get(page, _COLD) for page in pages.tolist()])
        return (
            np.frombuffer(b"".join(rows), _F4).reshape(pages.size, width).astype(np.float32),
            np.frombuffer(warm, _F8).reshape(pages.size).astype(np.float64),
        )

    def _news(
        self, column: int, pages: NDArray[np.int32], array: NDArray[np.floating], unknown: bytes
    ) -> Iterator[tuple[int, tuple[int, ...], tuple[bytes, ...]]]:
        known, rows = self._known[column], [row.tobytes() for row in array]
        pairs = zip(pages.tolist(), rows, strict=True)
        new = [(page, row) for page, row in pairs if known.get(page, unknown) != row]
        size = max(_CHUNK_BYTES // len(unknown), 1)
        for start in range(0, len(new), size):
            told, values = zip(*new[start : start + size], strict=True)
            yield column, told, values


def _no_summary(width: int) -> bytes:
    return np.full(width, np.nan, _F4).tobytes()


def first_pages(num_pages: NDArray[np.int32], pages: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n,) the first of ``pages`` of each segment, which have ``num_pages`` (n,), at least 1."""
    first: NDArray[np.int32] = pages[np.cumsum(num_pages) - num_pages]
    return first
