"""The loop over a source saves the session and goes on from a saved one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import edgekv
from edgekv import Frame, SourceError
from edgekv.media import SourceStats
from edgekv.schedule import Question
from edgekv.stream import StreamRun
from edgekv.stream_events import AnswerEvent, FrameEvent, NoticeEvent, Summary
from tests.session.helpers import Picture


class Source:
    """Numbered pictures at 2 a second from 0 s on; then the end, or an error."""

    def __init__(self, picture: Picture, num_frames: int, error: Exception | None = None) -> None:
        self._picture, self._num_frames, self._error = picture, num_frames, error

    def __iter__(self) -> Iterator[Frame]:
        for k in range(self._num_frames):
            yield Frame(self._picture(k), k / 2, k)
        if self._error is not None:
            raise self._error

    def stats(self) -> SourceStats:
        return SourceStats(0, 0, 0, 0.0, 0.0)


def notices(events: list[object]) -> list[tuple[str, float, int]]:
    return [(e.what, e.time_s, e.count) for e in events if isinstance(e, NoticeEvent)]


def times(events: list[object]) -> list[float]:
    return [e.frame.time_s for e in events if isinstance(e, FrameEvent)]


def test_time_goes_on_when_a_source_begins_anew(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    path, question = tmp_path / "a", Question("What do you see?", every_s=2)
    with model.session() as session:
        run = StreamRun(session, Source(picture, 60), [], save_to=path)
        assert times(list(run.events())) == [k / 2 for k in range(60)]
        evicted = session.stats().num_evicted_frames
        assert evicted > 0
    with model.restore(path) as session:
        num_kept = session.stats().num_context_frames
        run = StreamRun(session, Source(picture, 10), [question], duration_s=4.5)
        events = list(run.events())
        assert notices(events)[0] == ("restored", 29.5, num_kept)
        assert times(events) == [29.5 + k / 2 for k in range(9)]
        # Questions and durations go by the source: none is late because the session is old.
        asked = [e.frame.time_s for e in events if isinstance(e, AnswerEvent)]
        assert asked == [31.5, 33.5]
        fresh = sum(count for what, _, count in notices(events) if what == "evicted_frames")
        assert fresh == session.stats().num_evicted_frames - evicted
        assert isinstance(events[-1], Summary)
        assert (events[-1].num_frames, events[-1].num_evicted_frames) == (9, fresh)
        assert events[-1].duration_s == 4.0
        # The same session on a source whose times have gone on: they are taken as they are.
        session.push(Frame(picture(0), 100.0))
        late = StreamRun(session, Source(picture, 2), [])
        assert times(list(late.events())) == [100.0, 100.5]


def test_saves_come_at_intervals_and_at_the_end(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    with model.session() as session:
        run = StreamRun(session, Source(picture, 10), [], save_to=path, save_every_s=1.5)
        saved_after: list[float] = []
        for event in run.events():
            if path.exists():
                path.unlink()
                assert isinstance(event, FrameEvent | Summary)
                saved_after.append(
                    event.frame.time_s if isinstance(event, FrameEvent) else event.duration_s
                )
        # Seen with the next event: after the frames at 1.5, 3.0 and 4.5, and at the end.
        assert saved_after == [2.0, 3.5, 4.5]
        assert run.summary().num_saves == 4


def test_a_disk_that_is_full_does_not_end_the_stream(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    path = tmp_path / "missing" / "a"
    with model.session() as session:
        run = StreamRun(session, Source(picture, 4), [], save_to=path, save_every_s=1)
        events = []
        for event in run.events():
            events.append(event)
            if len(times(events)) == 4 and not path.parent.exists():
                path.parent.mkdir()
                assert isinstance(run.save_error, edgekv.SessionFileError)
        assert notices(events) == [("failed_saves", 1.0, 1)]
        assert len(times(events)) == 4
        assert run.save_error is None
        assert path.exists()


@pytest.mark.parametrize("end", ["lost", "closed"])
def test_whatever_ends_the_stream_the_session_is_saved(
    model: edgekv.Model, picture: Picture, tmp_path: Path, end: str
) -> None:
    path = tmp_path / "a"
    with model.session() as session:
        source = Source(picture, 3, SourceError("camera lost"))
        events = StreamRun(session, source, [], save_to=path).events()
        for _ in range(3):
            next(events)
        if end == "closed":
            events.close()
        else:
            summary = next(events)
            assert isinstance(summary, Summary)
            assert summary.num_frames == 3
            with pytest.raises(SourceError, match="camera lost"):
                next(events)
        with model.restore(path) as restored:
            assert restored.stats().num_frames == 3
