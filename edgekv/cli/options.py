"""Options of the command line that people write in a form of their own: sizes, durations, ports."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

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


def host_and_port(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[str, int] | None:
    """An option callback: ``9400`` is on this machine only, ``0.0.0.0:9400`` on every address."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535:
        message = f"expected [HOST:]PORT with a port up to 65535, got {text!r}"
        raise click.BadParameter(message, context, parameter)
    return host or "127.0.0.1", int(port)


def device_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """An eager option's callback: what the file says becomes the default of the other options."""
    from edgekv.device_config import read_device_config

    if path is None:
        return
    try:
        config = read_device_config(path)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", context, parameter) from None
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    defaults = {**config.load, **config.run}
    if "num_threads" in defaults:
        defaults["threads"] = defaults.pop("num_threads")
    context.default_map = {**(context.default_map or {}), **defaults}


size = _parsed(parse_bytes)
duration = _parsed(parse_seconds)
