"""Small pieces of English. Does not know: what is said."""

from __future__ import annotations

from collections.abc import Sequence


def many(count: int, one: str, several: str | None = None) -> str:
    """``1 frame``, ``1,200 frames``."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def was(count: int) -> str:
    """``was`` for one."""
    return "was" if count == 1 else "were"


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
