"""Sequences as bars in lanes: a session with its questions in one, a tier's probes in another.

Guarantees: as few lanes as fit; all contexts are shown, questions and probes evenly thinned out.
Does not know: colours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.trace.clock import StreamClock
from edgekv.trace.lives import SequenceLife
from edgekv.trace.timeline import Timeline

_PROBES = "probes"
MAX_BARS = 3000  # of contexts, and of the rest
CONTEXT, FORK, QUESTION, RECALLING, PROBE = range(5)  # RECALLING: a question that brought back


@dataclass(frozen=True, slots=True)
class Bars:
    """Columns of bars."""

    lane: NDArray[np.int32]  # (n,)
    from_s: NDArray[np.float64]  # (n,)
    to_s: NDArray[np.float64]  # (n,)
    busy_from_s: NDArray[np.float64]  # (n,) when its first frame came, NaN = none did
    busy_to_s: NDArray[np.float64]  # (n,) when the last one did
    role: NDArray[np.uint8]  # (n,) CONTEXT, FORK, QUESTION, RECALLING or PROBE
    session: NDArray[np.int64]  # (n,) whose it is, 0 = nobody's
    sequence: NDArray[np.int64]  # (n,)
    parent: NDArray[np.int64]  # (n,) -1 = none
    num_answer_tokens: NDArray[np.int64]  # (n,)
    names: tuple[str, ...]  # of the lanes, at least one
    lane_of: dict[int, int]  # by sequence, of those too that were thinned out

    @property
    def sessions(self) -> tuple[str, ...]:
        """Names of the lanes without that of the probes, which is the last; at least one."""
        return self.names[:-1] if self.names[-1] == _PROBES and self.names[1:] else self.names


def make_bars(timeline: Timeline, clock: StreamClock) -> Bars:
    """Contexts in as few lanes as they fit, questions in their session's, probes below."""
    lives = [life for life in timeline.sequences.values() if _role(life) is not None]
    role = np.array([_role(life) for life in lives], np.uint8)
    session = np.array([life.session for life in lives], np.int64)
    opened = clock.at(np.array([life.opened_us for life in lives], np.int64))
    ends = [life.closed_us if life.closed_us >= 0 else timeline.end_us for life in lives]
    closed = clock.at(np.array(ends, np.int64))
    lane, names = _lanes(role, session, opened, closed)
    keep = np.flatnonzero(role <= FORK)[:MAX_BARS]
    for others in (QUESTION, RECALLING, PROBE):
        some = np.flatnonzero(role == others)
        if some.size > MAX_BARS:
            some = some[np.linspace(0, some.size - 1, MAX_BARS).astype(int)]
        keep = np.append(keep, some)
    return Bars(
        lane[keep],
        opened[keep],
        closed[keep],
        _when([life.first_frame_us for life in lives], clock)[keep],
        _when([life.last_frame_us for life in lives], clock)[keep],
        role[keep],
        session[keep],
        np.array([lives[k].id for k in keep], np.int64),
        np.array([lives[k].parent for k in keep], np.int64),
        np.array([lives[k].num_answer_tokens for k in keep], np.int64),
        names,
        {life.id: number for life, number in zip(lives, lane.tolist(), strict=True)},
    )


def _when(times_us: list[int], clock: StreamClock) -> NDArray[np.float64]:
    us = np.array(times_us, np.int64)
    return np.where(us < 0, np.nan, clock.at(us))


def _role(life: SequenceLife) -> int | None:
    if life.is_question:
        return RECALLING if life.num_recalled else QUESTION
    if life.is_probe:
        return PROBE
    if not life.is_context:
        return None
    return FORK if life.is_fork else CONTEXT


def _lanes(
    role: NDArray[np.uint8],
    session: NDArray[np.int64],
    opened: NDArray[np.float64],
    closed: NDArray[np.float64],
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    lanes, ends = np.full(role.size, -1, np.int32), list[float]()
    for k in np.flatnonzero(role <= FORK):
        free = [lane for lane, end in enumerate(ends) if end <= opened[k]]
        lane = free[0] if free else len(ends)
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = float(closed[k])
        lanes[k] = lane
    contexts = np.flatnonzero(role <= FORK)
    where = dict(zip(session[contexts].tolist(), lanes[contexts].tolist(), strict=True))
    is_question = (role == QUESTION) | (role == RECALLING)
    for k in np.flatnonzero(is_question):
        lanes[k] = where.get(int(session[k]), -1)
    names = [_name(session[contexts][lanes[contexts] == lane]) for lane in range(len(ends))]
    for rest, name in ((is_question & (lanes < 0), "asked"), (role == PROBE, _PROBES)):
        if rest.any():
            lanes[rest] = len(names)
            names.append(name)
    return lanes, tuple(names) or ("",)


def _name(sessions: NDArray[np.int64]) -> str:
    """Of a lane with the contexts of ``sessions`` (n,)."""
    first, last = int(sessions.min()), int(sessions.max())
    return f"session {first}" if first == last else "sessions"
