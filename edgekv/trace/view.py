"""A timeline at a picture's resolution: what HTML and PNG both draw.

Owns: the columns ("buckets") of a picture and what is shown of each.
Guarantees: at most ``max_columns`` x ``max_rows`` cells however long the log; a question is seen
    even if it lasted less than a column; what was left out is said in words.
Does not know: colours, fonts, formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.clock import StreamClock, stream_clock
from edgekv.trace.events import ANSWER, FRAME, TEXT
from edgekv.trace.lives import CACHED, DROPPED
from edgekv.trace.timeline import Timeline

MAX_COLUMNS, MAX_ROWS, MAX_CELLS = 1600, 512, 300_000
MAX_BARS = 3000  # bars of sequences; more are merged


@dataclass(frozen=True, slots=True)
class Runs:
    """Stretches of equal cells in the page map, row after row."""

    row: NDArray[np.int32]  # (n,)
    start: NDArray[np.int32]  # (n,) first column
    stop: NDArray[np.int32]  # (n,) behind the last column
    life: NDArray[np.int32]  # (n,) number of the segment shown


@dataclass(frozen=True, slots=True)
class Bars:
    """Sequences as bars in lanes; questions share the last lane."""

    lane: NDArray[np.int32]  # (n,)
    from_s: NDArray[np.float64]  # (n,)
    to_s: NDArray[np.float64]  # (n,)
    is_question: NDArray[np.bool_]  # (n,)
    sequence: NDArray[np.int64]  # (n,)
    parent: NDArray[np.int64]  # (n,) -1 = none
    num_answer_tokens: NDArray[np.int64]  # (n,)


@dataclass(frozen=True, slots=True)
class View:
    """Everything a picture shows. C columns of equal length in axis seconds."""

    timeline: Timeline
    clock: StreamClock
    num_columns: int
    num_rows: int
    runs: Runs
    pages_used: NDArray[np.int64]  # (C,) most pages live or in flight in the column
    pages_cached: NDArray[np.int64]  # (C,) most, on top of those in use
    pages_in_flight: NDArray[np.int64]  # (C,) most
    utilisation: NDArray[np.float64]  # (C,) best share of live slots that hold a token
    frames_left: NDArray[np.int64]  # (C,) frames that live contexts let go
    allocation_p50_us: NDArray[np.float64]  # (C,) NaN = no append in the column
    allocation_p99_us: NDArray[np.float64]  # (C,)
    bars: Bars
    num_lanes: int

    @property
    def column_s(self) -> float:
        """Axis seconds of one column."""
        return (self.clock.end_s - self.clock.begin_s) / self.num_columns

    @property
    def pages_per_row(self) -> float:
        return self.timeline.num_pages / self.num_rows


def make_view(timeline: Timeline) -> View:
    """Reduce a timeline."""
    clock = stream_clock(timeline)
    num_rows = min(timeline.num_pages, MAX_ROWS)
    num_columns = max(min(MAX_COLUMNS, MAX_CELLS // num_rows), 100)
    column = _Columns(clock, num_columns)
    used, cached, in_flight, utilisation = _levels(timeline, column)
    p50, p99 = _allocation(timeline, column)
    bars, num_lanes = _bars(timeline, clock)
    return View(
        timeline=timeline,
        clock=clock,
        num_columns=num_columns,
        num_rows=num_rows,
        runs=_runs(timeline, column, num_rows),
        pages_used=used,
        pages_cached=cached,
        pages_in_flight=in_flight,
        utilisation=utilisation,
        frames_left=_frames_left(timeline, column),
        allocation_p50_us=p50,
        allocation_p99_us=p99,
        bars=bars,
        num_lanes=num_lanes,
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    clock: StreamClock
    count: int

    def of(self, us: NDArray[np.int64]) -> NDArray[np.int32]:
        """The column of each log time (n,)."""
        begin, end = self.clock.begin_s, self.clock.end_s
        place = (self.clock.at(us) - begin) / (end - begin) * self.count
        return np.clip(place, 0, self.count - 1).astype(np.int32)


def _runs(timeline: Timeline, column: _Columns, num_rows: int) -> Runs:
    """Paint the spans in the order they came, questions last, and read the rows off again."""
    spans = timeline.holders.spans
    page = np.asarray(spans.page, np.int64)
    if not page.size:
        empty = np.empty(0, np.int32)
        return Runs(empty, empty, empty, empty)
    life = np.asarray(spans.life, np.int64)
    row = page * num_rows // timeline.num_pages
    to_us = np.asarray(spans.to_us, np.int64)
    to_us = np.where(to_us < 0, timeline.end_us, to_us)
    first = column.of(np.asarray(spans.from_us, np.int64))
    last = column.of(to_us)
    # A span reaches into the column where it ended only if it fills no other.
    kind = np.asarray(timeline.lives.kind, np.int8)[life]
    still = np.asarray(timeline.lives.left_us, np.int64)[life] < 0
    still &= (kind != CACHED) | (to_us == timeline.end_us)
    stop = np.where(still | (last == first), last + 1, last)
    is_asked = (kind == TEXT) | (kind == ANSWER)
    order = np.argsort((kind == TEXT) + 2 * (kind == ANSWER), kind="stable")
    grid = np.full((num_rows, column.count), -1, np.int32)
    short = stop - first == 1
    for want_short in (False, True):
        # Long spans one by one, then all of one column at once; questions come after both.
        for asked in (False, True):
            mine = order[(short[order] == want_short) & (is_asked[order] == asked)]
            if want_short:
                grid[row[mine], first[mine]] = life[mine]
            else:
                for k in mine.tolist():
                    grid[row[k], first[k] : stop[k]] = life[k]
    edges = np.ones(grid.shape, np.bool_)
    edges[:, 1:] = grid[:, 1:] != grid[:, :-1]
    at_row, at_start = np.nonzero(edges)
    at_stop = np.append(at_start[1:], 0)
    at_stop[at_stop == 0] = column.count
    shown = grid[at_row, at_start]
    held = shown >= 0
    return Runs(
        at_row[held].astype(np.int32),
        at_start[held].astype(np.int32),
        at_stop[held].astype(np.int32),
        shown[held],
    )


def _levels(
    timeline: Timeline, column: _Columns
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Most used pages, most cached, most in flight and best utilisation by column, held where
    nothing happens."""
    at = column.of(np.asarray(timeline.at_us, np.int64))
    free = np.asarray(timeline.free, np.int64)
    in_flight = np.asarray(timeline.in_flight, np.int64)
    cached = np.asarray(timeline.cached, np.int64)
    used = timeline.num_pages - free - cached
    live = used - in_flight
    share = np.asarray(timeline.tokens, np.int64) / np.maximum(live * timeline.page_size, 1)
    share = np.where(live > 0, share, 1.0)
    most_used = _reduced(at, used, column.count, np.maximum)
    most_cached = _reduced(at, cached, column.count, np.maximum)
    most_in_flight = _reduced(at, in_flight, column.count, np.maximum)
    # While an append is pending its pages hold nothing yet: the best of a column is the truth.
    best = _reduced(at, share, column.count, np.maximum)
    whole = [most.astype(np.int64) for most in (most_used, most_cached, most_in_flight)]
    return whole[0], whole[1], whole[2], best


