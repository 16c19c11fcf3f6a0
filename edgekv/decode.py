"""Strict decoding of JSON into frozen dataclasses: the dataclass is the schema.

Owns: the walk over a parsed JSON value along the annotations of a dataclass.
Guarantees: every field of the class is present, no other key is, and each value has the annotated
type, whole numbers within 64 bits, text in Unicode. What does not fit raises ``ValueError``: one
line with the path of the value, what was expected and what came; one that ``__post_init__`` raises
gets the path too.
Does not know: files, formats and their errors, or what any field means.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from edgekv.checks import MAX_WHOLE, shown

T = TypeVar("T")
_JSON_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false",
               int: "a whole number", float: "a number", type(None): "null"}  # fmt: skip


def parse_json(text: str | bytes, where: str) -> object:
    """JSON text -> value. Refuses what JSON forbids but Python accepts: NaN, keys given twice."""

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not a number")

    def no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) != len(pairs):
            names = [key for key, _ in pairs]
            raise ValueError(
                f"key {shown(next(n for n in names if names.count(n) > 1))} given twice"
            )
        return value

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({error})") from None


def decode(kind: type[T], value: object, where: str) -> T:
    """A JSON object -> an instance of the dataclass ``kind``. Raises ValueError."""
    if not isinstance(value, dict):
        _refuse(where, "an object", value)
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in names:
        if name not in value:
            raise ValueError(f"{where}: key {name!r} is missing")
    for key in value:
        if key not in names:
            raise ValueError(f"{where}: unknown key {shown(key)}")
    decoded = {name: _decode_value(hints[name], value[name], f"{where}: {name}") for name in names}
    try:
        return kind(**decoded)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _decode_value(hint: Any, value: object, where: str) -> object:
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return decode(hint, value, where)  # type: ignore[arg-type]
    if origin in (Union, types.UnionType):  # only ``X | None`` occurs
        inner = next(arg for arg in args if arg is not type(None))
        return None if value is None else _decode_value(inner, value, where)
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            _refuse(where, "one of " + ", ".join(map(str, args)), value, show=True)
        return value
    if origin is tuple:
        return _decode_tuple(args, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            _refuse(where, "an object", value)
        for key in value:
            _check_unicode(key, where)
        return {
            key: _decode_value(args[1], item, f"{where}.{' '.join(key[:60].split())}")
            for key, item in value.items()
        }
    return _decode_plain(hint, value, where)


def _decode_plain(hint: Any, value: object, where: str) -> object:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, where)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        _refuse(where, _JSON_NAMES[hint], value)
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        _refuse(where, "a whole number that fits 64 bits", value, show=True)
    if isinstance(value, str):
        _check_unicode(value, where)
    return value


def _check_unicode(text: str, where: str) -> None:
    """JSON can write half a surrogate pair, which no file, path or tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(where, "Unicode text", text, show=True)


def _finite(value: float, where: str) -> float:
    """JSON has no infinity, but 1e999 becomes one, and a whole number may be too large."""
    number = float(value) if abs(value) <= sys.float_info.max else math.inf
    if number == math.inf:
        raise ValueError(f"{where}: expected a number below {sys.float_info.max:.0e}")
    return number


def _decode_tuple(args: tuple[Any, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        _refuse(where, "a list", value)
    if args[-1] is Ellipsis:
        args = (args[0],) * len(value)
    elif len(value) != len(args):
        raise ValueError(f"{where}: expected {len(args)} values, got {len(value)}")
    pairs = enumerate(zip(args, value, strict=True))
    return tuple(_decode_value(arg, item, f"{where}[{i}]") for i, (arg, item) in pairs)


def _refuse(where: str, expected: str, value: object, *, show: bool = False) -> NoReturn:
    got = shown(value) if show else _JSON_NAMES[type(value)]
    raise ValueError(f"{where}: expected {expected}, got {got}")
