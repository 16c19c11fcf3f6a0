"""The protocol that every retention rule follows, and the rules by name.

Guarantees: an unknown name is refused with the names that exist.
Does not know: how a rule decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.retention.novelty import Novelty
from edgekv.cache.retention.uniform import Uniform
from edgekv.cache.retention.window import Window
from edgekv.cache.segments import SegmentTable


class RetentionRule(Protocol):
    """Chooses what to forget. A protocol, so that a rule is a small file that inherits nothing."""

    @property
    def needs_summaries(self) -> bool:
        """Whether ``choose`` reads ``segments.summaries``; otherwise none are computed."""
        ...

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """Which of ``segments`` (oldest first, none pinned) to drop: (k,) indices, ascending.

        Their ``num_pages`` must sum to at least ``num_pages``; the caller has made sure that those
        of all segments do. The newest must not leave while older ones are enough.
        """
        ...


_RULES: dict[str, Callable[[], RetentionRule]] = {
    "window": Window,
    "uniform": Uniform,
    "novelty": Novelty,
}


def retention_rules() -> tuple[str, ...]:
    """The names that ``retention_rule`` knows."""
    return tuple(_RULES)


def retention_rule(name: str) -> RetentionRule:
    """A fresh rule by name. Raises ValueError naming the choices."""
    if name not in _RULES:
        raise ValueError(f"retention rule must be one of {', '.join(_RULES)}, got {name!r}")
    return _RULES[name]()


def rule_name(rule: RetentionRule) -> str:
    """What ``retention_rule`` calls this rule; for one it does not know, its class."""
    for name, kind in _RULES.items():
        if isinstance(kind, type) and type(rule) is kind:
            return name
    return type(rule).__name__
