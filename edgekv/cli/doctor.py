"""``edgekv doctor``: what can run here, what cannot and why; does this model fit this device."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from edgekv.cli.options import PathType, device_config, size
from edgekv.config import KVDtype, format_bytes
from edgekv.errors import BudgetError

if TYPE_CHECKING:
    from edgekv.bundle import Bundle, CrossSettings
    from edgekv.estimate import Estimate

_LIBRARIES = ("onnxruntime", "numpy", "opencv-python-headless", "pillow", "tokenizers", "tensorrt")


@click.command(name="doctor")
@click.argument("bundle", required=False, type=PathType())
@click.option(
    "--config",
    type=PathType(),
    is_eager=True,
    expose_value=False,
    callback=device_config,
    help="Settings of a device (configs/); options given here win over it.",
)
@click.option(
    "--kv-budget",
    metavar="SIZE",
    callback=size,
    default="64MiB",
    show_default=True,
    help="Bytes of the KV pool.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(get_args(KVDtype)),
    help="What cached keys and values are stored as. [default: the bundle's choice]",
)
def command(bundle: Path | None, kv_budget: int, kv_dtype: KVDtype | None) -> int:
    """Check this machine, whether BUNDLE (default: the demo model) fits it, and how many frames a
    session of it holds. Exit code 0 when something can run the bundle here, 1 when nothing can."""
    from edgekv.bundle import Bundle
    from edgekv.demo_bundle import demo_bundle_path
    from edgekv.estimate import estimate

    opened = Bundle.open(bundle or demo_bundle_path())
    need = estimate(opened, kv_budget, kv_dtype)  # what was given is refused before anything shows
    console = Console(highlight=False)
    _show_machine(console)
    can_run = _show_devices(console)
    _show_video(console)
    fits = _show_bundle(console, opened, need, kv_dtype)
    return 0 if can_run and fits else 1


def _grid() -> Table:
    table = Table(box=None, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _show(console: Console, title: str, table: Table) -> None:
    """A heading and its rows, without the blanks with which rich fills every row."""
    console.print(Text(title, "bold"), soft_wrap=True)
    for line in console.render_lines(table, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            text, style, control = line.pop()
            line.append(Segment(text.rstrip(), style, control))
        console.print(Segments([*line, Segment.line()]), end="", soft_wrap=True)


def _show_machine(console: Console) -> None:
    from edgekv.memory import available_bytes, total_bytes

    total, available = total_bytes(), available_bytes()
    table = _grid()
    table.add_row(
        "system", f"{platform.system()} {platform.machine()}, Python {sys.version.split()[0]}"
    )
    table.add_row("cores", str(os.cpu_count()))
    if total is not None and available is not None:
        table.add_row("memory", f"{format_bytes(available)} available of {format_bytes(total)}")
    for name in _LIBRARIES:
        table.add_row(name, _version(name))
    _show(console, "machine", table)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _show_devices(console: Console) -> bool:
    from edgekv.executors import device_reports

    reports = device_reports()
    table = _grid()
    for report in reports:
        table.add_row(
            report.device,
            "[green]ready[/]" if report.available else _refusal(report.problems),
        )
    _show(console, "\ndevices", table)
    return any(report.available for report in reports)


def _verdict(fits: bool) -> str:
    return "[green]fits in memory[/]" if fits else "[red]does not fit in memory[/]"


def _refusal(problems: tuple[str, ...]) -> str:
    first, *others = map(escape, problems)
    return "\n".join([f"[yellow]no:[/] {first}", *others])


def _show_video(console: Console) -> None:
    from edgekv.media import backends

    table = _grid()
    for name, answer in backends().items():
        table.add_row(name, escape(answer))
    _show(console, "\nvideo", table)


def _show_bundle(
    console: Console, opened: Bundle, need: Estimate, kv_dtype: KVDtype | None
) -> bool:
    from edgekv.executors.tensorrt.memory import build_bytes, graph_bytes
    from edgekv.memory import available_bytes

    geometry, available = opened.geometry_for(kv_dtype), available_bytes()
    fits = available is None or need.total_bytes <= available
    table = _grid()
    table.add_row("family", escape(f"{opened.manifest.family}, weights {opened.manifest.weights}"))
    table.add_row("weights", format_bytes(need.weight_bytes))
    table.add_row(
        "KV pool",
        f"{_pages(need.num_pages)} of {geometry.page_size} tokens in {geometry.dtype}, "
        f"{format_bytes(geometry.page_bytes)} each",
    )
    if opened.cross is not None:
        table.add_row("cross-attention", _cross_line(opened.cross, need))
    table.add_row("workspace", format_bytes(need.workspace_bytes))
    has_room = _add_session(table, opened, need.num_pages, kv_dtype)
    table.add_row("in all", f"{format_bytes(need.total_bytes)}: {_verdict(fits)}")
    building = build_bytes(max(map(graph_bytes, opened.graph_paths)))
    builds = available is None or building <= available
    engines = f"about {format_bytes(building)} while its engines are built: {_verdict(builds)}"
    table.add_row("TensorRT", engines)
    _show(console, f"\nbundle {opened.manifest.name} in {opened.path}", table)
    return fits and has_room


def _add_session(table: Table, bundle: Bundle, num_pages: int, kv_dtype: KVDtype | None) -> bool:
    """How many frames a session holds, and why so many; False when it holds none."""
    from edgekv.capacity import session_capacity

    tokens = bundle.manifest.max_context_tokens
    try:
        capacity = session_capacity(bundle, num_pages, kv_dtype)
    except BudgetError as error:
        table.add_row("one session", f"[red]none in this pool:[/] {escape(str(error))}")
        return False
    if capacity is None:
        table.add_row("one session", f"a window of {tokens} tokens")
        return True
    limits, frame = capacity.limits, capacity.frame_tokens
    start, reserve = capacity.start_tokens, limits.reserve_tokens
    table.add_row(
        "the window",
        f"{tokens} tokens - {start} pinned start - {reserve} for a question and its answer = "
        f"{tokens - start - reserve}: {limits.max_frames} frames of {frame}",
    )
    left = num_pages - limits.start_pages - limits.reserve_pages
    table.add_row(
        "the pool",
        f"{num_pages} pages - {limits.start_pages} pinned start - {limits.reserve_pages} for a "
        f"question and its answer = {left}: {left // limits.frame_pages} frames of "
        f"{_pages(limits.frame_pages)}",
    )
    fitting, leaving = limits.fitting_frames, limits.leaving_frames
    bound = "the model's window" if fitting == limits.max_frames else "the pool (--kv-budget)"
    used = fitting * limits.frame_pages + limits.start_pages + limits.reserve_pages
    table.add_row(
        "one session",
        f"[bold]{fitting} frames fit[/], bounded by {bound}; when one more comes, {leaving} leave "
        f"at once. {_pages(used)}, {format_bytes(used * limits.cache.geometry.page_bytes)}",
    )
    return True


def _pages(count: int) -> str:
    return f"{count} page" if count == 1 else f"{count} pages"


def _cross_line(cross: CrossSettings, need: Estimate) -> str:
    """What cross-attention takes."""
    what = "sounds" if cross.audio is not None else "pictures"
    num_inputs = need.num_cross_pages // cross.geometry.pages_for(cross.max_states)
    size = format_bytes(need.cross_bytes)
    return f"{what}, {num_inputs} of the largest in pools of {size}"
