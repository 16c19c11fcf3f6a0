"""What a run over a source reports.

Owns: one type an event, and the figures of a whole run. Does not know how they come about, nor how
they are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.schedule import Question
from edgekv.session_stats import SessionStats
from edgekv.types import Answer, Frame


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
