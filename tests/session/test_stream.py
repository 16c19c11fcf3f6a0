"""Whatever ends a run over a source, its figures come last, and its notices add up to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgekv
from edgekv import Frame, SourceError
from edgekv.media import SourceStats
from edgekv.stream import StreamRun
from edgekv.stream_events import NoticeEvent, Question, StreamEvent, Summary
from tests.session.helpers import Picture, push
from tests.session.test_stream_save import Source

SEEN = Question("What do you see?", every_s=1.0)


class Uncounted(Source):
    """A source that cannot say what it has counted, from the ``num_good``-th time on."""

    def __init__(
        self, picture: Picture, num_frames: int, num_good: int, error: Exception | None
    ) -> None:
        super().__init__(picture, num_frames, error)
        self._num_good = num_good

    def stats(self) -> SourceStats:
        self._num_good -= 1
        if self._num_good < 0:
            raise RuntimeError("the driver is gone")
        return SourceStats(0, 7, 0, 0.0, 0.0)


def to_the_end(run: StreamRun) -> tuple[list[StreamEvent], Summary, Exception | None]:
    """What came before the summary, the summary, and what was raised after it."""
    events: list[StreamEvent] = []
    failure: Exception | None = None
    try:
        events.extend(run.events())
    except Exception as error:
        failure = error
    (summary,) = [event for event in events if isinstance(event, Summary)]
    assert events[-1] is summary
    return events[:-1], summary, failure


@pytest.mark.parametrize("num_good", [0, 1, 4], ids=["never", "not for long", "not at the end"])
@pytest.mark.parametrize("lost", [None, SourceError("camera lost")], ids=["ends", "lost"])
def test_a_source_that_cannot_count_ends_a_run_with_its_summary(
    session: edgekv.Session, picture: Picture, num_good: int, lost: Exception | None
) -> None:
    run = StreamRun(session, Uncounted(picture, 4, num_good, lost), [SEEN])
    _, summary, failure = to_the_end(run)
    assert summary.num_frames == min(num_good + 1, 4)
    assert summary.num_bad_frames == (7 if num_good else 0), "as it said last"
    assert summary.stats.num_frames == summary.num_frames
    assert isinstance(failure, SourceError)
    assert summary.error == str(failure)
    if num_good == 4 and lost is not None:
        assert failure is lost
    else:
        said = "the source does not say what it has counted (the driver is gone)"
        assert summary.error == said


def test_a_session_that_is_closed_meanwhile_ends_a_run_with_its_summary(
    model: edgekv.Model, picture: Picture
) -> None:
    session = model.session()

    class Closing(Source):
        def __iter__(self) -> Iterator[Frame]:
            yield from super().__iter__()
            session.close()

    _, summary, failure = to_the_end(StreamRun(session, Closing(picture, 3), []))
    assert (summary.num_frames, summary.stats.num_context_frames) == (3, 3)
    assert isinstance(failure, edgekv.SessionError)
    assert summary.error == str(failure) == "this session is closed"


def test_a_save_that_breaks_ends_a_run_with_its_summary(
    session: edgekv.Session,
    picture: Picture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr(type(session), "save", breaks)
    run = StreamRun(session, Source(picture, 3), [], save_to=tmp_path / "a")
    _, summary, failure = to_the_end(run)
    assert (summary.num_frames, summary.error) == (3, "MemoryError")
    assert isinstance(failure, MemoryError)


def test_what_happens_after_the_last_frame_is_told_too(bundle_path: Path, picture: Picture) -> None:
    """Frames that leave for others, and bad ones at the end of a file."""
    with (
        edgekv.load(bundle_path, kv_budget="600KiB", num_threads=1) as model,
        model.session(reserve_tokens=64) as session,
        model.session(reserve_tokens=64, priority=1) as other,
    ):

        class Tail(Source):
            num_bad = 0

            def __iter__(self) -> Iterator[Frame]:
                yield from super().__iter__()
                self.num_bad = 2
                push(other, picture, 100, 30)

            def stats(self) -> SourceStats:
                return SourceStats(0, self.num_bad, 0, 0.0, 0.0)

        events, summary, failure = to_the_end(StreamRun(session, Tail(picture, 20), [SEEN]))
        told = Counter[str]()
        for event in events:
            if isinstance(event, NoticeEvent):
                told[event.what] += event.count
        assert failure is None
        assert told["evicted_frames"] == summary.num_evicted_frames > 0
        assert told["bad_frames"] == summary.num_bad_frames == 2
        (last,) = [e for e in events[-2:] if isinstance(e, NoticeEvent) and e.what != "bad_frames"]
        assert (last.what, last.time_s) == ("evicted_frames", 9.5)
