"""Keys and values that cross-attention reads: one copy of each input, by its content.

Owns: the pages of the cross pools, which inputs lie in them, and who holds each.
Guarantees: pages are written once, before anybody can find them, and then only read; an input that
    is held is never evicted; inputs that nobody holds stay, the least recently used leaves first;
    an operation that fails changes nothing; live, cached and free pages sum to the pool.
Does not know: what an input is, who computes it, the memory of the pools. Not safe for use from two
    threads; its owner serialises.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.allocator import PageAllocator
from edgekv.cache.observer import InputChange, InputObserver
from edgekv.cache.snapshot import frozen
from edgekv.config import KVGeometry
from edgekv.errors import CacheError, OutOfPagesError
from edgekv.uncopied import uncopied


@dataclass(frozen=True, slots=True)
class CrossCounts:
    """A cross cache at one moment; ``live + cached + free == num_pages``."""

    num_pages: int
    live: int  # pages of inputs that somebody holds
    cached: int  # pages of inputs kept for whoever asks again
    free: int
    num_inputs: int
    num_hits: int
    num_misses: int
    num_evicted: int  # inputs


class CrossInput:
    """One input in its pages. Held by whoever got it, by every sequence that sees it, and by every
    step in flight of those."""

    def __init__(
        self, cache: CrossCache, key: bytes, pages: NDArray[np.int32], num_states: int
    ) -> None:
        self.key = key
        self.num_states = num_states
        self.num_holders = 1
        self._cache = cache
        size = cache.geometry.page_size
        rows = np.stack([pages, np.full_like(pages, size)], axis=1)
        rows[-1, 1] = num_states - (len(pages) - 1) * size
        self.table = frozen(rows)  # (n, 2) int32: page id, valid tokens

    @property
    def pages(self) -> NDArray[np.int32]:
        """(n,) int32 page ids, in order."""
        return self.table[:, 0]

    def slots(self, num_states: int) -> NDArray[np.int32]:
        """(num_states,) where each encoder state's keys and values go, -1 = nowhere."""
        size = self._cache.geometry.page_size
        every = self.pages[:, None] * np.int32(size) + np.arange(size, dtype=np.int32)
        slots = np.full(num_states, -1, dtype=np.int32)
        slots[: self.num_states] = every.ravel()[: self.num_states]
        return slots

    def retain(self) -> CrossInput:
        """One more holder."""
        self._cache.retain(self)
        return self

    def release(self) -> None:
        """One holder less. Raises CacheError when nobody holds it."""
        self._cache.release(self)


@uncopied("its pages are counted once")
class CrossCache:
    """All inputs of one set of cross pools."""

    def __init__(self, geometry: KVGeometry, num_pages: int) -> None:
        self.geometry = geometry
        self._allocator = PageAllocator(num_pages)
        self._found: dict[bytes, CrossInput] = {}
        self._idle: dict[bytes, CrossInput] = {}  # found and held by nobody, oldest use first
        self._num_idle_pages = 0
        self._num_hits = self._num_misses = self._num_evicted = 0
        self._num_unpublished = 0
        self._observer: InputObserver | None = None

    def observe(self, observer: InputObserver | None) -> None:
        """Tell ``observer`` of every change from now on; None = nobody."""
        self._observer = observer

    @property
    def inputs(self) -> tuple[CrossInput, ...]:
        """Those that can be found: first what is held, then the rest, least recently used first."""
        held = tuple(source for source in self._found.values() if source.num_holders)
        return (*held, *self._idle.values())

    @property
    def is_writing(self) -> bool:
        """Whether an input has pages and is not published yet."""
        return self._num_unpublished > 0

    @property
    def counts(self) -> CrossCounts:
        """Counts as of now."""
        pages = self._allocator.counts
        return CrossCounts(
            num_pages=pages.num_pages,
            live=pages.live - self._num_idle_pages,
            cached=self._num_idle_pages,
            free=pages.free,
            num_inputs=len(self._found),
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_evicted=self._num_evicted,
        )

    def find(self, key: bytes) -> CrossInput | None:
        """The input with this key, held once more; None when there is none."""
        found = self._found.get(key)
        if found is None:
            self._num_misses += 1
            return None
        self._num_hits += 1
        if not found.num_holders:
            return found.retain()
        self._tell("found", found.retain())
        return found

    def check_room(self, num_states: int) -> None:
        """Raise OutOfPagesError unless ``reserve`` would work now."""
        if num_states < 1:
            raise ValueError(f"an input has at least 1 encoder state, got {num_states}")
        room = self._allocator.num_free + self._num_idle_pages
        if (needed := self.geometry.pages_for(num_states)) > room:
            raise OutOfPagesError(needed, room)

    def reserve(self, key: bytes, num_states: int) -> CrossInput:
        """Pages for an input, held once, that nobody finds before ``publish``.

        Evicts what nobody holds, as far as needed. Raises OutOfPagesError when what is held leaves
        too few pages.
        """
        self.check_room(num_states)
        num_pages = self.geometry.pages_for(num_states)
        while self._allocator.num_free < num_pages:
            self._evict(next(iter(self._idle.values())))
        source = CrossInput(self, key, self._allocator.allocate(num_pages), num_states)
        self._num_unpublished += 1
        self._tell("reserved", source)
        return source

    def publish(self, written: CrossInput) -> None:
        """The pages hold what they should: let others find them. Raises CacheError when an input
        with this key is there already."""
        if written.key in self._found:
            raise CacheError("an input with this content is in the cross cache already")
        self._require_held(written)
        self._found[written.key] = written
        self._num_unpublished -= 1
        self._tell("published", written)

    def retain(self, source: CrossInput) -> None:
        """One more holder of an input that is held or can be found."""
        if source.num_holders:
            source.num_holders += 1
            return
        if self._idle.get(source.key) is not source:
            raise CacheError("this input has left the cross cache")
        del self._idle[source.key]
        self._num_idle_pages -= len(source.table)
        source.num_holders = 1
        self._tell("found", source)

    def release(self, source: CrossInput) -> None:
        """One holder less; the last one leaves it cached, or free if it was never published."""
        self._require_held(source)
        source.num_holders -= 1
        if source.num_holders:
            return
        if self._found.get(source.key) is source:
            self._idle[source.key] = source
            self._num_idle_pages += len(source.table)
            self._tell("let go", source)
        else:
            self._num_unpublished -= 1
            self._allocator.release(source.pages.copy())
            self._tell("withdrawn", source)

    def _evict(self, source: CrossInput) -> None:
        del self._found[source.key], self._idle[source.key]
        self._num_idle_pages -= len(source.table)
        self._num_evicted += 1
        self._allocator.release(source.pages.copy())
        self._tell("given up", source)

    def _tell(self, how: InputChange, source: CrossInput) -> None:
        if self._observer is not None:
            self._observer.input_changed(how, source)

    def _require_held(self, source: CrossInput) -> None:
        if source.num_holders < 1:
            raise CacheError("this input is held by nobody")


def content_key(model_sha256: str, content: NDArray[np.generic]) -> bytes:
    """(32,) bytes, SHA-256 over the model, the array's type and shape and all of its numbers."""
    digest = hashlib.sha256(f"{model_sha256} {content.dtype.str} {content.shape} ".encode())
    digest.update(np.ascontiguousarray(content).data)
    return digest.digest()
