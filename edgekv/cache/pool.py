"""What the sequences of one pool share: allocator, index, limits, and the list of open ones.

Owns: nothing of its own; it is how sequences reach what their ``PageCache`` owns.
Guarantees: nothing but the observer is ever replaced. Does not know: what sequences do with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.allocator import PageAllocator
from edgekv.cache.cross import CrossCache
from edgekv.cache.heat import PageHeat
from edgekv.cache.identity import SegmentIndex
from edgekv.cache.observer import CacheObserver
from edgekv.cache.summaries import FrameSummaries
from edgekv.config import KVGeometry
from edgekv.errors import OutOfPagesError

if TYPE_CHECKING:
    from edgekv.cache.sequence import Sequence


@dataclass(slots=True)
class PoolState:
    """What the sequences of one pool share."""

    allocator: PageAllocator
    index: SegmentIndex
    geometry: KVGeometry
    summaries: FrameSummaries
    heat: PageHeat
    observer: CacheObserver
    max_pages: int  # most pages one sequence may hold
    max_positions: int | None  # positions must stay below, None = no limit
    shiftable: bool  # False: positions are absolute and segments cannot be dropped
    cross: CrossCache | None = None  # None: the model has no cross-attention
    sequences: dict[int, Sequence] = field(default_factory=dict)  # open ones by id
    ids: Iterator[int] = field(default_factory=itertools.count)

    @property
    def num_axes(self) -> int:
        """Position axes that are counted: at least one, also in models without rotation."""
        return max(self.geometry.num_rope_axes, 1)

    def allocate(self, num_pages: int) -> NDArray[np.int32]:
        """Take pages, all or nothing: free ones, then cached ones, given up for it.

        Raises OutOfPagesError when there are fewer; nothing is given up then.
        """
        self.make_free(num_pages)
        return self.allocator.allocate(num_pages)

    def make_free(self, num_pages: int) -> None:
        """Give up cached pages until ``num_pages`` are free. Raises OutOfPagesError when there are
        fewer; nothing is given up then."""
        missing = num_pages - self.allocator.num_free
        if missing > self.allocator.num_cached:
            raise OutOfPagesError(num_pages, self.allocator.counts.available)
        if missing > 0:
            self.observer.shared("given up", None, self.index.give_up(missing))
