"""Which segments leave when a sequence is full: small rules, looked up by name.

Owns: the rule protocol, the list of rules, and ``choose_room``, which asks one about a sequence.
Guarantees: system segments are never offered to a rule; when room cannot be made nothing is
    dropped.
Does not know: what frames show. A new rule is one file here, its import and its line in ``_RULES``
    (rules.py) and one line in the shared test list; docs/retention.md has an example.
"""

from edgekv.cache.retention.keep import Keep
from edgekv.cache.retention.least_attended import LeastAttended
from edgekv.cache.retention.novelty import Novelty
from edgekv.cache.retention.room import Watermarks, choose, choose_room, may_leave, offered
from edgekv.cache.retention.rules import (
    RetentionRule,
    retain_choices,
    retention_rule,
    retention_rules,
)
from edgekv.cache.retention.uniform import Uniform
from edgekv.cache.retention.window import Window

__all__ = [
    "Keep",
    "LeastAttended",
    "Novelty",
    "RetentionRule",
    "Uniform",
    "Watermarks",
    "Window",
    "choose",
    "choose_room",
    "may_leave",
    "offered",
    "retain_choices",
    "retention_rule",
    "retention_rules",
]