def _reduced(
    at: NDArray[np.int32], values: NDArray[np.generic], count: int, how: np.ufunc
) -> NDArray[np.float64]:
    """``how`` over each column's values; a column without any goes on with the last one before."""
    out = np.zeros(count)
    if not at.size:
        return out
    starts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
    out[:] = np.nan
    out[at[starts]] = how.reduceat(values.astype(np.float64), starts)
    last = np.append(starts[1:], at.size) - 1
    ends = np.full(count, np.nan)
    ends[at[starts]] = values[last]
    known = np.flatnonzero(~np.isnan(out))
    before = known[np.maximum(np.searchsorted(known, np.arange(count), side="right") - 1, 0)]
    return np.where(np.isnan(out), ends[before], out)


def _frames_left(timeline: Timeline, column: _Columns) -> NDArray[np.int64]:
    drops = [d for d in timeline.drops if not timeline.sequences[d.sequence].is_question]
    at = column.of(np.array([drop.at_us for drop in drops], np.int64))
    weights = np.array([drop.num_frames for drop in drops], np.float64)
    return np.bincount(at, weights, minlength=column.count).astype(np.int64)


def _allocation(
    timeline: Timeline, column: _Columns
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


def _bars(timeline: Timeline, clock: StreamClock) -> tuple[Bars, int]:
    """Contexts and forks in as few lanes as they fit, questions in one lane below."""
    lives = [life for life in timeline.sequences.values() if not life.is_safeguard]
    opened = clock.at(np.array([life.opened_us for life in lives], np.int64))
    closed = clock.at(
        np.array(
            [life.closed_us if life.closed_us >= 0 else timeline.end_us for life in lives], np.int64
        )
    )
    asked = np.array([life.is_question for life in lives], np.bool_)
    lanes, ends = np.zeros(len(lives), np.int32), list[float]()
    for k in np.flatnonzero(~asked):
        free = [lane for lane, end in enumerate(ends) if end <= opened[k]]
        lane = free[0] if free else len(ends)
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = float(closed[k])
        lanes[k] = lane
    num_lanes = len(ends) + bool(asked.any())
    lanes[asked] = num_lanes - 1
    keep = np.arange(len(lives))
    if len(lives) > MAX_BARS:  # contexts all, questions evenly thinned out
        questions = np.flatnonzero(asked)
        some = questions[np.linspace(0, questions.size - 1, MAX_BARS).astype(int)]
        keep = np.sort(np.append(np.flatnonzero(~asked)[:MAX_BARS], some))
    bars = Bars(
        lanes[keep],
        opened[keep],
        closed[keep],
        asked[keep],
        np.array([lives[k].id for k in keep], np.int64),
        np.array([lives[k].parent for k in keep], np.int64),
        np.array([lives[k].num_answer_tokens for k in keep], np.int64),
    )
    return bars, max(num_lanes, 1)


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
