"""Options of the command line that people write with units: sizes and durations."""

from __future__ import annotations

import math
from collections.abc import Callable

import click

from edgekv.config import parse_bytes, parse_seconds

Callback = Callable[[click.Context, click.Parameter, str | None], float | None]


def _parsed(parse: Callable[[str], float]) -> Callback:
    """An option callback that runs one of ``config``'s parsers; its ValueError is a usage error."""

    def callback(
        context: click.Context, parameter: click.Parameter, text: str | None
    ) -> float | None:
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from None

    return callback


def finite(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """An option callback that refuses nan and inf, which no range of click's does."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.", context, parameter)
    return value


size = _parsed(parse_bytes)
duration = _parsed(parse_seconds)
