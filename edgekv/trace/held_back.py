"""The append that is not written yet: with its step and commit it becomes one record.

Owns: one append that was planned last, and the step that runs it alone.
Guarantees: what is held back comes out in the order in which it happened. Does not know: files.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgekv.cache import Append, Step
from edgekv.trace import records
from edgekv.trace.events import Planned, StepBegun
from edgekv.trace.records import RecordWriter


class HeldBack:
    """At most one append, from its plan to whatever comes next that is not its own."""

    def __init__(self) -> None:
        self._plan: Planned | None = None
        self._append: Append | None = None
        self._step: Step | None = None

    @property
    def is_empty(self) -> bool:
        return self._plan is None

    def hold(self, append: Append, plan: Planned) -> None:
        """Hold back an append, in place of one that is written."""
        self._append, self._plan, self._step = append, plan, None

    def covers(self, step: Step) -> bool:
        """Whether a step that begins or ends is the append's own; then it is held back too."""
        if self._plan is None:
            return False
        if step.ended:
            return step is self._step
        if self._step is not None or step.appends != (self._append,):
            return False
        self._step = step
        return True

    def completed(self, append: Append) -> Planned | None:
        """The plan of an append that is settled now, if one record can say all of it; it is not
        held back any more then."""
        is_done = self._step is None or self._step.ended
        if append is not self._append or append.state != "committed" or not is_done:
            return None
        plan = self._plan
        self._clear()
        return plan

    def written(self, writer: RecordWriter, now_us: int) -> Iterator[bytearray]:
        """Records of what is held back, which something else came between."""
        plan, step = self._plan, self._step
        if plan is None:
            return
        self._clear()
        yield writer.plan(plan)
        if step is not None:
            yield writer.begin(StepBegun(plan.at_us, step.token, (plan.sequence,)))
            if step.ended:
                yield writer.head(records.END, now_us, step.token)

    def _clear(self) -> None:
        self._plan = self._append = self._step = None
