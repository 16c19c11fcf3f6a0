"""What each page of a pool shows in each column of a picture, and who holds it.

Owns: the rows of a map, which are pages that were ever used, and the stretches of equal cells.
Guarantees: at most ``max_rows`` rows; a question is seen even if it lasted less than a column, and
    what is in flight only if it lasted longer.
Does not know: colours, which pool it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.clock import Columns
from edgekv.trace.events import ANSWER, TEXT
from edgekv.trace.holders import Holders
from edgekv.trace.lives import CACHED, IN_FLIGHT, PROBED, RECALLED, RESERVED, Lives

NOBODY = 0  # number of the empty set of holders
# What comes and goes with a question, and what is drawn over what.
_ON_TOP = {PROBED: 1, RECALLED: 1, TEXT: 2, ANSWER: 3}
BRIEF = tuple(_ON_TOP)


@dataclass(frozen=True, slots=True)
class Runs:
    """Stretches of equal cells in a page map, row after row."""

    row: NDArray[np.int32]  # (n,)
    start: NDArray[np.int32]  # (n,) first column
    stop: NDArray[np.int32]  # (n,) behind the last column
    life: NDArray[np.int32]  # (n,) number of the segment, or input, shown
    kind: NDArray[np.int8]  # (n,) what is shown: the kind of the life, or IN_FLIGHT
    holders: NDArray[np.int32]  # (n,) number of the set of those who hold it


@dataclass(frozen=True, slots=True)
class PageMap:
    """A pool over time, a row a page, or several where there are many."""

    lives: Lives
    sets: tuple[tuple[int, ...], ...]  # of holders, by number
    num_pages: int  # of the pool
    pages: NDArray[np.int64]  # (P,) that were ever used, growing; others have no row
    num_rows: int
    runs: Runs

    @property
    def num_used(self) -> int:
        return int(self.pages.size)

    @property
    def pages_per_row(self) -> float:
        return max(self.num_used, 1) / self.num_rows

    def first_pages(self) -> NDArray[np.int64]:
        """(num_rows,) the first page of each row; page 0 for a map of nothing."""
        if not self.num_used:
            return np.zeros(1, np.int64)
        rows = np.arange(self.num_rows)
        first: NDArray[np.int64] = self.pages[-(-rows * self.num_used // self.num_rows)]
        return first


def page_map(
    holders: Holders, lives: Lives, columns: Columns, end_us: int, max_rows: int
) -> PageMap:
    """The map of one pool."""
    spans = holders.spans
    pages, place = np.unique(np.asarray(spans.page, np.int64), return_inverse=True)
    num_rows = max(min(pages.size, max_rows), 1)
    row = place * num_rows // max(pages.size, 1)
    life = np.asarray(spans.life, np.int64)
    to_us = np.asarray(spans.to_us, np.int64)
    to_us = np.where(to_us < 0, end_us, to_us)
    first, last = columns.of(np.asarray(spans.from_us, np.int64)), columns.of(to_us)
    # A span reaches into the column where it ended only if it fills no other.
    kind, held_by = np.asarray(lives.kind, np.int8)[life], np.asarray(spans.holders, np.int64)
    kind[(held_by == NOBODY) & (kind != CACHED)] = IN_FLIGHT
    still = np.asarray(lives.left_us, np.int64)[life] < 0
    still &= ~np.isin(kind, (CACHED, RESERVED, IN_FLIGHT)) | (to_us == end_us)
    stop = np.where(still | ((last == first) & (kind != IN_FLIGHT)), last + 1, last)
    grid = np.full((num_rows, columns.count), -1, np.int32)
    _paint(grid, row, first, stop, kind)
    runs = _read_off(grid, life, held_by, kind)
    return PageMap(lives, tuple(holders.sets), holders.num_pages, pages, num_rows, runs)


def _paint(
    grid: NDArray[np.int32],  # (num_rows, C)
    row: NDArray[np.int64],
    first: NDArray[np.int32],
    stop: NDArray[np.int32],
    kind: NDArray[np.int8],
) -> None:
    """Paint spans (n,), each its number, in the order they came, questions last."""
    rank = np.zeros(kind.size, np.int8)
    for on_top, height in _ON_TOP.items():
        rank[kind == on_top] = height
    order = np.argsort(rank, kind="stable")
    short = stop - first == 1
    # Long spans one by one, then all of one column at once; questions come after both.
    for want_short in (False, True):
        for brief in (False, True):
            mine = order[(short[order] == want_short) & ((rank[order] > 0) == brief)]
            if want_short:
                grid[row[mine], first[mine]] = mine
            else:
                for k in mine.tolist():
                    grid[row[k], first[k] : stop[k]] = k


def _read_off(
    grid: NDArray[np.int32],  # (num_rows, C) numbers of spans, -1 = free
    life: NDArray[np.int64],  # (num_spans,)
    holders: NDArray[np.int64],  # (num_spans,)
    kind: NDArray[np.int8],  # (num_spans,)
) -> Runs:
    shown = life * (holders.max(initial=0) + 1) + holders
    cells = np.where(grid >= 0, shown[grid] if shown.size else -1, -1)
    edges = np.ones(grid.shape, np.bool_)
    edges[:, 1:] = cells[:, 1:] != cells[:, :-1]
    row, start = np.nonzero(edges)
    stop = np.append(start[1:], 0)
    stop[stop == 0] = grid.shape[1]
    span = grid[row, start]
    held = span >= 0
    span = span[held]
    return Runs(
        row[held].astype(np.int32),
        start[held].astype(np.int32),
        stop[held].astype(np.int32),
        life[span].astype(np.int32),
        kind[span],
        holders[span].astype(np.int32),
    )
