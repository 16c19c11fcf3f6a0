"""What the sequences of one pool share: the allocator, the limits, and the list of open ones.

Owns: nothing of its own; it is how sequences reach what their ``PageCache`` owns.
Guarantees: nothing but the observer is ever replaced. Does not know: what sequences do with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgekv.cache.allocator import PageAllocator
from edgekv.cache.cross import CrossCache
from edgekv.cache.observer import CacheObserver
from edgekv.cache.summaries import FrameSummaries
from edgekv.config import KVGeometry

if TYPE_CHECKING:
    from edgekv.cache.sequence import Sequence


@dataclass(slots=True)
class PoolState:
    """What the sequences of one pool share."""

    allocator: PageAllocator
    geometry: KVGeometry
    summaries: FrameSummaries
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
