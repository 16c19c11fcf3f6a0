"""A timeline at a picture's resolution: what HTML and PNG both draw.

Owns: the columns ("buckets") of a picture and what is shown of each.
Guarantees: at most ``MAX_CELLS`` cells of the pool's map however long the log.
Does not know: colours, fonts, formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.bars import Bars, make_bars
from edgekv.trace.clock import Columns, StreamClock, stream_clock
from edgekv.trace.events import FRAME
from edgekv.trace.lives import DROPPED, Lookups
from edgekv.trace.moves import Moves, count_moves
from edgekv.trace.page_map import PageMap, page_map
from edgekv.trace.timeline import Timeline

MAX_COLUMNS, MAX_ROWS, MAX_CELLS = 1600, 512, 300_000
MAX_INPUT_ROWS = 128
_HIT_BINS = 40


@dataclass(frozen=True, slots=True)
class View:
    """Everything a picture shows. C columns of equal length in axis seconds, B bins."""

    timeline: Timeline
    clock: StreamClock
    num_columns: int
    map: PageMap
    inputs: PageMap | None  # of the cross pools
    pages_used: NDArray[np.int64]  # (C,) most pages live or in flight in the column
    pages_cached: NDArray[np.int64]  # (C,) most, on top of those in use
    pages_in_flight: NDArray[np.int64]  # (C,) most
    utilisation: NDArray[np.float64]  # (C,) best share of live slots that hold a token
    moves: Moves  # frames that live contexts let go, and that came back
    allocation_p50_us: NDArray[np.float64]  # (C,) NaN = no append in the column
    allocation_p99_us: NDArray[np.float64]  # (C,)
    hit_rate: NDArray[np.float64]  # (B,) NaN = nothing could be found in the bin
    bars: Bars

    @property
    def column_s(self) -> float:
        """Axis seconds of one column."""
        return (self.clock.end_s - self.clock.begin_s) / self.num_columns

    @property
    def most_pages(self) -> int:
        """Where an axis of pages ends: most that were in use or cached, at least 1."""
        most = int((self.pages_used + self.pages_cached).max(initial=1))
        return min(most, self.timeline.num_pages)


def make_view(timeline: Timeline) -> View:
    """Reduce a timeline."""
    clock, inputs = stream_clock(timeline), timeline.inputs
    num_used = len(set(timeline.holders.spans.page))
    num_columns = max(min(MAX_COLUMNS, MAX_CELLS // max(min(num_used, MAX_ROWS), 1)), 100)
    column, end_us = Columns(clock, num_columns), timeline.end_us
    used, cached, in_flight, utilisation = _levels(timeline, column)
    p50, p99 = _allocation(timeline, column)
    bars = make_bars(timeline, clock)
    return View(
        timeline=timeline,
        clock=clock,
        num_columns=num_columns,
        map=page_map(timeline.holders, timeline.lives, column, end_us, MAX_ROWS),
        inputs=None
        if inputs is None
        else page_map(inputs.holders, inputs.lives, column, end_us, MAX_INPUT_ROWS),
        pages_used=used,
        pages_cached=cached,
        pages_in_flight=in_flight,
        utilisation=utilisation,
        moves=count_moves(timeline, column, bars.lane_of),
        allocation_p50_us=p50,
        allocation_p99_us=p99,
        hit_rate=_hit_rate(timeline.lookups, Columns(clock, _HIT_BINS)),
        bars=bars,
    )


def _levels(
    timeline: Timeline, column: Columns
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Most used pages, most cached, most in flight and best utilisation by column, held where
    nothing happens."""
    at = column.of(np.asarray(timeline.levels.at_us, np.int64))
    free = np.asarray(timeline.levels.free, np.int64)
    in_flight = np.asarray(timeline.levels.in_flight, np.int64)
    cached = np.asarray(timeline.levels.cached, np.int64)
    used = timeline.num_pages - free - cached
    live = used - in_flight
    share = np.asarray(timeline.levels.tokens, np.int64) / np.maximum(live * timeline.page_size, 1)
    share = np.where(live > 0, share, 1.0)
    most_used = _most(at, used, column.count)
    most_cached = _most(at, cached, column.count)
    most_in_flight = _most(at, in_flight, column.count)
    # While an append is pending its pages hold nothing yet: the best of a column is the truth.
    best = _most(at, share, column.count)
    whole = [most.astype(np.int64) for most in (most_used, most_cached, most_in_flight)]
    return whole[0], whole[1], whole[2], best


def _most(at: NDArray[np.int32], values: NDArray[np.generic], count: int) -> NDArray[np.float64]:
    """The most of each column's values; a column without any goes on with the last one before."""
    out = np.zeros(count)
    if not at.size:
        return out
    starts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    out[:] = np.nan
    out[at[starts]] = np.maximum.reduceat(values.astype(np.float64), starts)
    last = np.append(starts[1:], at.size) - 1
    ends = np.full(count, np.nan)
    ends[at[starts]] = values[last]
    known = np.flatnonzero(~np.isnan(out))
    before = known[np.maximum(np.searchsorted(known, np.arange(count), side="right") - 1, 0)]
    return np.where(np.isnan(out), ends[before], out)


def _allocation(
    timeline: Timeline, column: Columns
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    at = column.of(np.asarray(timeline.planned_us, np.int64))
    took = np.asarray(timeline.allocation_us, np.float64)
    p50, p99 = np.full(column.count, np.nan), np.full(column.count, np.nan)
    if not at.size:
        return p50, p99
    starts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    for start, stop in zip(starts, np.append(starts[1:], at.size), strict=True):
        p50[at[start]], p99[at[start]] = np.percentile(took[start:stop], (50, 99))
    return p50, p99


def _hit_rate(lookups: Lookups, bins: Columns) -> NDArray[np.float64]:
    at = bins.of(np.asarray(lookups.at_us, np.int64))
    looked = np.bincount(at, minlength=bins.count)
    found = np.bincount(at, np.asarray(lookups.found, np.float64), minlength=bins.count)
    return np.where(looked > 0, found / np.maximum(looked, 1), np.nan)


def typical_life_s(view: View) -> float:
    """How long a frame that was dropped usually stayed, in axis seconds; without any, the log."""
    lives = view.timeline.lives
    left_us = np.asarray(lives.left_us, np.int64)
    gone = (np.asarray(lives.kind, np.int8) == FRAME) & (np.asarray(lives.end, np.int8) == DROPPED)
    if not gone.any():
        return view.clock.end_s - view.clock.begin_s
    came = view.clock.at(np.asarray(lives.came_us, np.int64)[gone])
    return float(np.median(view.clock.at(left_us[gone]) - came))


def share_floor(view: View) -> float:
    """Where an axis of utilisation begins: a round share below all that is shown."""
    low = float(view.utilisation.min(initial=1.0))
    return min(max(int(low * 10 - 0.5) / 10, 0.0), 0.8)
