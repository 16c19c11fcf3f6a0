"""How a run looks: text with a live line for people, one JSON object a line for programs.

Guarantees: with jsonl, stdout carries JSON lines only and the summary is the last; every line is
flushed as it happens; what stdout does not take is an error that names it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from edgekv.cli.memory_line import MemoryLine
from edgekv.config import format_bytes
from edgekv.stream_events import AnswerEvent, FrameEvent, NoticeEvent, StreamEvent, Summary
from edgekv.tiering import TierStats
from edgekv.trace.phrases import many


class Output(Protocol):
    """Shows events; exists so that ``run`` has one loop for both formats."""

    def show(self, event: StreamEvent) -> None: ...

    def __enter__(self) -> Output: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@contextmanager
def _naming_stdout() -> Iterator[None]:
    """Lets an error of writing say where to. click would hide it where the reader has gone away,
    which is right for a table piped into ``head``; a stream that ends needs its reason."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"stdout: {error.strerror}") from None


class JsonlOutput:
    """One JSON object a line."""

    @_naming_stdout()
    def show(self, event: StreamEvent) -> None:
        """Write the event, unless it is the routine of a frame taken in."""
        if not isinstance(event, FrameEvent):
            if sys.stdout is None:
                raise click.ClickException("stdout: closed by whoever started edgekv")
            # A character that stdout cannot encode is written as JSON escapes it.
            sys.stdout.write(_json_line(as_json(event), sys.stdout.encoding))
            sys.stdout.flush()

    def __enter__(self) -> JsonlOutput:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _json_line(line: dict[str, object], encoding: str) -> str:
    text = json.dumps(line, ensure_ascii=False) + "\n"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(line) + "\n"
    return text


def as_json(event: AnswerEvent | NoticeEvent | Summary) -> dict[str, object]:
    """The object that stands for an event in the jsonl format (documented in docs/jsonl.md)."""
    if isinstance(event, AnswerEvent):
        answer = event.answer
        line: dict[str, object] = {
            "type": "answer",
            "time_s": round(event.frame.time_s, 3),
            "frame": event.frame.index,
            "prompt": event.question.prompt,
            "text": answer.text,
            "ttft_ms": round(answer.ttft_s * 1e3, 2),
            "num_tokens": len(answer.token_ids),
            "tokens_per_s": round(answer.tokens_per_s, 1) if answer.tokens_per_s else None,
            "finish_reason": answer.finish_reason,
            "recalled": list(answer.recalled_frames),
            "recalled_times_s": [round(time_s, 3) for time_s in answer.recalled_times_s],
        }
        if event.question.expected is not None:
            line["expected"] = event.question.expected
        return line
    if isinstance(event, NoticeEvent):
        return {
            "type": "event",
            "event": event.what,
            "time_s": round(event.time_s, 3),
            "count": event.count,
        }
    return _summary_json(event)


def _summary_json(summary: Summary) -> dict[str, object]:
    stats = summary.stats
    return {
        "type": "summary",
        "frames": summary.num_frames,
        "still_frames": summary.num_still_frames,
        "bad_frames": summary.num_bad_frames,
        "dropped_frames": summary.num_dropped_frames,
        "answers": summary.num_answers,
        "right_answers": summary.num_right,
        "wrong_answers": summary.num_wrong,
        "skipped_questions": summary.num_skipped_questions,
        "saves": summary.num_saves,
        "duration_s": round(summary.duration_s, 3),
        "error": summary.error,
        "kv_pages": {
            "total": stats.num_pages,
            "live": stats.pages_live,
            "cached": stats.pages_cached,
            "in_flight": stats.pages_in_flight,
            "free": stats.pages_free,
            "peak": stats.pages_peak,
        },
        "kv_bytes": stats.pool_bytes,
        "context_frames": stats.num_context_frames,
        "context_tokens": stats.num_tokens,
        "evicted_frames": summary.num_evicted_frames,
        "tier": _tier_json(stats.tier),
        "ms_per_frame": {
            "p50": round(summary.ms_p50, 3),
            "p95": round(summary.ms_p95, 3),
            "first_100": round(summary.ms_first_100, 3),
            "last_100": round(summary.ms_last_100, 3),
        },
        "anonymous_bytes": {
            "first_window": summary.anonymous_bytes_start,
            "end": summary.anonymous_bytes_end,
        },
    }


def _tier_json(tier: TierStats | None) -> dict[str, object] | None:
    if tier is None:
        return None
    return {
        "frames": tier.num_frames,
        "bytes": tier.num_bytes,
        "stored_frames": tier.num_stored,
        "skipped_frames": tier.num_skipped,
        "damaged_frames": tier.num_damaged,
        "recalled_frames": tier.num_recalled,
        "problem": tier.problem,
        "recall_off": tier.recall_off,
    }


