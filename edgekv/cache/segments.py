"""What a segment is, and the segments of one sequence as columns.

Owns: ``Segment``, a view for people, ``SegmentTable``, what retention rules read, and how a segment
    is stored (``segment_dtype``).
Guarantees: no Python object per stored segment; columns cost nothing before they are looked at.
Does not know: how a sequence keeps them, shifts, the allocator.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from edgekv.checks import MAX_WHOLE, finite, refuse, whole
from edgekv.types import SegmentKind

if TYPE_CHECKING:
    from edgekv.cache.heat import PageHeat
    from edgekv.cache.summaries import FrameSummaries
    from edgekv.native.columns import PageNumbers, PageRows

KINDS: tuple[SegmentKind, ...] = get_args(SegmentKind)
KIND_CODES: dict[str, int] = {kind: code for code, kind in enumerate(KINDS)}
SYSTEM_CODE = KIND_CODES["system"]
FRAME_CODE = KIND_CODES["frame"]
_KIND_AT = -2  # where in a stored segment its kind is, a byte; see segment_dtype
MAX_TIME_S = float(2**53)  # beyond it a float64 does not tell one second from the next


def checked_label(index: int, time_s: float) -> tuple[int, float]:
    """A segment's number and time as they are stored. Raises ValueError for what cannot be."""
    plain = type(index) is int and -1 <= index <= MAX_WHOLE and type(time_s) is float
    if plain and not abs(time_s) > MAX_TIME_S:
        return index, time_s  # nearly always; asking abstract classes takes far longer
    index = whole(index, "index", least=-1)
    if not (isinstance(time_s, Real) and time_s != time_s):
        time_s = finite(time_s, "time", "be a finite number of seconds")
        if abs(time_s) > MAX_TIME_S:
            refuse("time", f"be within {MAX_TIME_S:g} seconds of the start", time_s)
    return index, float(time_s)


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of tokens of one kind. A view for callers, made on request and never updated."""

    id: int
    kind: SegmentKind
    pages: NDArray[np.int32]  # (num_pages,) page ids
    num_tokens: int
    position: tuple[int, ...]  # where it starts now, one number per position axis
    span: tuple[int, ...]  # how far it moves what comes after it, per position axis
    index: int  # the frame's number in its source, -1 = none given
    time_s: float  # NaN = none given

    @property
    def num_pages(self) -> int:
        return int(self.pages.size)


class PageColumn(Protocol):
    """What is known of pages, by segment; exists so that segments need not know of what."""

    def of(self, segments: bytes, num_segments: int, pages: bytes) -> NDArray[Any]:
        """One number, or one row of numbers, a segment."""
        ...


class SegmentTable:
    """Segments as columns, oldest first: what retention rules choose from. Copies, read-only; but
    ``summaries`` and ``heat`` are of the moment when they are first looked at.

    ``index`` numbers frames as their source does (0, 13, 25 when two of 25 a second are taken);
    what counts segments is ``ids``, which grow by one with each that comes.
    """

    __slots__ = (
        *("first", "given_pages", "memory", "num_all", "pages"),
        *("_dtype", "_heat", "_known", "_rows", "_summaries"),
    )

    def __init__(
        self,
        memory: bytes,  # rows, of which those from ``first`` on are the table's n
        dtype: np.dtype[np.void],  # of one, as from segment_dtype
        first: int = 0,
        pages: bytes | None = None,  # int32, of all the rows, in order
        known: tuple[FrameSummaries | None, PageHeat | None] = (None, None),  # of pages
        *,
        summaries: NDArray[np.float32] | None = None,  # (n, width)
        heat: NDArray[np.float64] | None = None,  # (n,)
        num_pages: NDArray[np.int32] | None = None,  # (n,) in place of those of the rows
    ) -> None:
        # Bytes are far faster to copy and to search than an array, which not every rule needs.
        self.memory, self._dtype, self.first = memory, dtype, first
        self.pages, self._known = pages, known
        self.num_all = len(memory) // dtype.itemsize  # rows in ``memory``
        self.given_pages = num_pages  # None: those of the rows
        self._rows: NDArray[np.void] | None = None
        self._summaries, self._heat = summaries, heat

    @classmethod
    def of(
        cls,
        rows: NDArray[np.void],  # (n,) fields as in segment_dtype
        *,
        summaries: NDArray[np.float32] | None = None,  # (n, width)
        heat: NDArray[np.float64] | None = None,  # (n,)
    ) -> SegmentTable:
        """A table of copies of ``rows``."""
        return cls(rows.tobytes(), rows.dtype, summaries=summaries, heat=heat)

    @property
    def rows(self) -> NDArray[np.void]:
        """(n,) fields as in segment_dtype."""
        if self._rows is None:
            place = self.first * self._dtype.itemsize
            self._rows = np.frombuffer(self.memory, self._dtype, offset=place)
        return self._rows

    @property
    def codes(self) -> bytes:
        """(n,) ``kinds``, as bytes."""
        size = self._dtype.itemsize
        return self.memory[(self.first + 1) * size + _KIND_AT :: size]

    @property
    def heat_of_pages(self) -> PageNumbers | None:
        """What ``heat`` is to be summed up from; None where it is there already, or not kept."""
        heat = self._known[1]
        return None if self._heat is not None or heat is None else heat.numbers

    @property
    def rows_of_pages(self) -> PageRows | None:
        """What ``summaries`` are to be found in; None where they are there already, or not kept."""
        summaries = self._known[0]
        return None if self._summaries is not None or summaries is None else summaries.rows()

    @property
    def ids(self) -> NDArray[np.int64]:
        """(n,) growing."""
        return self.rows["id"]

    @property
    def kinds(self) -> NDArray[np.int8]:
        """(n,) indices into KINDS."""
        return self.rows["kind"]

    @property
    def num_pages(self) -> NDArray[np.int32]:
        """(n,) pages that dropping the segment gives back."""
        return self.rows["num_pages"] if self.given_pages is None else self.given_pages

    @property
    def num_tokens(self) -> NDArray[np.int32]:
        """(n,)"""
        return self.rows["num_tokens"]

    @property
    def index(self) -> NDArray[np.int64]:
        """(n,) frame numbers, -1 = none given."""
        return self.rows["index"]

    @property
    def time_s(self) -> NDArray[np.float64]:
        """(n,) NaN = none given."""
        return self.rows["time_s"]

    @property
    def summaries(self) -> NDArray[np.float32]:
        """(n, width) NaN = none; width 0 for rules that need none."""
        if self._summaries is None:
            summaries = self._known[0]
            if summaries is None:
                return np.empty((len(self), 0), dtype=np.float32)
            self._summaries = self._read(summaries)
        return self._summaries

    @property
    def heat(self) -> NDArray[np.float64]:
        """(n,) how much each was looked at; zeros for rules that need none."""
        if self._heat is None:
            heat = self._known[1]
            if heat is None:
                return np.zeros(len(self))
            self._heat = self._read(heat)
        return self._heat

    @property
    def has_heat(self) -> bool:
        """Whether ``heat`` is more than zeros for rules that need none."""
        return self._heat is not None or self._known[1] is not None

    def _read(self, column: PageColumn) -> NDArray[Any]:
        assert self.pages is not None, "what is known is known of pages"
        return column.of(self.memory, self.num_all, self.pages)[self.first :]

    def __len__(self) -> int:
        return self.num_all - self.first

    def take(self, which: NDArray[Any]) -> SegmentTable:
        """The segments that a boolean mask or an index array picks."""
        return SegmentTable(
            self.rows[which].tobytes(),
            self._dtype,
            summaries=self.summaries[which],
            heat=self.heat[which],
            num_pages=None if self.given_pages is None else self.given_pages[which],
        )

    def skip(self, num_segments: int) -> None:
        """Have the first ``num_segments`` no longer. Before any column is looked at."""
        self.first += num_segments

    def having(
        self,
        *,
        num_pages: NDArray[np.int32] | None = None,  # (n,)
        summaries: NDArray[np.float32] | None = None,  # (n, width)
        heat: NDArray[np.float64] | None = None,  # (n,)
    ) -> SegmentTable:
        """The same segments with these columns in place of their own."""
        return SegmentTable(
            self.memory,
            self._dtype,
            self.first,
            self.pages,
            self._known,
            summaries=self._summaries if summaries is None else summaries,
            heat=self._heat if heat is None else heat,
            num_pages=self.given_pages if num_pages is None else num_pages,
        )


def segment_dtype(num_axes: int) -> np.dtype[np.void]:
    """One stored segment; ``uniform`` says that every token advances every axis by one.

    ``plugins/cpu/layout.h`` reads it."""
    return np.dtype(
        [
            ("id", np.int64),
            ("index", np.int64),
            ("time_s", np.float64),
            ("num_pages", np.int32),
            ("num_tokens", np.int32),
            ("span", np.int32, (num_axes,)),
            ("kind", np.int8),
            ("uniform", np.bool_),
        ]
    )
