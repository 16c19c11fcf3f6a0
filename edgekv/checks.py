"""Values that come from a caller, a command line or a file: where each kind of them is checked.

Owns: what passes for a whole number, a number, a switch, a path, and how a wrong value is shown.
Guarantees: what comes out has Python's own type and lies within its bounds; anything else is a
    ValueError of one line with the parameter's name, what was expected and what came.
Does not know: what a value is for, whether a path exists.
"""

from __future__ import annotations

import os
from numbers import Integral, Real
from pathlib import Path
from typing import NoReturn

MAX_WHOLE = 2**63 - 1
_MAX_SHOWN = 60  # characters of a wrong value
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4095, 255  # Linux's PATH_MAX without its NUL, and NAME_MAX


def shown(value: object) -> str:
    """A value as an error names it: on one line, cut if it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a repr may do anything; a whole number of 5,000 digits has none
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def refuse(name: str, expected: str, value: object) -> NoReturn:
    """Raise the ValueError of a value that ``name`` must not have: it must ``expected``."""
    raise ValueError(f"{name} must {expected}, got {shown(value)}")


def whole(value: object, name: str, *, least: int | None = None, most: int = MAX_WHOLE) -> int:
    """A whole number, NumPy's included, from ``least`` to ``most``; True and False are none."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if (-MAX_WHOLE if least is None else least) <= number <= most:
            return number
    expected = "be a whole number" if least is None else f"be a whole number from {least}"
    if most != MAX_WHOLE:
        expected += f" to {most}" if least is not None else f" up to {most}"
    elif isinstance(value, Integral) and abs(int(value)) > most:
        expected += " that fits 64 bits"
    refuse(name, expected, value)


def finite(value: object, name: str, expected: str = "be a finite number") -> float:
    """A number that is neither infinite nor NaN; True and False are none."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if abs(number) < float("inf"):
            return number
    refuse(name, expected, value)


def positive(value: object, name: str) -> float:
    """A finite number above 0."""
    expected = "be a positive number"
    number = finite(value, name, expected)
    return number if number > 0 else refuse(name, expected, value)


def switch(value: object, name: str) -> bool:
    """True or False, and nothing that merely counts as one of them."""
    return value if isinstance(value, bool) else refuse(name, "be True or False", value)


def optional_path(value: object, name: str) -> Path | None:
    """As ``path_of``, or None."""
    return None if value is None else path_of(value, name)


def path_of(value: object, name: str) -> Path:
    """A path as text or ``os.PathLike`` that a file system could hold."""
    try:
        text: object = os.fspath(value)  # type: ignore[call-overload]  # that is what is asked
    except TypeError:
        text = None
    if not isinstance(text, str):
        refuse(name, "be a path (text or pathlib.Path)", value)
    if not text:
        refuse(name, "be a path", value)
    if "\0" in text:
        refuse(name, "be a path without NUL characters", value)
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        refuse(name, "be a path in Unicode", value)
    longest = max(map(len, encoded.split(b"/")))
    if len(encoded) > _MAX_PATH_BYTES or longest > _MAX_NAME_BYTES:
        limits = f"of at most {_MAX_PATH_BYTES} bytes, {_MAX_NAME_BYTES} a name"
        refuse(name, f"be a path {limits}", value)
    return Path(text)
