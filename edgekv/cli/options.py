"""Option types of the command line: sizes and durations as people write them."""

from __future__ import annotations

from collections.abc import Callable

import click

from edgekv.config import parse_bytes, parse_seconds


class _Parsed(click.ParamType):
    """Runs one of ``config``'s parsers; its ValueError becomes a usage error."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: str | float, param: click.Parameter | None, context: click.Context | None
    ) -> float:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, context)


SIZE = _Parsed("size", parse_bytes)
DURATION = _Parsed("duration", parse_seconds)
