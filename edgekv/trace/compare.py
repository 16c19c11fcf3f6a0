"""How a replay says that something came out differently.

Guarantees: one line, with what the log says and what the replay did.
Does not know: what is compared.
"""

from __future__ import annotations


class Difference(Exception):  # noqa: N818 - a finding, not a fault
    """What the log says and what happened again are not the same."""


def same(what: str, logged: object, now: object) -> None:
    """Raise Difference unless both are equal."""
    if logged != now:
        raise Difference(f"{what}: the log says {logged}, the replay {now}")
