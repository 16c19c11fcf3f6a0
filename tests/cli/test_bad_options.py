"""Every option of every command that takes a path or a number refuses the wrong ones: exit code 2
and one line, before anything is loaded or written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgekv.cli import cli, main
from edgekv.cli.options import PathType, duration, host_and_port, size

NO_PATHS = ["", "a\0b", "x" * 300, "x/" * 3000]
NO_TARGETS = [*NO_PATHS, "{folder}", "{folder}/no/such", "{file}/below"]
NO_SIZES = ["", "x", "-1", "0", "nan", "9" * 400, "1e3", "8EiB", "٣MiB"]
NO_DURATIONS = ["", "x", "-1s", "0s", "nan", "inf", "1e3", "9" * 400, "0.0000000001s"]
NO_NUMBERS = ["", "x", "-1", "nan", "1e400", "9" * 400, "9" * 5000]


def commands(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield (*names, name), command


def wrong_values(parameter: click.Parameter) -> list[str]:
    if isinstance(parameter.type, PathType):
        return NO_TARGETS if parameter.type.written else NO_PATHS
    if isinstance(parameter.type, click.types.IntRange | click.types.FloatRange):
        whole = isinstance(parameter.type, click.types.IntRange)
        return [*NO_NUMBERS, "1.5" if whole else "inf"]
    values = {size: NO_SIZES, duration: NO_DURATIONS, host_and_port: ["", "x", "-1", "65536", "٣"]}
    return next((some for check, some in values.items() if parameter.callback is check), [])


def cases() -> Iterator[tuple[tuple[str, ...], click.Parameter, str]]:
    for names, command in commands(cli):  # type: ignore[arg-type]  # a group, as click decorates
        for parameter in command.params:
            for value in wrong_values(parameter):
                yield names, parameter, value


@pytest.mark.parametrize(
    ("names", "parameter", "value"),
    [
        pytest.param(*case, id=f"{' '.join(case[0])} {case[1].name} {case[2][:9]!r}")
        for case in cases()
    ],
)
def test_a_wrong_value_is_bad_usage(
    names: tuple[str, ...],
    parameter: click.Parameter,
    value: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("hello")
    value = value.format(folder=tmp_path, file=tmp_path / "file") if "{" in value else value
    given = [value] if isinstance(parameter, click.Argument) else [parameter.opts[0], value]
    with pytest.raises(SystemExit) as ended:
        main([*names, *given])
    said = capfd.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1
    assert (parameter.human_readable_name in said.err) or (parameter.opts[0] in said.err)
    assert len(said.err) <= 1001
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_kind_of_option_is_there() -> None:
    seen = {(names[0], parameter.name) for names, parameter, _ in cases()}
    assert {
        ("run", "model"), ("run", "tier"), ("run", "save_to"), ("run", "trace_path"),
        ("run", "config"), ("run", "kv_budget"), ("run", "every"), ("run", "fps"),
        ("run", "metrics_at"), ("trace", "file"), ("trace", "output"), ("doctor", "bundle"),
        ("bench", "frames"),
    } <= seen  # fmt: skip
