"""The loop over a source: push every frame, ask when a question is due, report what happened.

Owns: what is done in which order, when the session is saved, and the counts of a run. Guarantees:
constant memory however long the source runs; the summary comes last, whatever ends the run, and
what went wrong is raised after it; a source that begins at 0 s goes on where the session's time
stood. Does not know how events are shown, nor where frames come from.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from edgekv.checks import positive
from edgekv.errors import EdgeKVError, SourceError
from edgekv.latency import LatencyRecord
from edgekv.media import SourceStats
from edgekv.memory import anonymous_bytes
from edgekv.sampling import SamplingOptions
from edgekv.saving import savable
from edgekv.schedule import Due, Question
from edgekv.session import Session
from edgekv.stream_events import (
    AnswerEvent,
    FrameEvent,
    NoticeEvent,
    StreamEvent,
    Summary,
)
from edgekv.types import Frame


class FrameSource(Protocol):
    """What the loop needs of a source; exists so that applications can bring their own."""

    def __iter__(self) -> Iterator[Frame]: ...

    def stats(self) -> SourceStats:
        """Counts up to now; works after the source was closed too."""
        ...


class StreamRun:
    """One pass of a session over a source; iterate ``events`` once."""

    def __init__(
        self,
        session: Session,
        source: FrameSource,
        questions: Sequence[Question],
        *,
        options: SamplingOptions | None = None,
        duration_s: float | None = None,
        save_to: Path | None = None,
        save_every_s: float = 60.0,
    ) -> None:
        self._session = session
        self._source = source
        self._due = [Due(question) for question in questions]
        self._options = options or SamplingOptions()
        self._duration_s = None if duration_s is None else positive(duration_s, "duration_s")
        self._latency = LatencyRecord()
        self._num_still = 0
        self._num_answers = 0
        self._num_right = 0
        self._num_wrong = 0
        self._num_skipped = 0
        self._last: Frame | None = None
        self._warm_bytes: int | None = None
        self._seen: dict[str, int] = {}
        self._stopped = False
        self._source_s = 0.0  # time of the newest frame in its source
        self._offset_s: float | None = None  # from the source's time to the session's
        self._stats = session.stats()
        self._counted = SourceStats(0, 0, 0, 0.0, 0.0)  # by the source
        self._num_evicted_before = self._stats.num_evicted_frames
        self._seen["evicted_frames"] = self._num_evicted_before
        self._save_to = None if save_to is None else savable(save_to, "save_to")
        self._save_every_s = self._next_save_s = positive(save_every_s, "save_every_s")
        self._num_saves = 0
        self.save_error: EdgeKVError | None = None  # why the last save failed

    def events(self) -> Generator[StreamEvent, None, None]:
        """Everything that happens, the summary last; then an error that ended the run is raised.
        The session is saved whatever ends it."""
        failure: Exception | None = None
        try:
            if self._stats.num_frames:
                num_frames = self._stats.num_context_frames
                yield NoticeEvent("restored", self._session.last_time_s, num_frames)
            yield from self._watch()
        except Exception as error:
            failure = error
        except BaseException:  # whoever listened has gone, or the third Ctrl-C came
            self._save()
            raise
        for finish in (self._save, self._notices):
            try:
                yield from finish()
            except Exception as error:
                failure = failure or error
        problem = failure or self.save_error
        said = None if problem is None else str(problem) or type(problem).__name__
        yield replace(self.summary(), error=said)
        if failure is not None:
            raise failure

    def _watch(self) -> Iterator[StreamEvent]:
        for source_frame in self._source:
            now_s = source_frame.time_s
            if self._stopped or (self._duration_s is not None and now_s >= self._duration_s):
                break
            self._source_s = now_s
            frame = self._in_session_time(source_frame)
            yield self._push(frame)
            yield from self._notices()
            yield from self._ask_due(frame, now_s)
            if now_s >= self._next_save_s:
                self._next_save_s = now_s + self._save_every_s
                yield from self._save()
        if not self._stopped:
            yield from self._ask_unasked()

    def stop(self) -> None:
        """End after what is being done now, with the summary. May be called from a signal handler
        or another thread; a source that is waiting for a frame must be closed as well."""
        self._stopped = True

    def _in_session_time(self, frame: Frame) -> Frame:
        """A session that was restored goes on from its last time when its source begins anew."""
        if self._offset_s is None:
            last_s = self._session.last_time_s
            self._offset_s = last_s if frame.time_s < last_s else 0.0
        return replace(frame, time_s=frame.time_s + self._offset_s) if self._offset_s else frame

    def _save(self) -> list[NoticeEvent]:
        """Save, if asked to; a disk that is full must not end the stream."""
        if self._save_to is None:
            return []
        try:
            self._session.save(self._save_to)
        except EdgeKVError as error:
            self.save_error = error
            return [NoticeEvent("failed_saves", self._now_s, 1)]
        self.save_error = None
        self._num_saves += 1
        return []

    def _push(self, frame: Frame) -> FrameEvent:
        began = time.perf_counter()
        taken = self._session.push(frame)
        duration_s = time.perf_counter() - began
        if taken:
            self._latency.add(duration_s)
        else:
            self._num_still += 1
        self._last = frame
        self._stats = self._session.stats()
        if self._warm_bytes is None and self._stats.num_evicted_frames > self._num_evicted_before:
            self._warm_bytes = anonymous_bytes()
        return FrameEvent(frame, duration_s, self._stats, still=not taken)

    def _notices(self) -> list[NoticeEvent]:
        """What is new since the last time."""
        self._look()
        counts = {
            "bad_frames": self._counted.num_bad_frames,
            "dropped_frames": self._counted.num_dropped_frames,
            "evicted_frames": self._stats.num_evicted_frames,
        }
        fresh = {what: count - self._seen.get(what, 0) for what, count in counts.items()}
        self._seen |= counts
        return [NoticeEvent(what, self._now_s, count) for what, count in fresh.items() if count]

    def _look(self) -> None:
        """Counts as of now. Where there are none, the summary has those from before."""
        self._stats = self._session.stats()
        try:
            self._counted = self._source.stats()
        except Exception as error:
            said = str(error) or type(error).__name__
            raise SourceError(f"the source does not say what it has counted ({said})") from error

    @property
    def _now_s(self) -> float:
        """The session's time, from 0 on."""
        return max(self._session.last_time_s, 0.0)

    def _ask_due(self, frame: Frame, now_s: float) -> Iterator[StreamEvent]:
        for due in self._due:
            num_due = due.take(now_s)
            if num_due > 1:
                self._num_skipped += num_due - 1
                yield NoticeEvent("skipped_questions", frame.time_s, num_due - 1)
            if num_due:
                yield self._ask(due.question, frame)

    def _ask_unasked(self) -> Iterator[StreamEvent]:
        """A source shorter than ``every_s`` still gets one answer."""
        if self._last is not None and not self._num_answers:
            for due in self._due:
                if due.question.every_s is not None:
                    yield self._ask(due.question, self._last)

    def _ask(self, question: Question, frame: Frame) -> AnswerEvent:
        # Where the session has no tier there is nothing to recall.
        answer = self._session.ask(question.prompt, self._options, recall="auto")
        event = AnswerEvent(frame, question, answer)
        self._num_answers += 1
        self._num_right += event.right is True
        self._num_wrong += event.right is False
        return event

    def summary(self) -> Summary:
        """The figures as of the last event."""
        source, stats = self._counted, self._stats
        return Summary(
            num_frames=self._latency.num_recorded + self._num_still,
            num_still_frames=self._num_still,
            num_bad_frames=source.num_bad_frames,
            num_dropped_frames=source.num_dropped_frames,
            num_evicted_frames=stats.num_evicted_frames - self._num_evicted_before,
            num_answers=self._num_answers,
            num_right=self._num_right,
            num_wrong=self._num_wrong,
            num_skipped_questions=self._num_skipped,
            num_saves=self._num_saves,
            duration_s=self._source_s,
            stats=stats,
            ms_p50=self._latency.percentile_ms(50),
            ms_p95=self._latency.percentile_ms(95),
            ms_first_100=self._latency.first_ms(),
            ms_last_100=self._latency.last_ms(),
            anonymous_bytes_start=self._warm_bytes,
            anonymous_bytes_end=anonymous_bytes(),
        )
