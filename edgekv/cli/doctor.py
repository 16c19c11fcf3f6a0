"""``edgekv doctor``: what can run here, what cannot and why; does this model fit this device."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edgekv.cli.options import PathType, size
from edgekv.config import format_bytes

if TYPE_CHECKING:
    from edgekv.bundle import CrossSettings
    from edgekv.estimate import Estimate

_LIBRARIES = ("onnxruntime", "numpy", "opencv-python-headless", "pillow", "tokenizers", "tensorrt")


@click.command(name="doctor")
@click.argument("bundle", required=False, type=PathType())
@click.option(
    "--kv-budget",
    metavar="SIZE",
    callback=size,
    default="64MiB",
    show_default=True,
    help="Bytes of the KV pool.",
)
def command(bundle: Path | None, kv_budget: int) -> int:
    """Check this machine, and whether BUNDLE (default: the demo model) fits it. Exit code 0 when
    something can run the bundle here, 1 when nothing can."""
    from edgekv.demo_bundle import demo_bundle_path

    console = Console(highlight=False)
    _show_machine(console)
    can_run = _show_devices(console)
    _show_video(console)
    fits = _show_bundle(console, bundle or demo_bundle_path(), kv_budget)
    return 0 if can_run and fits else 1


def _grid(title: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _show_machine(console: Console) -> None:
    from edgekv.memory import available_bytes, total_bytes

    total, available = total_bytes(), available_bytes()
    table = _grid("machine")
    table.add_row(
        "system", f"{platform.system()} {platform.machine()}, Python {sys.version.split()[0]}"
    )
    table.add_row("cores", str(os.cpu_count()))
    if total is not None and available is not None:
        table.add_row("memory", f"{format_bytes(available)} available of {format_bytes(total)}")
    for name in _LIBRARIES:
        table.add_row(name, _version(name))
    console.print(table)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _show_devices(console: Console) -> bool:
    from edgekv.executors import device_reports

    reports = device_reports()
    table = _grid("\ndevices")
    for report in reports:
        table.add_row(
            report.device,
            "[green]ready[/]" if report.available else _refusal(report.problems),
        )
    console.print(table)
    return any(report.available for report in reports)


def _verdict(fits: bool) -> str:
    return "[green]fits[/]" if fits else "[red]does not fit[/]"


def _refusal(problems: tuple[str, ...]) -> str:
    first, *others = map(escape, problems)
    return "\n".join([f"[yellow]no:[/] {first}", *others])


def _show_video(console: Console) -> None:
    from edgekv.media import backends

    table = _grid("\nvideo")
    for name, answer in backends().items():
        table.add_row(name, escape(answer))
    console.print(table)


def _show_bundle(console: Console, path: Path, kv_budget: int) -> bool:
    from edgekv.bundle import Bundle
    from edgekv.estimate import estimate
    from edgekv.executors.tensorrt.memory import build_bytes, graph_bytes
    from edgekv.memory import available_bytes

    opened = Bundle.open(path)
    need = estimate(opened, kv_budget)
    available = available_bytes()
    fits = available is None or need.total_bytes <= available
    table = _grid(f"\nbundle {escape(opened.manifest.name)}")
    table.add_row("family", escape(f"{opened.manifest.family}, weights {opened.manifest.weights}"))
    table.add_row("weights", format_bytes(need.weight_bytes))
    table.add_row(
        "KV pool", f"{need.num_pages} pages of {format_bytes(opened.geometry.page_bytes)}"
    )
    if opened.cross is not None:
        table.add_row("cross-attention", _cross_line(opened.cross, need))
    table.add_row("workspace", format_bytes(need.workspace_bytes))
    a_frame = "" if opened.cross else f", {opened.tokens_per_image} a frame"
    table.add_row("context", f"{opened.manifest.max_context_tokens} tokens{a_frame}")
    geometry = opened.geometry
    most_pages = geometry.pages_for(opened.manifest.max_context_tokens) + 3  # partly filled ones
    table.add_row(
        "one session", f"at most about {format_bytes(most_pages * geometry.page_bytes)} of it"
    )
    table.add_row("in all", f"{format_bytes(need.total_bytes)}: {_verdict(fits)}")
    building = build_bytes(max(map(graph_bytes, opened.graph_paths)))
    builds = available is None or building <= available
    engines = f"about {format_bytes(building)} while its engines are built: {_verdict(builds)}"
    table.add_row("TensorRT", engines)
    console.print(table)
    return fits


def _cross_line(cross: CrossSettings, need: Estimate) -> str:
    """What cross-attention takes."""
    what = "sounds" if cross.audio is not None else "pictures"
    num_inputs = need.num_cross_pages // cross.geometry.pages_for(cross.max_states)
    size = format_bytes(need.cross_bytes)
    return f"{what}, {num_inputs} of the largest in pools of {size}"
