"""The tables of a step and the fence around its pages, in one native call.

Owns: the binding of ``edgekv_append_begin`` (plugins/cpu/append.h).
Guarantees: pages are checked before any is fenced; memory is taken beforehand.
Does not know: what the tables are for, when the step ends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from edgekv.native.appends import AppendPlanner
from edgekv.native.ledger import Fenced
from edgekv.native.library import native_call
from edgekv.native.memory import address
from edgekv.uncopied import uncopied

_P, _N = ctypes.c_void_p, ctypes.c_int64


@uncopied("native calls know where it is")
class StepPlan:
    """The step over what is pending in ``planners``, which have one ledger: first its memory."""

    def __init__(self, planners: Sequence[AppendPlanner], num_columns: int) -> None:
        self._planners, num_starts = planners, len(planners) + 1
        num_entries = max([planner.num_entries for planner in planners])
        num_used = sum([planner.num_used for planner in planners])
        shape = (len(planners), num_entries, num_columns)
        self._memory = np.empty(num_starts + num_used, dtype=np.int32)
        self.page_table = np.empty(shape, dtype=np.int32)  # (B, M, num_columns)
        self.query_starts = self._memory[:num_starts]  # (B + 1,)

    def begin(self) -> Fenced:
        """Fill the tables, which nobody writes any more, and fence what they name."""
        planners, (num_appends, num_entries, num_columns) = self._planners, self.page_table.shape
        starts_at = address(self._memory)
        fenced = self._memory[num_appends + 1 :]
        fenced_at = starts_at + self.query_starts.nbytes
        code = _begin()(
            (_P * num_appends)(*[planner.at for planner in planners]),
            num_appends,
            num_entries,
            num_columns,
            address(self.page_table),
            starts_at,
            fenced_at,
            (_N * num_appends)(),
        )
        assert not code, "what a pending append reads and writes is held"
        self.page_table.setflags(write=False)
        self.query_starts.setflags(write=False)
        return Fenced(fenced, fenced_at)


@cache
def _begin() -> Callable[..., int]:
    return native_call("append_begin", [_P, *[_N] * 3, *[_P] * 4])
