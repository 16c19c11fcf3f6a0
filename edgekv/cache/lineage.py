"""By which kept segment others can find a context, and it what others have computed.

Owns: the entry of the index that stands for one context; None = the context is private.
Guarantees: only a context whose last segment is that entry's finds, takes or keeps; a private one
    stays private.
Does not know: what content means, what makes a context another than its contents tell: whoever
    changes it says so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.identity import Entry, SegmentIndex
from edgekv.cache.layout import Layout
from edgekv.errors import CacheError


class Lineage:
    """The place of ``layout`` in ``index``. ``entry`` is that of its last segment, or None."""

    def __init__(self, index: SegmentIndex, layout: Layout, entry: Entry | None) -> None:
        self._index = index
        self._layout = layout
        self.entry = entry

    @property
    def reaches_end(self) -> bool:
        """Whether the last segment is the one that the index knows this context by."""
        return self.entry is not None and self.entry.depth == len(self._layout.segments)

    def find(self, kind: int, content: bytes) -> Entry | None:
        """The kept segment of this content and ``kind``, a code, behind this context."""
        if self.entry is None or not self.reaches_end:
            return None
        return self._index.find(self.entry, kind, content)

    def take(self, entry: Entry, page_size: int, index: int, time_s: float) -> None:
        """Go on with ``entry``, which ``find`` has found: its pages are held once more."""
        if entry.parent is not self.entry or not self.reaches_end:
            raise CacheError("a segment was found behind another context than this one")
        self._index.use(entry)
        self._layout.join(entry, page_size, index, time_s)
        self._known_by(entry)

    def keep(self, content: bytes) -> NDArray[np.int32] | None:
        """Let others find the last segment, which holds ``content``: its pages (n,), or None when
        it cannot be found."""
        parent, layout = self.entry, self._layout
        if parent is None or len(layout.segments) != parent.depth + 1:
            return None
        row = layout.segments.last
        pages: NDArray[np.int32] = layout.table.page_ids[-int(row["num_pages"]) :].copy()
        entry = self._index.keep(
            Entry(
                parent=parent,
                kind=int(row["kind"]),
                content=content,
                pages=pages,
                num_tokens=int(row["num_tokens"]),
                span=row["span"].copy(),
                uniform=bool(row["uniform"]),
                depth=parent.depth + 1,
                end=layout.num_tokens,
            )
        )
        if entry is None:
            return None
        self._known_by(entry)
        return pages

    def path_pages(self) -> NDArray[np.int32] | None:
        """(n,) the pages by which this context is found, in order; None for a private one."""
        return None if self.entry is None else self.entry.path_pages()

    def end(self) -> None:
        """The context closes: what it is found by was in use until now."""
        pages = self.path_pages()
        if pages is not None:
            self._index.touch(pages)
        self.entry = None

    def _known_by(self, entry: Entry) -> None:
        self.entry = entry
        self._index.touch(self._layout.table.page_ids)
