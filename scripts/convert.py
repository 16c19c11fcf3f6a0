#!/usr/bin/env python3
"""Build the engines of a bundle ahead of time, on the device that will run them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import edgekv
from edgekv.bundle import Bundle
from edgekv.cli.options import PathType
from edgekv.device_config import read_device_config
from edgekv.executors import choose_device

console = Console(stderr=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=PathType())
@click.option("--to", "device", type=click.Choice(["tensorrt"]), required=True)
@click.option("--profile", type=PathType(),
              help="Settings of the device (configs/).")  # fmt: skip
@click.option("--kv-budget", help="Bytes of the KV pool. [default: the profile's, or 64MiB]")
@click.option("-o", "--output", type=PathType(folder=True),
              help="Where engines are kept. [default: where edgekv run looks]")  # fmt: skip
def main(
    bundle: Path, device: str, profile: Path | None, kv_budget: str | None, output: Path | None
) -> None:
    """Load BUNDLE once, so that every engine it needs is built, and run each of them once.

    The engines serve any KV budget up to the next power of two in pages.
    """
    settings: dict[str, Any] = dict(read_device_config(profile).load) if profile else {}
    settings["device"] = choose_device(device)
    if kv_budget is not None:
        settings["kv_budget"] = kv_budget
    if output is not None:
        settings["engine_cache"] = output
    logging.basicConfig(level=logging.INFO, handlers=[RichHandler(console=console)])
    with (
        _bars() as report,
        edgekv.load(bundle, progress=report, **settings) as model,
        model.session() as session,
    ):
        if (example := _example(model.bundle)) is not None:
            session.push(example, time_s=0.0)
        session.logits("Ready?")
    console.print(f"{bundle}: ready for {device}")


def _example(bundle: Bundle) -> NDArray[np.uint8] | NDArray[np.float32] | None:
    """A picture (64, 64, 3) or a sound (num_samples,) to try the engines with; None where the model
    takes text only."""
    if bundle.cross is not None and bundle.cross.audio is not None:
        return np.zeros(bundle.cross.audio.sampling_rate, np.float32)
    if bundle.cross is None and bundle.image is None:
        return None
    return np.zeros((64, 64, 3), np.uint8)


@contextmanager
def _bars() -> Iterator[Any]:
    """A bar for each phase of each graph."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def report(graph: str, phase: str, share: float) -> None:
            label = f"{graph}: {phase}"
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=1.0)
            progress.update(tasks[label], completed=share)

        yield report


if __name__ == "__main__":
    try:
        main.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (edgekv.EdgeKVError, ValueError, OSError) as error:
        click.echo(f"convert.py: {error}", err=True)
        sys.exit(1)
