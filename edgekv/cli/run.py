"""``edgekv run``: questions about a video or a camera while it runs."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.output import JsonlOutput, Output, TextOutput
from edgekv.cli.run_options import RunOptions, check_together, given_here, run_options
from edgekv.errors import BudgetError, SessionFileError

if TYPE_CHECKING:
    from pathlib import Path

    from edgekv.demo.clip import DemoClip
    from edgekv.media import VideoSource
    from edgekv.model import Model
    from edgekv.saving import SessionRecord
    from edgekv.schedule import Question
    from edgekv.session import Session
    from edgekv.stream import StreamRun


@click.command(name="run")
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Ask questions about SOURCE: a video file, /dev/video0, csi://0, rtsp://…, a folder of
    images, half a second apart. Without SOURCE the built-in demo clip plays, and its answers are
    checked.

    Ctrl-C ends with the summary. Exit code 0; 1 for what went wrong, with one line on stderr;
    2 for bad usage."""
    from edgekv.demo.clip import demo_clip
    from edgekv.media import check_source

    options = RunOptions(**given)
    check_together(context, options)
    if options.source is not None:
        check_source(options.source)
    clip = demo_clip() if options.source is None else None
    if clip is not None and not options.prompts and not given_here(context, "fps"):
        options = replace(options, fps=clip.fps)  # its questions know nothing of a device's pace
    questions = _questions(options, clip)
    if clip is not None and not options.prompts and (why := _unchecked(options)):
        click.echo(f"edgekv run: answers are not checked: {why}", err=True)
        questions = [replace(question, expected=None) for question in questions]
    num_wrong = _run(options, clip, questions)
    if num_wrong:
        are = "answer is" if num_wrong == 1 else "answers are"
        what = f"{num_wrong} {are} wrong about the demo clip; without options all are right"
        click.echo(f"edgekv run: {what}", err=True)
        return 1
    return 0


def _unchecked(options: RunOptions) -> str | None:
    """Why the demo clip's answers, which are those of a window over it, may be other ones."""
    if options.retain not in ("window", "keep"):
        return f"--retain {options.retain} keeps frames that the clip's questions take for gone"
    if options.tier is not None:
        return "--tier brings frames back that the clip's questions take for gone"
    if options.restore and options.save_to is not None and options.save_to.exists():
        return f"{options.save_to} remembers what was before the clip"
    return None


def _questions(options: RunOptions, clip: DemoClip | None) -> list[Question]:
    """What is asked: the prompts given, or the built-in clip's own questions."""
    from edgekv.schedule import Question

    if options.prompts:
        return [Question(prompt, every_s=options.every) for prompt in options.prompts]
    if clip is None:
        raise click.UsageError("SOURCE needs at least one --prompt")
    return [Question(q.text, at_s=q.time_s, expected=q.answer) for q in clip.questions]


def _run(options: RunOptions, clip: DemoClip | None, questions: list[Question]) -> int:
    """Run to the end of the source: how many checked answers were wrong."""
    import edgekv
    from edgekv.metrics import serve_metrics
    from edgekv.stream import StreamRun
    from edgekv.stream_events import Summary

    num_wrong = 0
    output: Output = JsonlOutput() if options.output_format == "jsonl" else TextOutput()
    with ExitStack() as closed_at_end:
        model = closed_at_end.enter_context(_load(options))
        if options.metrics_at is not None:
            address, port = options.metrics_at
            metrics = serve_metrics(model, port, address=address)
            closed_at_end.callback(metrics.close)
            click.echo(f"edgekv run: metrics on {metrics.url}", err=True)
        video = closed_at_end.enter_context(
            edgekv.open_video(
                str(clip.path) if clip else str(options.source),
                fps=options.fps,
                realtime=options.realtime,
            )
        )
        session = closed_at_end.enter_context(_open_session(model, options))
        closed_at_end.enter_context(output)
        run = StreamRun(
            session,
            video,
            questions,
            options=edgekv.SamplingOptions(max_new_tokens=options.max_new_tokens),
            duration_s=options.max_duration,
            save_to=options.save_to,
            save_every_s=options.save_every,
        )
        # Closing: when the reader of stdout has gone, the session is saved before it closes.
        with _stopping_on_signals(run, video), closing(run.events()) as events:
            for event in events:
                output.show(event)
                if isinstance(event, Summary):
                    num_wrong = event.num_wrong
        if run.save_error is not None:
            raise run.save_error
    return num_wrong


