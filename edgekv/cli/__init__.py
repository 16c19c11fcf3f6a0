"""The ``edgekv`` command. Subcommands are imported when they are called, so that it starts fast."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from typing import Any

import click

from edgekv.errors import EdgeKVError

_COMMANDS = {
    "run": "ask questions about a video or a camera while it runs",
    "doctor": "what can run here, what cannot and why",
    "trace": "what happened in the cache: the page map over time, and replay",
    "bench": "figures, each beside its baseline",
}


_MAX_LINE = 1000  # characters of an error: more is a value that nobody wants to see again


class _LazyGroup(click.Group):
    """Knows its commands by name and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"edgekv.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(package_name="edgekv", message="edgekv %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Vision-language models over endless video, inside a fixed memory budget."""
    show_help_alone(context)


def show_help_alone(context: click.Context) -> None:
    """What a group does where no command was given."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Exit codes: 0, 2 for bad usage, 1 for what went wrong on the way, with
    one line on stderr, 3 when a bench misses one of its bounds, 130 for Ctrl-C while loading."""
    _write_any_text()
    try:
        result: Any = cli.main(args=arguments, prog_name="edgekv", standalone_mode=False)
        code = result if isinstance(result, int) else 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "edgekv"
        code = _fail(f"{where}: {_in_words(error)}", 2)
    except click.ClickException as error:
        _drop_stdout()
        code = _fail(f"edgekv: {error.format_message()}", 1)
    except (EdgeKVError, ValueError) as error:
        code = _fail(f"edgekv: {error}", 1)
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except ImportError as error:
        if not _comes_of_ctrl_c(error):
            raise
        code = 130
    except OSError as error:
        _drop_stdout()
        name = f"{str(error.filename)[:200]}: " if error.filename is not None else ""
        code = _fail(f"edgekv: {name}{error.strerror or error}", 1)
    sys.exit(code)


def _in_words(error: click.UsageError) -> str:
    """What is wrong with a command line; where there is no such command, which there are."""
    message, context = error.format_message(), error.ctx
    if context is None or not isinstance(context.command, click.Group):
        return message
    if not message.startswith("No such command"):
        return message
    return f"{message.rstrip('.')}, expected {', '.join(context.command.list_commands(context))}"


def _comes_of_ctrl_c(error: BaseException | None) -> bool:
    """Whether it was Ctrl-C that a library being imported made an error of its own of."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _write_any_text() -> None:
    """Answers hold any character; one that the encoding here lacks shows as ``\\u…``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """Forget what could not be written: Python would try again at exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(line: str, code: int) -> int:
    line = " ".join(line.split())
    click.echo(line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…", err=True)
    return code
