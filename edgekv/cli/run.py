"""``edgekv run``: questions about a video or a camera while it runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, get_args

import click

from edgekv.cache.retention import retain_choices
from edgekv.cli.options import duration, finite, size
from edgekv.cli.output import JsonlOutput, Output, TextOutput
from edgekv.errors import SessionFileError
from edgekv.executors import Device

if TYPE_CHECKING:
    from edgekv.media import VideoSource
    from edgekv.model import Model
    from edgekv.session import Session
    from edgekv.stream import StreamRun


@click.command(name="run")
@click.argument("source", required=False)
@click.option(
    "--model", type=click.Path(path_type=Path), help="Bundle folder. [default: the demo model]"
)
@click.option("--prompt", "prompts", multiple=True, help="A question; may be given several times.")
@click.option(
    "--every",
    metavar="TIME",
    callback=duration,
    default="2s",
    show_default=True,
    help="Stream time between questions.",
)
@click.option(
    "--fps",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    default=2.0,
    show_default=True,
    help="Frames taken per second of stream time.",
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
    "--retain",
    type=click.Choice(retain_choices()),
    default="window",
    show_default=True,
    help="Which frames stay when the window or the budget is full.",
)
@click.option("--instructions", help="Text pinned at the start of the context.")
@click.option(
    "--device", type=click.Choice(["auto", *get_args(Device)]), default="auto", show_default=True
)
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option(
    "--duration",
    "max_duration",
    metavar="TIME",
    callback=duration,
    help="Stop after this much stream time.",
)
@click.option(
    "--save",
    "save_to",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the session in FILE: continue from it if it exists, save it at intervals and at the "
    "end.",
)
@click.option(
    "--save-every",
    metavar="TIME",
    callback=duration,
    default="60s",
    show_default=True,
    help="Stream time between saves.",
)
@click.option(
    "--restore/--no-restore",
    default=True,
    show_default=True,
    help="Whether to continue from FILE if it exists.",
)
@click.option("--realtime", is_flag=True, help="Play a file at its own pace, as a camera would.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "jsonl"]),
    default="text",
    show_default=True,
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    help="Log every event of the cache to this file, for `edgekv trace`.",
)
@click.option(
    "--trace-limit",
    metavar="SIZE",
    callback=size,
    default="64MiB",
    show_default=True,
    help="Most bytes of the log on disk; the older half goes when it is full.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=0, max=1024),
    default=0,
    help="CPU threads. [default: one per core]",
)
def command(
    source: str | None,
    model: Path | None,
    prompts: tuple[str, ...],
    every: float,
    fps: float,
    kv_budget: int,
    retain: str,
    instructions: str | None,
    device: str,
    max_new_tokens: int,
    max_duration: float | None,
    save_to: Path | None,
    save_every: float,
    restore: bool,
    realtime: bool,
    output_format: str,
    trace_path: Path | None,
    trace_limit: int,
    threads: int,
) -> int:
    """Ask questions about SOURCE: a video file, /dev/video0, csi://0, rtsp://…, a folder of
    images. Without SOURCE the built-in demo clip plays, and its answers are checked."""
    import edgekv
    from edgekv.demo.clip import demo_clip
    from edgekv.stream import Question, StreamRun, Summary

    clip = demo_clip() if source is None else None
    if prompts:
        questions = [Question(prompt, every_s=every) for prompt in prompts]
    elif clip is not None:
        questions = [Question(q.text, at_s=q.time_s, expected=q.answer) for q in clip.questions]
    else:
        raise click.UsageError("SOURCE needs at least one --prompt")
    num_wrong = 0
    output: Output = JsonlOutput() if output_format == "jsonl" else TextOutput()
    with (
        edgekv.load(
            model or edgekv.demo_bundle_path(),
            kv_budget=kv_budget,
            device=device,
            num_threads=threads,
            trace=trace_path,
            trace_limit=trace_limit,
        ) as loaded,
        edgekv.open_video(
            str(clip.path) if clip else str(source), fps=fps, realtime=realtime
        ) as video,
        _open_session(loaded, save_to if restore else None, instructions, retain) as session,
        output,
    ):
        run = StreamRun(
            session,
            video,
            questions,
            options=edgekv.SamplingOptions(max_new_tokens=max_new_tokens),
            duration_s=max_duration,
            save_to=save_to,
            save_every_s=save_every,
        )
        # Closing: when the reader of stdout has gone, the session is saved before it closes.
        with _stopping_on_signals(run, video), closing(run.events()) as events:
            for event in events:
                output.show(event)
                if isinstance(event, Summary):
                    num_wrong = event.num_wrong
        if run.save_error is not None:
            raise run.save_error
    if num_wrong:
        click.echo(f"edgekv run: {num_wrong} answers about the demo clip are wrong", err=True)
        return 1
    return 0


def _open_session(
    model: Model, saved: Path | None, instructions: str | None, retain: str
) -> Session:
    """The session in the file ``saved``, or a new one when there is none."""
    if saved is None or not saved.exists():
        return model.session(instructions=instructions, retain=retain)
    session = model.restore(saved)
    if (session.instructions, session.retain) == (instructions, retain):
        return session
    session.close()
    raise SessionFileError(
        f"{saved}: saved with instructions {session.instructions!r} and --retain {session.retain}; "
        "give the same, or --no-restore to begin anew"
    )


@contextmanager
def _stopping_on_signals(run: StreamRun, video: VideoSource) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the stream, so that the summary still comes; a second one kills."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.default_int_handler)
        run.stop()
        video.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
