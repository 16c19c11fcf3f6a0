"""What ``edgekv run`` can be told.

Owns: every argument and option with its type, default and help text, ``RunOptions``, which holds
what was given, and what goes together. A new option is a field of ``RunOptions`` and an entry of
``_OPTIONS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from edgekv.cache.retention import retain_choices, retention_rules
from edgekv.cli.options import (
    COUNT,
    PathType,
    device_config,
    duration,
    finite,
    host_and_port,
    question,
    size,
)
from edgekv.config import KVDtype
from edgekv.executors import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One call of ``edgekv run``. Times in seconds, sizes in bytes."""

    source: str | None  # None = the built-in clip
    model: Path | None  # None = the demo model
    prompts: tuple[str, ...]
    every: float
    fps: float
    config: Path | None  # whose values stand in all other fields that were not given
    kv_budget: int
    kv_dtype: KVDtype | None  # None = the bundle's choice
    retain: str
    skip_still: float | None  # seconds between frames that are encoded all the same
    instructions: str | None
    tier: Path | None  # None = frames that leave are gone
    tier_limit: int
    device: str
    engine_cache: Path | None  # None = in the user's cache folder
    max_step_tokens: int
    max_new_tokens: int
    max_duration: float | None
    save_to: Path | None
    save_every: float
    restore: bool
    realtime: bool
    output_format: str
    trace_path: Path | None
    trace_limit: int
    metrics_at: tuple[str, int] | None  # address, port
    threads: int


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("source", required=False),
    click.option("--model", type=PathType(), help="Bundle folder. [default: the demo model]"),
    click.option(
        "--prompt",
        "prompts",
        multiple=True,
        callback=question,
        help="A question; may be given several times.",
    ),
    click.option(
        "--every",
        metavar="TIME",
        callback=duration,
        default="2s",
        show_default=True,
        help="Stream time between questions.",
    ),
    click.option(
        "--fps",
        type=click.FloatRange(min=0, min_open=True),
        callback=finite,
        default=2.0,
        show_default=True,
        help="Frames taken per second of stream time.",
    ),
    click.option(
        "--config",
        type=PathType(),
        is_eager=True,
        callback=device_config,
        help="Settings of a device (configs/); options given here win over it.",
    ),
    click.option(
        "--kv-budget",
        metavar="SIZE",
        callback=size,
        default="64MiB",
        show_default=True,
        help="Bytes of the KV pool.",
    ),
    click.option(
        "--kv-dtype",
        type=click.Choice(get_args(KVDtype)),
        help="What cached keys and values are stored as. [default: the bundle's choice]",
    ),
    click.option(
        "--retain",
        type=click.Choice(retain_choices()),
        default="window",
        show_default=True,
        help="Which frames stay when the window or the budget is full.",
    ),
    click.option(
        "--skip-still",
        metavar="TIME",
        callback=duration,
        help="Do not encode frames that show nothing new, but one at least every TIME.",
    ),
    click.option("--instructions", help="Text pinned at the start of the context."),
    click.option(
        "--tier",
        metavar="FILE",
        type=PathType(written=True),
        help="Keep frames that leave in FILE; questions bring back those they are about. A new "
        "session empties the FILE, one that --save continues goes on with it.",
    ),
    click.option(
        "--tier-limit",
        metavar="SIZE",
        callback=size,
        default="256MiB",
        show_default=True,
        help="Most bytes of the tier; the oldest frames go when it is full.",
    ),
    click.option(
        "--device",
        type=click.Choice(["auto", *get_args(Device)]),
        default="auto",
        show_default=True,
        help="What runs the model; auto: the first that `edgekv doctor` calls ready.",
    ),
    click.option(
        "--engine-cache",
        type=PathType(folder=True),
        help="Where TensorRT's engines are kept. [default: edgekv/engines in the user's cache "
        "folder]",
    ),
    click.option(
        "--max-step-tokens",
        type=COUNT,
        default=256,
        show_default=True,
        help="Largest prefill chunk.",
    ),
    click.option(
        "--max-new-tokens",
        type=COUNT,
        default=32,
        show_default=True,
        help="Longest answer.",
    ),
    click.option(
        "--duration",
        "max_duration",
        metavar="TIME",
        callback=duration,
        help="Stop after this much stream time.",
    ),
    click.option(
        "--save",
        "save_to",
        metavar="FILE",
        type=PathType(written=True),
        help="Keep the session in FILE: continue from it if it exists, save it at intervals and at "
        "the end.",
    ),
    click.option(
        "--save-every",
        metavar="TIME",
        callback=duration,
        default="60s",
        show_default=True,
        help="Stream time between saves.",
    ),
    click.option(
        "--restore/--no-restore",
        default=True,
        show_default=True,
        help="Whether to continue from FILE if it exists.",
    ),
    click.option(
        "--realtime", is_flag=True, help="Play a file at its own pace, as a camera would."
    ),
    click.option(
        "--format",
        "output_format",
        type=click.Choice(["text", "jsonl"]),
        default="text",
        show_default=True,
        help="jsonl: one JSON object a line on stdout, nothing else (docs/jsonl.md).",
    ),
    click.option(
        "--trace",
        "trace_path",
        type=PathType(written=True),
        help="Log every event of the cache to this file, for `edgekv trace`.",
    ),
    click.option(
        "--trace-limit",
        metavar="SIZE",
        callback=size,
        default="64MiB",
        show_default=True,
        help="Most bytes of the log on disk; the older half goes when it is full.",
    ),
    click.option(
        "--metrics",
        "metrics_at",
        metavar="[HOST:]PORT",
        callback=host_and_port,
        help="Serve figures for Prometheus there while the run lasts.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=0, max=1024),
        default=0,
        help="CPU threads. [default: one per core]",
    ),
)


# What changes how another option works, and is nothing without it: (parameter, option), needs both.
_NEEDS = (
    (("save_every", "--save-every"), ("save_to", "--save")),
    (("restore", "--no-restore"), ("save_to", "--save")),
    (("tier_limit", "--tier-limit"), ("tier", "--tier")),
    (("trace_limit", "--trace-limit"), ("trace_path", "--trace")),
)


def given_here(context: click.Context, name: str) -> bool:
    """Whether a parameter was given on the command line, and not by a file or a default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def check_together(context: click.Context, options: RunOptions) -> None:
    """Raise UsageError for options that were given without what they are about, and for one file
    that two would write to."""
    for (name, given), (other, needed) in _NEEDS:
        if given_here(context, name) and getattr(options, other) is None:
            raise click.UsageError(f"{given} needs {needed}", context)
    if options.tier is not None and options.retain not in retention_rules():
        raise click.UsageError(
            f"with --retain {options.retain} no frame leaves, so --tier has none to keep", context
        )
    written = {"--save": options.save_to, "--tier": options.tier, "--trace": options.trace_path}
    real = {option: os.path.realpath(path) for option, path in written.items() if path is not None}
    for one, other in combinations(real, 2):
        if real[one] == real[other]:
            raise click.UsageError(
                f"{one} and {other} need a file each, got {written[one]}", context
            )


def run_options(function: Callable[..., int]) -> Callable[..., int]:
    """Decorates a click command with every option, in the order its help shows them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
