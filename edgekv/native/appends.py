"""Tokens that join a sequence: planned by one native call, counted by another.

Owns: the binding of ``edgekv_append_*`` (plugins/cpu/append.h).
Guarantees: what a plan is made of is checked before anything changes; a call that does not return
    DONE has changed nothing.
Does not know: what segments and pages are, who else holds them; what a refusal is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.native.layout import LayoutState
from edgekv.native.ledger import Ledger
from edgekv.native.library import native_call
from edgekv.native.memory import address
from edgekv.uncopied import uncopied

DONE, EMPTY, OTHER_KIND, OTHER_INDEX, NEGATIVE, NO_ROOM, ADVANCE, NOT_FREE = range(8)
LARGEST = 2**31 - 1  # of a position, and of where the next one would be
_P, _N, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_LABEL = [_I, _N, _I, _N]  # kind, tokens, whether it extends, index


class _State(ctypes.Structure):
    """``EdgekvAppend``."""

    _fields_ = (
        ("layout", LayoutState),
        ("ledger", _P),
        *((name, _N) for name in ("page_size", "max_pages", "end_position")),
        ("taken", _P),
        *((name, _N) for name in ("num_taken", "num_drawn", "num_tokens", "tail_tokens")),
        *((name, _N) for name in ("copies", "extends", "uniform")),
    )
    layout: LayoutState
    num_taken: int
    num_drawn: int
    tail_tokens: int
    copies: int
    uniform: int
    taken: int


class Request(NamedTuple):
    """What is to be planned for ``num_tokens`` tokens. R position axes."""

    kind: int
    num_tokens: int
    extend: bool
    frame: int  # -1 = that of the segment that is extended
    relative: NDArray[np.int64] | None  # (R, num_tokens) C-contiguous; None: they count up
    advance: NDArray[np.int64] | None  # (R,) >= 0; None: behind the largest position of any axis
    runs: Sequence[tuple[int, int]]  # start, stop, in bounds


class Planned(NamedTuple):
    """A plan's arrays, its own."""

    slots: NDArray[np.int32]  # (n,)
    query_indices: NDArray[np.int32]  # (n,)
    kv_limits: NDArray[np.int32]  # (n,)
    advance: NDArray[np.int32]  # (R,)
    taken: NDArray[np.int32]  # (k,) the copy's target first
    positions: NDArray[np.int64]  # (R, n)


@uncopied("native calls know where it is")
class AppendPlanner:
    """Plans the appends to one sequence, whose memory stays where it is."""

    def __init__(
        self,
        ledger: Ledger,
        entries: NDArray[np.int32],  # (max_pages, 2 + 2 R) id, valid, shifts, where written
        segments: NDArray[np.void],  # (max_pages,) fields as in ``segment_dtype``
        next_position: NDArray[np.int32],  # (R,)
        *,
        page_size: int,
        end_position: int,  # positions stay below it, LARGEST at most
    ) -> None:
        self._held = (ledger, entries, segments, next_position)
        self._num_axes, self._page_size = next_position.size, page_size
        layout = LayoutState(
            entries=address(entries),
            num_axes=next_position.size,
            segments=address(segments),
            segment_bytes=segments.itemsize,
            next_position=address(next_position),
        )
        self._state = _State(
            layout=layout,
            ledger=ledger.at,
            page_size=page_size,
            max_pages=len(entries),
            end_position=end_position,
        )
        self._layout = self._state.layout  # within it
        self._at = ctypes.addressof(self._state)
        self._ledger = ledger
        self._pages, self._plan, self._commit = _calls()

    @property
    def num_taken(self) -> int:
        """Pages that the last plan took, or would have taken."""
        return self._state.num_taken

    @property
    def num_drawn(self) -> int:
        """The first of the planned pages that are the sequence's own."""
        return self._state.num_drawn

    @property
    def tail_tokens(self) -> int:
        """Of the planned tokens, those in the page that the sequence ends with."""
        return self._state.tail_tokens

    @property
    def copies(self) -> bool:
        """Whether that page is copied to the first of the planned ones."""
        return bool(self._state.copies)

    @property
    def uniform(self) -> bool:
        """Whether every planned token advances every axis by one."""
        return bool(self._state.uniform)

    def describe(self, num_pages: int, num_segments: int, num_tokens: int) -> None:
        """Say what the sequence is now: for all calls until it changes."""
        layout = self._layout
        layout.num_pages, layout.num_segments, layout.num_tokens = (
            num_pages,
            num_segments,
            num_tokens,
        )

    def num_pages(self, kind: int, num_tokens: int, *, extend: bool) -> int:
        """Pages that a plan would take, or -code."""
        return self._pages(self._at, kind, num_tokens, extend, -1)

    def plan(self, request: Request, own: NDArray[np.int32]) -> int:
        """Take the pages, those of ``own`` (n,) first, and stage their entries: a code."""
        kind, num_tokens, extend, frame, relative, advance, runs = request
        most_pages = 1 + -(-num_tokens // self._page_size)
        tokens = np.empty(3 * num_tokens + self._num_axes + most_pages, dtype=np.int32)
        positions = np.empty((self._num_axes, num_tokens), dtype=np.int64)
        pairs = [number for run in runs for number in run]
        own = np.ascontiguousarray(own, dtype=np.int32)
        self._filled = (tokens, positions)
        return self._plan(
            self._at,
            kind,
            num_tokens,
            extend,
            frame,
            None if relative is None else address(relative),
            None if advance is None else address(advance),
            (_N * len(pairs))(*pairs) if pairs else None,
            len(runs),
            address(own) if own.size else None,
            own.size,
            address(tokens),
            address(positions),
        )

    def planned(self) -> Planned:
        """The arrays of the last plan."""
        tokens, positions = self._filled
        n = positions.shape[1]
        start = 3 * n + self._num_axes
        return Planned(
            tokens[:n],
            tokens[n : 2 * n],
            tokens[2 * n : 3 * n],
            tokens[3 * n : start],
            tokens[start : start + self._state.num_taken],
            positions,
        )

    def give_back(self) -> None:
        """Undo ``plan``, if nothing has happened since."""
        state = self._state
        self._ledger.release_at(
            state.taken + 4 * state.num_drawn, state.num_taken - state.num_drawn
        )

    def commit(self, kind: int, segment_id: int, index: int, time_s: float) -> None:
        """Count the planned tokens in the segments, the entries and the next position."""
        code = self._commit(self._at, kind, segment_id, index, time_s)
        assert code == DONE, "what a copy replaces is held until it is replaced"


@cache
def _calls() -> tuple[Callable[..., int], ...]:
    return (
        native_call("append_pages", [_P, *_LABEL], _N),
        native_call("append_plan", [_P, *_LABEL, *[_P] * 3, _N, _P, _N, _P, _P]),
        native_call("append_commit", [_P, _I, _N, _N, ctypes.c_double]),
    )
