"""What a run over a source is asked, and what it says of itself while it lasts.

Owns: the words. Does not know when anything is asked, nor how events are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.checks import finite, positive
from edgekv.session_stats import SessionStats
from edgekv.types import Answer, Frame


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask: every ``every_s`` seconds of the stream, or once at ``at_s``."""

    prompt: str
    every_s: float | None = None
    at_s: float | None = None
    expected: str | None = None  # the true answer, where it is known

    def __post_init__(self) -> None:
        if (self.every_s is None) == (self.at_s is None):
            raise ValueError("a question needs either every_s or at_s")
        if self.every_s is not None:
            positive(self.every_s, "every_s")
        if self.at_s is not None:
            finite(self.at_s, "at_s")


@dataclass(frozen=True, slots=True)
class FrameEvent:
    """A frame has been taken into the context, or stands for nothing new (``still``)."""

    frame: Frame
    duration_s: float
    stats: SessionStats
    still: bool = False


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """A question has been answered."""

    frame: Frame  # the newest frame when it was asked
    question: Question
    answer: Answer

    @property
    def right(self) -> bool | None:
        """Whether the answer is the expected one; None where no answer is known."""
        expected = self.question.expected
        return None if expected is None else self.answer.text.strip() == expected


@dataclass(frozen=True, slots=True)
class NoticeEvent:
    """Something the user should know: bad or dropped frames, evictions, failed saves, …"""

    what: str
    time_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a whole run. Milliseconds are those of ``push`` for frames that were taken in,
    questions not included."""

    num_frames: int
    num_still_frames: int  # of those, not encoded
    num_bad_frames: int
    num_dropped_frames: int
    num_evicted_frames: int  # in this run, as all counts here
    num_answers: int
    num_right: int  # of the answers that could be checked
    num_wrong: int
    num_skipped_questions: int
    num_saves: int
    duration_s: float  # of the source, up to the newest frame
    stats: SessionStats
    ms_p50: float
    ms_p95: float
    ms_first_100: float
    ms_last_100: float
    anonymous_bytes_start: int | None  # when the first frame left; None = none has
    anonymous_bytes_end: int | None
    error: str | None = None  # what ended the run, or why it could not be saved at its end


StreamEvent = FrameEvent | AnswerEvent | NoticeEvent | Summary
