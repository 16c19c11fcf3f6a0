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

_P, _N = ctypes.c_void_p, ctypes.c_int64


class StepPlan:
    """The step over what is pending in ``planners``, which have one ledger: first its memory."""

    def __init__(self, planners: Sequence[AppendPlanner], num_columns: int) -> None:
        self._planners = planners
        entries = [planner.num_entries for planner in planners]
        used = sum(planner.num_used for planner in planners)
        shape = (len(planners), max(entries), num_columns)
        self.page_table = np.empty(shape, dtype=np.int32)  # (B, M, num_columns)
        self.query_starts = np.empty(len(planners) + 1, dtype=np.int32)  # (B + 1,)
        self._fenced = np.empty(used, dtype=np.int32)  # (n,)

    def begin(self) -> Fenced:
        """Fill the tables and fence what they name."""
        fenced = Fenced(self._fenced, address(self._fenced))
        planners, (num_appends, num_entries, num_columns) = self._planners, self.page_table.shape
        code = _begin()(
            (_P * num_appends)(*[planner.at for planner in planners]),
            num_appends,
            num_entries,
            num_columns,
            address(self.page_table),
            address(self.query_starts),
            fenced.at,
            (_N * num_appends)(),
        )
        assert not code, "what a pending append reads and writes is held"
        return fenced


@cache
def _begin() -> Callable[..., int]:
    return native_call("append_begin", [_P, *[_N] * 3, *[_P] * 4])
