"""One step of the decoder over the appends of several sequences: its tables, its fence, its end.

Owns: the arrays of one step and the fence that keeps every page they name from being reused.
Guarantees: the arrays are made for this step, are read-only and never written again, so a device
    may still read them after the call that took them returned; a step ends exactly once, for all
    its appends together; appends aborted meanwhile (their sequence was closed) are skipped; no
    slot that a step in flight reads is written by another step, in whatever order they run.
Does not know: who executes the step, and when the device has finished: the caller says so by
    ending it.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.append import Append, read_only
from edgekv.cache.cross import CrossCache, CrossInput
from edgekv.cache.pool import PoolState
from edgekv.cache.snapshot import Scalar
from edgekv.errors import CacheError
from edgekv.native.steps import StepPlan
from edgekv.types import CrossTables, StepTables

if TYPE_CHECKING:
    from typing_extensions import Self


class Step:
    """A step in flight. In a ``with`` block it aborts unless it was committed."""

    def __init__(self, pool: PoolState, appends: Collection[Append]) -> None:
        check_appends(appends)
        self.appends = tuple(appends)
        plan = StepPlan([append.native for append in self.appends], 2 + pool.geometry.num_rope_axes)
        self.tables = build_tables(self.appends, plan, pool.cross)
        # (C, 2) int32 pages (source, target) to copy before anything is written
        self.copies = _joined([append.copies for append in self.appends], axis=0)
        self._pool = pool
        self._ended = False
        # A sequence that closes meanwhile lets go its source, which the device may still read.
        self._sources: list[CrossInput] = []
        self.token = pool.allocator.begin_step_by(plan.begin)
        try:
            for append in appends:
                if append.sequence.source is not None:
                    self._sources.append(append.sequence.source.retain())
            for append in appends:
                append.in_step = True
            pool.observer.stepped(self)
        except BaseException:
            self._let_go()
            for append in appends:
                append.in_step = False
            raise

    @property
    def ended(self) -> bool:
        return self._ended

    def commit(self) -> None:
        """The device has done the copies and the step: the tokens count from now on."""
        self._end()
        for append in self.appends:
            if append.state == "pending":
                append.sequence.commit(append)

    def abort(self) -> None:
        """The device no longer touches the step's pages: every sequence is exactly as before."""
        self._end()
        for append in reversed(self.appends):
            if append.state == "pending":
                append.sequence.abort(append)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._ended:
            self.abort()

    def _end(self) -> None:
        if self._ended:
            raise CacheError("the step has ended already")
        self._let_go()
        self._pool.observer.stepped(self)

    def _let_go(self) -> None:
        self._ended = True
        self._pool.allocator.end_step(self.token)
        for source in self._sources:
            source.release()


def check_appends(appends: Collection[Append]) -> None:
    """Raise CacheError unless every append is pending, in no other step, and listed once."""
    if not appends:
        raise ValueError("a step needs at least one append")
    for append in appends:
        if append.state != "pending" or append.in_step:
            state = "in a step already" if append.in_step else append.state
            raise CacheError(f"a step needs pending appends, got one that is {state}")
    if len({id(append) for append in appends}) != len(appends):
        raise CacheError("an append is listed twice in one step")


def build_tables(
    appends: Collection[Append], plan: StepPlan, cross: CrossCache | None
) -> StepTables:
    """The operator's host arrays, one row per append, of a ``plan`` that is begun later: read-only
    then."""
    return StepTables(
        position_ids=_joined([append.positions for append in appends]),
        page_table=plan.page_table,
        query_starts=plan.query_starts,
        slot_mapping=_joined([append.slots for append in appends]),
        kv_limits=_joined([append.kv_limits for append in appends]),
        query_indices=_joined([append.query_indices for append in appends]),
        mass_weights=read_only(np.array([append.mass_weight for append in appends], np.float32)),
        cross=None if cross is None else build_cross_tables(appends),
    )


def build_cross_tables(appends: Collection[Append]) -> CrossTables:
    """What each append's tokens see of the input that its sequence looks at: all of it."""
    sources = [append.sequence.source for append in appends]
    width = max((len(source.table) for source in sources if source is not None), default=1)
    page_table = np.zeros((len(sources), width, 2), dtype=np.int32)
    page_table[:, :, 0] = -1
    for b, source in enumerate(sources):
        if source is not None:
            page_table[b, : len(source.table)] = source.table
    seen = [0 if source is None else source.num_states for source in sources]
    counts = [append.num_tokens for append in appends]
    limits = np.repeat(np.array(seen, dtype=np.int32), counts)
    return CrossTables(read_only(page_table), read_only(limits))


def _joined(arrays: list[NDArray[Scalar]], axis: int = -1) -> NDArray[Scalar]:
    """One array along ``axis``: of an append alone its own, which is never written again."""
    return arrays[0] if len(arrays) == 1 else read_only(np.concatenate(arrays, axis=axis))
