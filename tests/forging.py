"""Files that somebody else might have written: right to the last checksum, and wrong."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

WRONG = (
    None, True, -1, 0, 1, 1.5, 1e30, 2**31, 2**63, -(2**63), 10**30, float("inf"), float("nan"),
    "", "x", "a\nb", "\0", "\ud800", "x" * 5000, [], [1, 2], [[]], {}, {"x": 1},
)  # fmt: skip


def forgeries(value: Any, *, each: int | None = None, seed: int = 1) -> Iterator[tuple[str, Any]]:
    """(what was changed, JSON value): every part of ``value`` replaced by something else, taken
    out, or given an addition. ``each``: so many of the replacements per part, drawn."""
    draw = random.Random(seed)  # noqa: S311 - any will do
    for path in _paths(value):
        chosen = WRONG if each is None else draw.sample(WRONG, each)
        for wrong in chosen:
            yield f"{path} = {str(wrong)[:20]!r}", _with(value, path, wrong)
        if path:
            yield f"{path} gone", _without(value, path)
        if isinstance(_at(value, path), dict):
            yield f"{path} and more", _with(value, (*path, "more"), 1)


def refusal(call: Callable[[], object], *kinds: type[Exception]) -> str | None:
    """What an error of these kinds says, which must be one line; None where none is raised."""
    try:
        call()
    except kinds as error:
        said = str(error)
    else:
        return None
    assert said, "an error without a word"
    assert len(said.splitlines()) == 1, said
    assert len(said) <= 2000, said
    return said


def _paths(value: Any, start: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield start
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield from _paths(value[key], (*start, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    changed = copy.deepcopy(value)
    _at(changed, path[:-1])[path[-1]] = wrong
    return changed


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(value)
    del _at(changed, path[:-1])[path[-1]]
    return changed
