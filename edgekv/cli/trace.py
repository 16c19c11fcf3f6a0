"""``edgekv trace``: what happened in a cache, from its event log."""

from __future__ import annotations

import textwrap
from pathlib import Path

import click

from edgekv.cli.options import PathType


@click.command(name="trace")
@click.argument("file", type=PathType())
@click.option(
    "-o",
    "--output",
    type=PathType(written=True),
    help="Draw the page map: a .html file that needs nothing else, or a .png.",
)
@click.option(
    "--replay", "again", is_flag=True, help="Run the log again and compare every decision."
)
def command(file: Path, output: Path | None, again: bool) -> int:
    """Say what happened in FILE, a log that `edgekv run --trace FILE` wrote. Exit code 1 when a
    replay comes out differently."""
    from edgekv.trace import read_log

    if output is not None:
        from edgekv.trace.draw import FORMATS

        if output.suffix.lower() not in FORMATS:
            expected = f"the picture must be named {' or '.join(FORMATS)}, got {output.name}"
            raise click.BadParameter(expected, param_hint="--output")
    log = read_log(file)
    if again and not _replayed(file):
        return 1
    if output is not None:
        from edgekv.trace.draw import draw

        words = draw(log, output)
        click.echo(f"{output}:")
        click.echo(textwrap.fill(words.story, 100))
    elif not again:
        from edgekv.trace.timeline import build_timeline
        from edgekv.trace.view import make_view
        from edgekv.trace.words import describe

        words = describe(log, make_view(build_timeline(log)))
        click.echo(textwrap.fill(words.story, 100))
        for account in words.accounts:
            click.echo(textwrap.fill(account, 100, subsequent_indent="  "))
        wide = max(len(name) for name, _ in words.figures)
        for name, value in words.figures:
            click.echo(f"  {name:<{wide}}  {value}")
    if log.cut_short:
        click.echo(f"edgekv trace: {file} ends early: {log.cut_short}; read up to there", err=True)
    return 0


def _replayed(file: Path) -> bool:
    """Replay and say in one line how it ended."""
    from edgekv.trace import read_log
    from edgekv.trace.replay import replay

    result = replay(read_log(file))
    if result.difference is not None:
        click.echo(f"{file}: the replay differs at {result.difference}", err=True)
        return False
    logged = f", {result.num_drops_as_logged} taken as logged" if result.num_drops_as_logged else ""
    inputs = f", {result.num_input_changes} changes of inputs" if result.num_input_changes else ""
    click.echo(
        f"{file}: replayed the same: {result.num_events} events, {result.num_appends} appends, "
        f"{result.num_drops} drops{logged}, {result.num_counts} counts{inputs}"
    )
    return True
