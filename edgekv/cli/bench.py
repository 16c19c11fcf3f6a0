"""``edgekv bench NAME``: figures, each beside its baseline. The last line of stdout is one JSON
object; exit code 3 when a bound is missed."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from edgekv.cli import show_help_alone
from edgekv.cli.options import COUNT, PathType

_MODEL = click.option("--model", type=PathType(), help="Bundle folder. [default: the demo model]")


def _console() -> Console:
    """A console wide enough for the tables where there is no terminal to say how wide it is."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


@click.group(name="bench", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Figures, each beside its baseline in the same run; the last line is one JSON object."""
    show_help_alone(context)


@command.command()
def alloc() -> int:
    """Page allocation against two other allocators. A contiguous one, and an ordered-dict LRU."""
    from edgekv.bench import alloc as bench
    from edgekv.bench.report import emit

    return emit(bench.run(), _console())


@command.command()
@_MODEL
@click.option("--evictions", type=COUNT, default=5000, show_default=True)
@click.option(
    "--scheme",
    default="model",
    show_default=True,
    help="How positions turn keys: the model's own way, a name, or all (names: try one).",
)
def relocate(model: Path | None, evictions: int, scheme: str) -> int:
    """Relocated pages against keys stored unrotated. Eviction after eviction."""
    from edgekv.bench import relocate as bench
    from edgekv.bench.report import emit
    from edgekv.bench.schemes import SCHEMES
    from edgekv.demo_bundle import demo_bundle_path

    names = (bench.MODEL, *SCHEMES)
    if scheme not in (*names, "all"):
        raise click.BadParameter(
            f"expected one of all, {', '.join(names)}, got {scheme!r}", param_hint="--scheme"
        )
    schemes = names if scheme == "all" else (scheme,)
    console, path = _console(), model or demo_bundle_path()
    return emit(bench.run(path, schemes=schemes, evictions=evictions, console=console), console)


@command.command()
@_MODEL
@click.option("--clips", type=COUNT, default=150, show_default=True, help="Short clips.")
@click.option("--streams", type=COUNT, default=4, show_default=True, help="Long streams.")
def accuracy(model: Path | None, clips: int, streams: int) -> int:
    """Answers of the demo model on held-out drawn video. In the window, and on streams 20 windows
    long beside the same windows sent again from scratch."""
    from edgekv.bench import accuracy as bench
    from edgekv.bench.report import emit
    from edgekv.demo_bundle import demo_bundle_path

    console = _console()
    result = bench.run(
        model or demo_bundle_path(), num_clips=clips, num_streams=streams, console=console
    )
    return emit(result, console)


@command.command()
@_MODEL
@click.option("--streams", type=COUNT, default=40, show_default=True, help="Of each length.")
@click.option(
    "--windows",
    type=click.IntRange(min=2, max=10**9),
    multiple=True,
    default=(20,),
    show_default=True,
    help="Length of the streams, in windows of 8 frames; may be given several times.",
)
def retention(model: Path | None, streams: int, windows: tuple[int, ...]) -> int:
    """What each rule still knows of a long stream's beginning."""
    from edgekv.bench import retention as bench
    from edgekv.bench.report import emit
    from edgekv.demo_bundle import demo_bundle_path

    console = _console()
    try:
        result = bench.run(
            model or demo_bundle_path(), num_streams=streams, windows=windows, console=console
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return emit(result, console)


@command.command()
@_MODEL
def pages(model: Path | None) -> int:
    """What pages of 8 to 128 tokens cost, and which to take. For the export of a model."""
    from edgekv.bench import pages as bench
    from edgekv.bench.report import emit
    from edgekv.demo_bundle import demo_bundle_path

    console = _console()
    return emit(bench.run(model or demo_bundle_path(), console=console), console)


@command.command()
@_MODEL
@click.option(
    "--frames",
    type=COUNT,
    default=20_000,
    show_default=True,
    help="Pushed into all sessions together.",
)
def soak(model: Path | None, frames: int) -> int:
    """A long life: pages, memory and time per frame at its end."""
    from edgekv.bench import soak as bench
    from edgekv.bench.report import emit
    from edgekv.demo_bundle import demo_bundle_path

    console = _console()
    return emit(bench.run(model or demo_bundle_path(), num_frames=frames, console=console), console)


@command.command()
@_MODEL
def identity(model: Path | None) -> int:
    """What sessions save that have something in common. Instructions, frames, pictures."""
    from edgekv.bench import identity as bench
    from edgekv.bench.report import emit
    from edgekv.demo_bundle import demo_bundle_path

    console = _console()
    return emit(bench.run(model or demo_bundle_path(), console=console), console)


@command.command()
@_MODEL
@click.option("--streams", type=COUNT, default=20, show_default=True, help="Needle streams.")
@click.option(
    "--windows",
    type=click.IntRange(min=2, max=10**9),
    default=20,
    show_default=True,
    help="Their length.",
)
def tiers(model: Path | None, streams: int, windows: int) -> int:
    """Frames on disk and back: size, error, cost, what is found."""
    from edgekv.bench import tiers as bench
    from edgekv.bench.report import emit
    from edgekv.demo_bundle import demo_bundle_path

    console = _console()
    result = bench.run(
        model or demo_bundle_path(), num_streams=streams, length=windows, console=console
    )
    return emit(result, console)


@command.command()
@_MODEL
def trace(model: Path | None) -> int:
    """What leaving the event log on costs, in time and on disk."""
    from edgekv.bench import trace as bench
    from edgekv.bench.report import emit
    from edgekv.demo_bundle import demo_bundle_path

    console = _console()
    return emit(bench.run(model or demo_bundle_path(), console=console), console)
