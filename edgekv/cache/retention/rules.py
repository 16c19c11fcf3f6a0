"""The protocol that every retention rule follows, and the rules by name.

Guarantees: an unknown name is refused with the names that exist.
Does not know: how a rule decides.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.keep import Keep
from edgekv.cache.retention.least_attended import LeastAttended
from edgekv.cache.retention.novelty import Novelty
from edgekv.cache.retention.uniform import Uniform
from edgekv.cache.retention.window import Window
from edgekv.cache.segments import SegmentTable


class RetentionRule(Protocol):
    """Chooses what to forget. A protocol, so that a rule is a small file that inherits nothing."""

    @property
    def name(self) -> str:
        """What users, logs and metrics call it."""
        ...

    @property
    def needs_summaries(self) -> bool:
        """Whether ``choose`` reads ``segments.summaries``; otherwise none are computed."""
        ...

    @property
    def needs_heat(self) -> bool:
        """Whether ``choose`` reads ``segments.heat``; otherwise no attention is added up."""
        ...

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """Which of ``segments`` (oldest first, none pinned) to drop: (k,) indices, ascending.

        Their ``num_pages`` must sum to at least ``num_pages``; the caller has made sure that those
        of all segments do. The newest must not leave while older ones are enough.
        """
        ...


# ``Keep`` lets nothing leave, so it is no rule among the others: it cannot make room.
_RULES: dict[str, type[RetentionRule]] = {
    rule.name: rule for rule in (Window, Uniform, Novelty, LeastAttended)
}


def retention_rules() -> tuple[str, ...]:
    """The names of the rules that make room."""
    return tuple(_RULES)


def retain_choices() -> tuple[str, ...]:
    """Everything a session may be told to do when its context is full."""
    return (*_RULES, Keep.name)


def retention_rule(name: str, *, shiftable: bool = True) -> RetentionRule:
    """A fresh rule by name, for a model whose cached pages can be moved or not.

    Raises ValueError naming the choices, and for a rule that has to move pages that cannot be.
    """
    if name not in retain_choices():
        raise ValueError(
            f"retention rule must be one of {', '.join(retain_choices())}, got {name!r}"
        )
    if name == Keep.name:
        return Keep()
    if not shiftable:
        raise ValueError(
            f"this model's positions cannot be shifted, so nothing can leave its context: "
            f"retain must be {Keep.name!r}, got {name!r}"
        )
    return _RULES[name]()
