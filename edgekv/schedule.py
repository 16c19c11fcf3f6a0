"""What is asked of a stream, and when.

Owns: the questions of a run and the times at which they fall due. Guarantees: times that passed
meanwhile are counted, and none comes twice. Does not know sessions, sources or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgekv.checks import finite, positive

_MOST = 2.0**62  # times at once: a quotient of two floats may be infinite


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask: every ``every_s`` seconds of the stream, or once at ``at_s``."""

    prompt: str
    every_s: float | None = None
    at_s: float | None = None
    expected: str | None = None  # the true answer, where it is known

    def __post_init__(self) -> None:
        if (self.every_s is None) == (self.at_s is None):
            raise ValueError("a question needs either every_s or at_s")
        if self.every_s is not None:
            positive(self.every_s, "every_s")
        if self.at_s is not None:
            finite(self.at_s, "at_s")


@dataclass(slots=True)
class Due:
    """When a question is asked next; ``next_s`` None = never again."""

    question: Question
    next_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        every_s, at_s = self.question.every_s, self.question.at_s
        self.next_s = at_s if at_s is not None else every_s

    def take(self, now_s: float) -> int:
        """Times the question has fallen due by ``now_s``; moves on to the next time after it."""
        if self.next_s is None or now_s < self.next_s:
            return 0
        every_s = self.question.every_s
        if every_s is None:
            self.next_s = None
            return 1
        num_due = int(min((now_s - self.next_s) / every_s, _MOST)) + 1
        self.next_s += num_due * every_s
        return num_due