def _load(options: RunOptions) -> Model:
    """The model. Settings made for another device are no surprise: what they take is said first."""
    if options.config is None:
        return _load_quietly(options)
    log = logging.getLogger("edgekv.estimate")
    told = logging.StreamHandler()
    told.setFormatter(logging.Formatter(f"{str(options.config).replace('%', '%%')}: %(message)s"))
    level, log.propagate = log.level, False
    log.setLevel(logging.INFO)
    log.addHandler(told)
    try:
        return _load_quietly(options)
    except BudgetError as error:
        raise BudgetError(f"{options.config}: {error}; --kv-budget wins over the file") from None
    finally:
        log.removeHandler(told)
        log.setLevel(level)
        log.propagate = True


def _load_quietly(options: RunOptions) -> Model:
    import edgekv

    return edgekv.load(
        options.model or edgekv.demo_bundle_path(),
        kv_budget=options.kv_budget,
        kv_dtype=options.kv_dtype,
        max_step_tokens=options.max_step_tokens,
        engine_cache=options.engine_cache,
        device=options.device,
        num_threads=options.threads,
    )


def _open_session(model: Model, options: RunOptions) -> Session:
    """The session in the file it is saved to, or a new one when there is none."""
    to_restore = _saved_session(options)
    if options.trace_path is not None:  # here: what an earlier run has logged there is lost
        model.trace(options.trace_path, limit=options.trace_limit)
    if to_restore is not None:
        return model.restore(to_restore, skip_still=options.skip_still)
    return model.session(
        instructions=options.instructions,
        retain=options.retain,
        skip_still=options.skip_still,
        tier=options.tier,
        tier_limit=options.tier_limit,
    )


def _saved_session(options: RunOptions) -> Path | None:
    """The file to go on from, if any. Raises SessionFileError when its session is another than the
    options say: before it is restored, which may cost frames in its tier and in other sessions."""
    from edgekv.saving import saved_record

    saved = options.save_to
    if saved is None or not options.restore or not saved.exists():
        return None
    difference = _difference(saved_record(saved), options)
    if difference is not None:
        raise SessionFileError(f"{saved}: saved {difference}, or give --no-restore to begin anew")
    return saved


def _difference(session: SessionRecord, options: RunOptions) -> str | None:
    """What a saved session has that the options are not, and what to do; None = they agree."""
    if options.tier is not None:
        if (had := session.tier) is None:
            return f"without a tier, which {options.tier} cannot be now; leave --tier out"
        same_file = os.path.realpath(had.path) == os.path.realpath(options.tier)
        if not same_file or had.max_bytes != options.tier_limit:
            return f"with --tier {had.path} --tier-limit {had.max_bytes}; give these, or neither"
    text, others = session.instructions, []
    if text != options.instructions:
        others.append("without --instructions" if text is None else f"with --instructions {text!r}")
    if session.retain != options.retain:
        others.append(f"with --retain {session.retain}")
    return f"{' and '.join(others)}; give the same" if others else None


@contextmanager
def _stopping_on_signals(run: StreamRun, video: VideoSource) -> Iterator[None]:
    """Ctrl-C, SIGTERM and, but under ``nohup``, a terminal that is closed end the stream, so that
    the session is saved and the summary still comes; a second one kills."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.default_int_handler)
        run.stop()
        video.stop()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
