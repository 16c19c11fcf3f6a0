#!/usr/bin/env python3
"""Export a Hugging Face model folder to an edgekv bundle."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from edgekv.cli.options import PathType
from edgekv.errors import EdgeKVError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="HF_FOLDER", type=PathType())
@click.argument("target", metavar="OUT", type=PathType())
@click.option("--weights", type=click.Choice(["fp32", "fp16", "int4"]), default="fp16",
              show_default=True, help="How weights are stored.")  # fmt: skip
@click.option("--kv-dtype", type=click.Choice(["float32", "float16"]), default="float16",
              show_default=True, help="What cached keys and values are stored as.")  # fmt: skip
@click.option("--page-size", type=int, default=16, show_default=True, help="Tokens in a page.")
@click.option("--opset", type=int, default=23, show_default=True,
              help="20 to 23; TensorRT 10.3 (JetPack 6) reads up to 20.")  # fmt: skip
@click.option("--max-context", type=int, help="Tokens, at most what the model was trained on.")
@click.option("--force", is_flag=True, help="Replace a bundle that is already at OUT.")
def main(source: Path, target: Path, force: bool, **choices: Any) -> None:
    """Export the model in HF_FOLDER (or a .gguf file) to the bundle folder OUT."""
    # The libraries' own bars and advice would bury ours; nothing is to be looked up online.
    os.environ.update(TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")
    try:
        from rich.console import Console

        from edgekv.export.build import ExportOptions, export_bundle
    except ImportError as error:
        message = f"exporting needs {error.name}: pip install 'edgekv[export]'"
        raise click.ClickException(message) from None
    console = Console(stderr=True)
    try:
        options = ExportOptions(replace=force, **choices)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        with console.status("starting") as status:

            def progress(line: str) -> None:
                console.print(f"[dim]·[/dim] {line}")
                status.update(line)

            manifest = export_bundle(source, target, options, progress)
    except (EdgeKVError, OSError) as error:
        raise click.ClickException(str(error)) from None
    size = sum(entry.size_bytes for entry in manifest.files.values())
    console.print(f"{target}: {manifest.family}, {manifest.weights}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