class _Console(Console):
    """Leaves a reader that has gone away to whoever prints, as every other error."""

    def on_broken_pipe(self) -> None:
        raise  # it is called where the error is handled


class TextOutput:
    """Answers scroll by; below them live lines say where the stream is and draw the memory."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _Console(highlight=False)
        self._live = Live(Text(""), console=self._console, refresh_per_second=8, transient=True)
        self._memory = MemoryLine()
        self._num_evicted = 0  # in this run

    @_naming_stdout()
    def show(self, event: StreamEvent) -> None:
        """Print or update."""
        if isinstance(event, FrameEvent):
            self._memory.sample()
            live = f"{_live_line(event, self._num_evicted)}\n{self._memory}"
            self._live.update(Text(live, style="dim"))
        elif isinstance(event, AnswerEvent):
            self._show_answer(event)
        elif isinstance(event, NoticeEvent):
            if event.what == "evicted_frames":  # routine once the window is full
                self._num_evicted += event.count
            else:
                self._console.print(f"[yellow]{_clock(event.time_s)}  {_notice(event)}[/]")
        else:
            self._show_summary(event)

    def _show_answer(self, event: AnswerEvent) -> None:
        answer = event.answer
        mark = {
            None: "",
            True: "  [green]right[/]",
            False: f"  [red]wrong, the truth is: {escape(event.question.expected or '')}[/]",
        }[event.right]
        line = Text.assemble(
            (f"{_clock(event.frame.time_s)}  ", "dim"),
            (event.question.prompt, "cyan"),
            "  ",
            (answer.text.strip(), "bold"),
            (f"  {answer.ttft_s * 1e3:.0f} ms", "dim"),
        )
        if num_recalled := len(answer.recalled_frames):
            line.append(f"  {many(num_recalled, 'recalled frame')}", "dim")
        line.append_text(Text.from_markup(mark))
        self._console.print(line, soft_wrap=not self._console.is_terminal)

    def _show_summary(self, summary: Summary) -> None:
        stats = summary.stats
        still = f" ({summary.num_still_frames} still)" if summary.num_still_frames else ""
        hundreds = ""
        if summary.num_frames >= 200:
            first, last = summary.ms_first_100, summary.ms_last_100
            hundreds = f"; first hundred {first:.1f}, last hundred {last:.1f}"
        lines = [
            f"{many(summary.num_frames, 'frame')}{still}, {many(summary.num_answers, 'answer')}, "
            f"{summary.ms_p50:.1f} ms a frame (p95 {summary.ms_p95:.1f}{hundreds})",
            f"KV pool: {stats.pages_peak} of its {stats.num_pages} pages used at most "
            f"({format_bytes(stats.pool_bytes)}), "
            f"{many(summary.num_evicted_frames, 'frame')} let go",
        ]
        if line := str(self._memory):
            start = summary.anonymous_bytes_start
            since = "" if start is None else f", {format_bytes(start)} when the first frame left"
            lines.append(f"{line}{since}")
        if summary.num_bad_frames or summary.num_dropped_frames:
            lines.append(
                f"{many(summary.num_bad_frames, 'bad frame')} skipped, "
                f"{summary.num_dropped_frames:,} dropped"
            )
        if num_checked := summary.num_right + summary.num_wrong:
            colour = "red" if summary.num_wrong else "green"
            checked = many(num_checked, "answer")
            right = f"[bold {colour}]{summary.num_right} of {checked} right[/]"
            lines.append(f"{right}, checked against what was drawn")
        self._live.update(Text(""))
        for line in lines:
            self._console.print(line, soft_wrap=not self._console.is_terminal)

    def __enter__(self) -> TextOutput:
        self._live.start()
        return self

    @_naming_stdout()
    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _notice(event: NoticeEvent) -> str:
    if event.what == "restored":
        return f"{many(event.count, 'frame')} in the saved session, which goes on from here"
    return many(event.count, event.what.replace("_", " ").removesuffix("s"))


def _live_line(event: FrameEvent, num_evicted: int) -> str:
    stats = event.stats
    num_used = stats.pages_live + stats.pages_in_flight
    return (
        f"{_clock(event.frame.time_s)}  frame {event.frame.index}  "
        f"pages {num_used} of {stats.num_pages}  evicted {num_evicted}  "
        f"{event.duration_s * 1e3:.1f} ms a frame"
    )


def _clock(time_s: float) -> str:
    minutes, seconds = divmod(time_s, 60)
    return f"{int(minutes):02d}:{seconds:04.1f}"
