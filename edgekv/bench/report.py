"""What every bench hands back, and how it is shown: a table for people, one JSON line for machines.

Owns: the result type, the machine's description, the last line of stdout and the exit code.
Guarantees: the JSON object is one line of valid JSON and the last on stdout; a bound that no figure
    answers is an error, never a silent pass.
Does not know: what is measured.
"""

from __future__ import annotations

import json
import math
import operator
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

EXIT_OK, EXIT_BOUND_MISSED = 0, 3

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One bench's figures beside its baseline.

    A baseline entry named as a figure, or ``NAME.figure``, is shown beside it with the ratio.
    With ``rows``, the figures ``ROW_column`` are shown as a table of their own, a line per row, and
    below it what ``legend`` says of the columns; "" is that of the rows' names.
    """

    bench: str
    machine: Mapping[str, str | int]
    figures: Mapping[str, float]
    baseline: Mapping[str, str | float]
    bounds: Mapping[str, tuple[str, float]]  # figure -> (comparison, value)
    rows: tuple[str, ...] = ()
    legend: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for figure, (comparison, _) in self.bounds.items():
            if figure not in self.figures:
                raise ValueError(f"bound on {figure}, which {self.bench} did not measure")
            if comparison not in _COMPARE:
                raise ValueError(f"bound must be one of {', '.join(_COMPARE)}, got {comparison!r}")

    def holds(self, figure: str) -> bool:
        """Whether the figure is within its bound; True when it has none. NaN is within no bound."""
        comparison, value = self.bounds.get(figure, ("==", self.figures[figure]))
        return figure not in self.bounds or _COMPARE[comparison](self.figures[figure], value)

    @property
    def ok(self) -> bool:
        return all(map(self.holds, self.bounds))


def machine() -> dict[str, str | int]:
    """The machine as a person would name it: processor, cores, memory, system, versions."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
    }


def emit(result: BenchResult, console: Console) -> int:
    """Print the table on ``console``, the JSON line last on stdout; the exit code is returned."""
    console.print(", ".join(f"{key} {value}" for key, value in result.machine.items()))
    in_rows = {f"{row}_{name}" for row in result.rows for name in _columns(result)}
    if result.rows:
        console.print(_table_of_rows(result))
        for column, meaning in result.legend.items():
            console.print(f"  {column.replace('_', ' ') or 'lines':<16}{meaning}")
    if rest := [figure for figure in result.figures if figure not in in_rows]:
        console.print(_table(result, rest))
    console.file.flush()
    sys.stdout.write(to_json(result) + "\n")
    sys.stdout.flush()
    return EXIT_OK if result.ok else EXIT_BOUND_MISSED


def to_json(result: BenchResult) -> str:
    """One line. Numbers that JSON cannot hold (NaN, infinity) become null."""
    return json.dumps(
        {
            "bench": result.bench,
            "machine": dict(result.machine),
            "figures": {name: _finite(value) for name, value in result.figures.items()},
            "baseline": {name: _finite(value) for name, value in result.baseline.items()},
            "bounds": {name: list(bound) for name, bound in result.bounds.items()},
            "ok": result.ok,
        },
        allow_nan=False,
    )


def _columns(result: BenchResult) -> tuple[str, ...]:
    """What the figures of each row are called, in the order of the first row that has them."""
    names = (
        figure.removeprefix(f"{row}_")
        for row in result.rows
        for figure in result.figures
        if figure.startswith(f"{row}_")
    )
    return tuple(dict.fromkeys(names))


def _table_of_rows(result: BenchResult) -> Table:
    columns = _columns(result)
    table = Table(title=f"bench {result.bench}", title_justify="left")
    for column in ("", *columns):
        table.add_column(column.replace("_", " "), justify="right" if column else "left")
    for row in result.rows:
        cells = []
        for column in columns:
            figure = f"{row}_{column}"
            value = result.figures.get(figure)
            text = "" if value is None else f"{value:.4g}"
            cells.append(text if value is None or result.holds(figure) else f"{text} MISSED")
        table.add_row(row, *cells)
    return table


def _table(result: BenchResult, figures: Sequence[str]) -> Table:
    table = Table(title=f"bench {result.bench}", title_justify="left", caption_justify="left")
    rivals = _rivals(result)
    if rivals:
        table.caption = "(2x): twice edgekv's figure"
    for column in ("figure", "edgekv", *(name or "baseline" for name in rivals), "bound"):
        table.add_column(column, justify="left" if column in ("figure", "bound") else "right")
    for figure in figures:
        value = result.figures[figure]
        cells = [figure, f"{value:.4g}"]
        for rival in rivals:
            other = result.baseline.get(f"{rival}.{figure}" if rival else figure)
            cells.append(_beside(value, other) if isinstance(other, int | float) else "")
        bound = ""
        if figure in result.bounds:
            comparison, limit = result.bounds[figure]
            bound = f"{comparison} {limit:g} {'held' if result.holds(figure) else 'MISSED'}"
        table.add_row(*cells, bound)
    return table


def _rivals(result: BenchResult) -> list[str]:
    """Names of the baselines that have a number for some figure; "" for an unnamed one."""
    names: dict[str, None] = {}
    for key, value in result.baseline.items():
        name, _, figure = key.rpartition(".")
        if figure in result.figures and isinstance(value, int | float):
            names[name] = None
    return list(names)


def _beside(value: float, other: float) -> str:
    ratio = f" ({other / value:.2f}x)" if value else ""
    return f"{other:.4g}{ratio}"


def _finite(value: str | float) -> str | float | None:
    return value if isinstance(value, str) or math.isfinite(value) else None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0  # not told on this system
