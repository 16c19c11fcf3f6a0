"""Options of the command line that people write in a form of their own: sizes, durations, ports."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgekv.checks import path_of
from edgekv.config import parse_bytes, parse_seconds

COUNT = click.IntRange(min=1, max=10**9)
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


class PathType(click.Path):
    """A path, checked before anything begins.

    ``folder``: of a folder. ``written``: of a file that will be written, into a folder that exists.
    """

    def __init__(self, *, folder: bool = False, written: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=not folder, dir_okay=not written)
        self.written = written

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:  # as click declares it: a Path
        try:
            path = path_of(value, "it")
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self.written:
            folder = path.absolute().parent
            if not os.path.isdir(folder):  # noqa: PTH112 - says no where Path.is_dir raises
                self.fail(f"{path}: the folder {folder} does not exist", param, ctx)
            if not os.access(folder, os.W_OK):
                self.fail(f"{path}: nothing can be written to the folder {folder}", param, ctx)
        return super().convert(path, param, ctx)


def question(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """An option callback that refuses what is no question, before anything is loaded for it."""
    for text in texts:
        if not text.strip():
            raise click.BadParameter("a question must not be empty", context, parameter)
        try:
            text.encode()
        except UnicodeEncodeError:
            message = f"a question must be Unicode text, got {text[:100]!r}"
            raise click.BadParameter(message, context, parameter) from None
    return texts


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


def device_config(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """An eager option's callback: what the file says becomes the default of the other options."""
    from edgekv.device_config import read_device_config

    if path is None:
        return None
    try:
        config = read_device_config(path)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    defaults = {**config.load, **config.run}
    if "num_threads" in defaults:
        defaults["threads"] = defaults.pop("num_threads")
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


size = _parsed(parse_bytes)
duration = _parsed(parse_seconds)
