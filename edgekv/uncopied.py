"""Objects that are one of a kind: they hold memory by its address, or pages that are counted.

Guarantees: ``copy`` and ``pickle`` refuse them in one line that says what to do instead, where a
copy would use, and give back, what is the original's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

_T = TypeVar("_T")


def uncopied(instead: str) -> Callable[[type[_T]], type[_T]]:
    """A class whose objects, those of its subclasses too, are neither copied nor pickled."""

    def refuse(thing: object, _: object) -> NoReturn:
        raise TypeError(f"a {type(thing).__name__} is neither copied nor pickled: {instead}")

    def marked(kind: type[_T]) -> type[_T]:
        kind.__reduce_ex__ = refuse  # type: ignore[method-assign]  # what all of them ask
        return kind

    return marked
