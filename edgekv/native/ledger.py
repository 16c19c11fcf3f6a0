"""Who holds which page of a pool: the arrays, and one native call for any number of pages.

Owns: the binding of ``edgekv_ledger_*`` (plugins/cpu/ledger.h) and the memory it works on.
Guarantees: ids are checked before anything changes; a call that raises has changed nothing.
Does not know: what the states of a page mean, steps, sequences. Not safe for use from two threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import CacheError
from edgekv.native.library import native_call
from edgekv.native.memory import address
from edgekv.uncopied import uncopied

Pages = NDArray[np.int32]  # (n,) page ids

_INT32 = np.dtype(np.int32)
_OUTSIDE, _REPEATED, _UNHELD = 1, 2, 3
_P, _N = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: dict[str, list[type]] = {
    **{name: [_P, _P, _N] for name in ("take", "retain", "release", "keep", "hold", "forget")},
    "fence": [_P, _P, _P, _N],
    "unfence": [_P, _P, _N, _P],
}


class _State(ctypes.Structure):
    """``EdgekvLedger``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_pages", "top", "peak", "num_in_flight")),
        *((name, ctypes.c_int64) for name in ("num_cached", "stamp", "culprit")),
        *((name, _P) for name in ("free", "refs", "fences", "kept", "stamps", "times_taken")),
    )
    num_pages: int
    top: int
    peak: int
    num_in_flight: int
    num_cached: int
    culprit: int


class Fenced(NamedTuple):
    """Pages that a step names."""

    pages: Pages  # (n,)
    at: int  # where they are, as after a step's run it takes long to find out


@uncopied("native calls know where it is")
class Ledger:
    """Pages 0 to ``num_pages`` - 1, all free at first, the lowest first to be taken."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.free = np.arange(num_pages, dtype=np.int32)  # (num_pages,) a stack, from num_taken on
        self.refs = np.zeros(num_pages, dtype=np.int32)  # (num_pages,) holders
        self.fences = np.zeros(num_pages, dtype=np.int32)  # (num_pages,) uses by steps in flight
        self.kept = np.zeros(num_pages, dtype=np.bool_)  # (num_pages,)
        self.times_taken = np.zeros(num_pages, dtype=np.int64)  # (num_pages,)
        self._stamps = np.zeros(num_pages, dtype=np.int64)  # scratch
        self._ids = np.empty(num_pages, dtype=np.int32)  # scratch: pages of one call
        arrays = (self.free, self.refs, self.fences, self.kept, self._stamps, self.times_taken)
        at = (address(array) for array in arrays)
        self._state = _State(num_pages, 0, 0, 0, 0, 0, 0, *at)
        self._at = ctypes.addressof(self._state)
        self._ids_at = address(self._ids)
        calls = {name: native_call(f"ledger_{name}", own) for name, own in _SIGNATURES.items()}
        self._take, self._retain, self._release = calls["take"], calls["retain"], calls["release"]
        self._keep, self._hold, self._forget = calls["keep"], calls["hold"], calls["forget"]
        self._fence, self._unfence = calls["fence"], calls["unfence"]

    @property
    def at(self) -> int:
        """Where the ledger is, for native calls that take pages along with other things."""
        return self._at

    @property
    def num_taken(self) -> int:
        """Pages that are not free."""
        return self._state.top

    @property
    def peak(self) -> int:
        """Most pages that ever were neither free nor cached."""
        return self._state.peak

    @property
    def num_in_flight(self) -> int:
        return self._state.num_in_flight

    @property
    def num_cached(self) -> int:
        return self._state.num_cached

    def take(self, num_pages: int) -> Pages:
        """``num_pages`` free pages, as many as are free at most: (num_pages,), each held once."""
        # What is taken is known beforehand, so that nothing can fail once it is.
        pages: Pages = self.free[self._state.top : self._state.top + num_pages].copy()
        self._take(self._at, self._ids_at, num_pages)
        return pages

    def retain(self, pages: Pages) -> None:
        """One more holder of held, distinct ``pages`` (n,)."""
        self._call(self._retain, pages)

    def release(self, pages: Pages) -> None:
        """One holder less of held, distinct ``pages`` (n,). What nobody holds or fences any more is
        cached if it is kept, free otherwise."""
        self._call(self._release, pages)

    def release_at(self, pages_at: int, num_pages: int) -> None:
        """As ``release``, of pages that are in memory (num_pages,) int32 and known to be held."""
        code = self._release(self._at, pages_at, num_pages)
        assert not code, "what is released is held"

    def keep(self, pages: Pages) -> None:
        """Held, distinct ``pages`` (n,) are kept."""
        self._call(self._keep, pages)

    def hold(self, pages: Pages) -> None:
        """One more holder of kept, distinct ``pages`` (n,), held or not."""
        self._call(self._hold, pages)

    def forget(self, pages: Pages) -> None:
        """Kept, distinct ``pages`` (n,) are kept no longer; cached ones are free."""
        self._call(self._forget, pages)

    def fence(self, rows: Sequence[Pages]) -> Fenced:
        """Fence the held pages of ``rows``, distinct within each."""
        pages = np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)
        counts = np.array([row.size for row in rows], dtype=np.int64)
        for row in rows:
            self._check_form(row)
        fenced = Fenced(pages, address(pages))
        code = self._fence(self._at, fenced.at, address(counts), counts.size)
        if code:
            self._refuse(code, pages)
        return fenced

    def unfence(self, fenced: Fenced) -> None:
        """Undo ``fence``; what nobody holds or fences any more goes as in ``release``."""
        self._unfence(self._at, fenced.at, fenced.pages.size, self._ids_at)

    def index(self, pages: Pages) -> NDArray[np.intp]:
        """``pages`` (n,) to look something up with. Raises ValueError for ids out of range."""
        self._check_form(pages)
        if pages.size and not (pages.min() >= 0 and pages.max() < self.num_pages):
            self._refuse(_OUTSIDE, pages)
        return pages.astype(np.intp)

    def _call(self, function: Callable[..., int], pages: Pages) -> None:
        self._check_form(pages)
        code = function(self._at, pages.tobytes(), pages.size)
        if code:
            self._refuse(code, pages)

    def _check_form(self, pages: Pages) -> None:
        if (pages.dtype is not _INT32 and pages.dtype != _INT32) or pages.ndim != 1:
            raise ValueError(f"pages must be int32 (n,), got {pages.dtype} {pages.shape}")
        if pages.size > self.num_pages:
            raise ValueError(
                f"{pages.size} ids of a pool of {self.num_pages} pages cannot be distinct"
            )

    def _refuse(self, code: int, pages: Pages) -> None:
        if code == _OUTSIDE:
            raise ValueError(
                f"page ids must be 0 to {self.num_pages - 1}, got {pages.min()} to {pages.max()}"
            )
        if code == _REPEATED:
            raise ValueError("page ids of one call must be distinct")
        what = "held by nobody" if code == _UNHELD else "not kept"
        raise CacheError(f"page {self._state.culprit} is {what}")
