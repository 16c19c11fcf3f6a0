"""Which segments can be found by what they hold, so that a context computed once is held once.

Owns: the index of kept segments: for each, a digest over everything from the start of its context
    to its end, the content in full, its pages, and when it was last used.
Guarantees: a digest only says where to look: whatever it collides with, a segment is found only if
    it and everything in front of it hold the same content; a page of a segment that was given up
    cannot be found any more; at most one entry a page, in tables made at construction.
Does not know: what content means, who asks. Whoever keeps a segment says what it holds, in full:
    token ids, or the SHA-256 of all that the model sees of a picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.allocator import PageAllocator
from edgekv.cache.snapshot import EntrySnapshot, IndexCounts, frozen
from edgekv.errors import CacheError

Digest = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """The digest that keys are made with."""
    return hashlib.sha256(data).digest()


@dataclass(slots=True, eq=False)
class Entry:
    """A kept segment, behind everything that its ``parent`` stands for. R = max(rope axes, 1)."""

    parent: Entry | None  # None: the root, the start of every context
    kind: int  # index into KINDS
    content: bytes  # in full, compared on every hit
    pages: NDArray[np.int32]  # (n,)
    num_tokens: int
    span: NDArray[np.int32]  # (R,)
    uniform: bool
    depth: int  # segments up to its end
    end: int  # tokens up to its end
    key: bytes = b""  # the index makes it
    children: list[Entry] = field(default_factory=list)

    def path_pages(self) -> NDArray[np.int32]:
        """(n,) pages of the segments in front of it and its own, in order."""
        parts: list[NDArray[np.int32]] = []
        entry: Entry | None = self
        while entry is not None:
            parts.append(entry.pages)
            entry = entry.parent
        return np.concatenate(parts[::-1])


class SegmentIndex:
    """The kept segments of one pool, as a tree of contexts.

    ``identity`` is what must be equal for keys and values to mean the same: model, geometry, dtype.
    ``share=False`` keeps nothing: every context is private.
    """

    def __init__(
        self,
        allocator: PageAllocator,
        *,
        identity: bytes = b"",
        digest: Digest = sha256,
        share: bool = True,
    ) -> None:
        self._allocator = allocator
        self._digest = digest
        nothing, zero = np.empty(0, np.int32), np.zeros(1, np.int32)
        root = Entry(None, -1, identity, nothing, 0, zero, True, 0, 0, digest(identity))
        self.root = root if share else None  # what an empty context is found by
        self._entries: dict[bytes, Entry] = {}
        self._owners: list[Entry | None] = [None] * allocator.num_pages
        self._depths = np.zeros(allocator.num_pages, np.int32)  # (num_pages,) of kept pages
        # (num_pages,) the lowest is given up first: what was used longest ago, then what is deepest
        self._ranks = np.zeros(allocator.num_pages, np.int64)
        self._clock = 0
        self._num_hits = self._num_misses = self._num_collisions = self._num_given_up = 0

    @property
    def counts(self) -> IndexCounts:
        return IndexCounts(
            segments=len(self._entries),
            hits=self._num_hits,
            misses=self._num_misses,
            collisions=self._num_collisions,
            given_up=self._num_given_up,
        )

    def find(self, behind: Entry, kind: int, content: bytes) -> Entry | None:
        """The kept segment of this content that follows ``behind``."""
        entry = self._entries.get(self._key(behind, kind, content))
        if entry is None or _is(entry, behind, kind, content):
            return entry
        self._num_collisions += 1
        return None

    def keep(self, entry: Entry) -> Entry | None:
        """Let ``entry`` be found behind its kept parent: the entry that now stands for its pages.
        None: another has its place, and the pages stay private."""
        parent = entry.parent
        assert parent is not None, "the root is made here"
        self._num_misses += 1
        entry.key = self._key(parent, entry.kind, entry.content)
        there = self._entries.get(entry.key)
        if there is not None:
            same = _is(there, parent, entry.kind, entry.content)
            return there if same and np.array_equal(there.pages, entry.pages) else None
        if self._allocator.is_kept(entry.pages).any():
            return None
        self._allocator.keep(entry.pages)
        self._entries[entry.key] = entry
        parent.children.append(entry)
        for page in entry.pages.tolist():
            self._owners[page] = entry
        self._depths[entry.pages] = entry.depth
        return entry

    def use(self, entry: Entry) -> None:
        """Take a kept segment once more: its pages are held once more from now on."""
        if self._entries.get(entry.key) is not entry:
            raise CacheError("a segment was given up before it was taken")
        self._allocator.hold(entry.pages)
        self._num_hits += 1

    def touch(self, pages: NDArray[np.int32]) -> None:
        """The context in ``pages`` (n,) is in use now: it is given up after all that are not."""
        self._clock += self._allocator.num_pages + 1  # no context is deeper
        self._ranks[pages] = self._clock - self._depths[pages]

    def give_up(self, num_pages: int) -> NDArray[np.int32]:
        """Forget the segments used longest ago, the last of a context first, until ``num_pages``
        cached pages, of which there must be so many, are free: (n,) all pages forgotten."""
        cached = self._allocator.cached_pages()
        ranks = self._ranks[cached]
        lowest = np.argpartition(ranks, num_pages - 1)[:num_pages]  # each frees itself at least
        order = cached[lowest[np.argsort(ranks[lowest])]]
        wanted = self._allocator.num_free + num_pages
        gone: list[NDArray[np.int32]] = []
        for page in order.tolist():
            if self._allocator.num_free >= wanted:
                break
            if (entry := self._owners[page]) is not None:
                self._forget(entry, gone)
        return np.concatenate(gone)

    def clear(self) -> NDArray[np.int32]:
        """Forget everything: (n,) all pages forgotten."""
        gone = [np.empty(0, np.int32)]
        for entry in list(self._entries.values()):
            if entry.depth == 1:
                self._forget(entry, gone)
        return np.concatenate(gone)

    def snapshot(self) -> tuple[EntrySnapshot, ...]:
        """All entries, parents first, as read-only copies."""
        return tuple(
            EntrySnapshot(entry.key, _parent_key(entry), entry.depth, frozen(entry.pages))
            for entry in sorted(self._entries.values(), key=lambda entry: entry.depth)
        )

    def _key(self, behind: Entry, kind: int, content: bytes) -> bytes:
        return self._digest(behind.key + bytes((kind,)) + content)

    def _forget(self, entry: Entry, gone: list[NDArray[np.int32]]) -> None:
        """Nothing behind a forgotten segment can be found any more: forget all of it."""
        if entry.parent is not None:
            entry.parent.children.remove(entry)
        waiting = [entry]
        while waiting:
            entry = waiting.pop()
            waiting += entry.children
            entry.children = []
            del self._entries[entry.key]
            for page in entry.pages.tolist():
                self._owners[page] = None
            self._allocator.forget(entry.pages)
            self._num_given_up += 1
            gone.append(entry.pages)


def _is(entry: Entry, behind: Entry, kind: int, content: bytes) -> bool:
    """Whether the entry holds this, in full: its parents were compared when they were found."""
    return entry.parent is behind and entry.kind == kind and entry.content == content


def _parent_key(entry: Entry) -> bytes | None:
    return entry.parent.key if entry.parent is not None and entry.depth > 1 else None
