"""Values that describe a cache at one moment: counts, and read-only copies of everything it knows.

Owns: the snapshot types. ``check`` judges them, people and traces read them.
Guarantees: nothing in a snapshot changes, whatever happens to the cache it was taken from.
Does not know: how the cache works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


def frozen(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A read-only copy."""
    twin: NDArray[Scalar] = array.copy()
    twin.flags.writeable = False
    return twin


@dataclass(frozen=True, slots=True)
class PageCounts:
    """How many pages are in each state; ``free + live + cached + in_flight == num_pages``."""

    num_pages: int
    free: int
    live: int
    cached: int
    in_flight: int
    peak: int  # most pages that were live or in flight at any one time

    @property
    def available(self) -> int:
        """Pages that an allocation can have: free ones, and cached ones given up for it."""
        return self.free + self.cached


@dataclass(frozen=True, slots=True)
class IndexCounts:
    """What came of looking for segments by content, since the cache was made."""

    segments: int  # that can be found now
    hits: int  # segments taken instead of computed
    misses: int  # segments computed that were looked for
    collisions: int  # digests that led to other content, which was not used
    given_up: int  # segments forgotten for the pages they were cached in


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorSnapshot:
    """An allocator at one moment."""

    counts: PageCounts
    free: NDArray[np.int32]  # (free,) the free stack, top first
    refs: NDArray[np.int32]  # (num_pages,) holders
    fences: NDArray[np.int32]  # (num_pages,) uses by steps in flight
    kept: NDArray[np.bool_]  # (num_pages,) can be found by what they hold
    steps: tuple[NDArray[np.int32], ...]  # of each step in flight, what its rows name


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSnapshot:
    """A sequence at one moment. R = max(rope axes, 1)."""

    id: int
    num_tokens: int
    next_position: NDArray[np.int32]  # (R,)
    # (num_pages, 2 + 2R): page id, valid tokens, shifts, written bases
    page_table: NDArray[np.int32]
    segments: NDArray[np.void]  # (num_segments,) fields as in segment_dtype
    pending_pages: NDArray[np.int32]  # (k,) pages that a pending append holds
    reserved_pages: NDArray[np.int32]  # (k,) pages held for appends to come, ascending
    aside_pages: NDArray[np.int32]  # (k,) pages held of what was set aside
    # (n,) pages of the first segments, through which what follows can be found; None: private
    found_by: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EntrySnapshot:
    """A segment that can be found, at one moment."""

    key: bytes
    parent: bytes | None  # key of the segment in front of it, None = it is the first
    depth: int  # 1 = the first of its context
    pages: NDArray[np.int32]  # (n,)


@dataclass(frozen=True, slots=True, eq=False)
class CacheSnapshot:
    """A cache at one moment."""

    page_size: int
    shiftable: bool
    allocator: AllocatorSnapshot
    sequences: tuple[SequenceSnapshot, ...]  # open ones, in the order they were opened
    entries: tuple[EntrySnapshot, ...]  # parents first
