"""What is written is read again: every event, within its bytes, whatever happens to the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgekv.cache import PageCache
from edgekv.errors import CacheError, TraceError
from edgekv.trace import TraceWriter, read_log
from edgekv.trace.events import Closed, Counted, Dropped, Event, Opened, Planned, Settled
from edgekv.trace.log_file import LogFile
from tests.cache.helpers import add
from tests.trace.streams import make_cache, stream, write_log


def of_type(events: list[Event], kind: type) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def refusal(path: Path) -> str | None:
    """Why a file is refused, or where it was cut; None for a log that is whole."""
    try:
        log = read_log(path)
        list(log.events())
    except TraceError as error:
        return str(error)
    return log.cut_short


def test_everything_that_happened_is_read_again(tmp_path: Path) -> None:
    cache = make_cache()
    log = TraceWriter(cache, tmp_path / "t")
    context = cache.open()
    add(cache, context, "system", 40)
    add(cache, context, "frame", 77, index=7, time_s=3.5)
    fork = context.fork()
    add(cache, fork, "answer", 1)
    add(cache, fork, "answer", 1, extend=True)
    fork.append("answer", 1, extend=True).abort()
    fork.close()
    context.drop([1], rule="by hand")
    log.close()
    context.close()  # nobody listens any more
    events = list(read_log(tmp_path / "t").events())
    assert [type(event) for event in events if not isinstance(event, Counted)] == [
        Opened,
        *[Planned, Settled] * 2,
        Opened,
        *[Planned, Settled] * 3,
        Closed,
        Dropped,
    ]
    frame = events[3]
    assert isinstance(frame, Planned)
    assert (frame.kind, frame.num_tokens, frame.frame, frame.time_s) == (1, 77, 7, 3.5)
    assert frame.pages == (3, 4, 5, 6, 7)
    fourth = of_type(events, Planned)[3]
    assert isinstance(fourth, Planned)
    assert (fourth.extend, fourth.tail_tokens, fourth.pages) == (True, 1, ())
    assert [event.committed for event in of_type(events, Settled)] == [True] * 4 + [False]
    assert of_type(events, Dropped)[0][2:] == ("by hand", (1,), False)
    assert [event.at_us for event in events] == sorted(event.at_us for event in events)
    last = events[-1]
    assert isinstance(last, Counted)
    assert last.free + last.live == cache.counts.num_pages


def test_steps_of_several_sequences_are_told_one_by_one(tmp_path: Path) -> None:
    cache = make_cache()
    with_steps = TraceWriter(cache, tmp_path / "t")
    one, other = cache.open(), cache.open()
    step = cache.begin_step([one.append("frame", 20), other.append("frame", 20)])
    other.close()  # while the step runs: its pages stay in flight
    step.commit()
    with_steps.close()
    names = [type(event).__name__ for event in read_log(tmp_path / "t").events()]
    assert names == [
        *["Opened", "Opened", "Planned", "Planned", "StepBegun"],
        *["Settled", "Closed", "StepEnded", "Settled", "Counted"],
    ]


def test_a_frame_takes_few_bytes(tmp_path: Path) -> None:
    cache = make_cache()
    log = TraceWriter(cache, tmp_path / "t")
    stream(cache, 100)
    log.close()
    before = (tmp_path / "t").stat().st_size
    log = TraceWriter(cache := make_cache(), tmp_path / "t")
    stream(cache, 1100)
    log.close()
    assert (tmp_path / "t").stat().st_size - before <= 1000 * 40


def test_a_log_that_is_cut_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    whole = write_log(tmp_path / "t", 3, ask_every=3).read_bytes()
    events = list(read_log(tmp_path / "t").events())
    end_of_header = whole.index(b"}", whole.index(b'"part_us"')) + 5
    num_read, cut = 0, tmp_path / "cut"
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        refused = refusal(cut)
        if size < end_of_header:
            assert refused is not None
            assert len(refused.splitlines()) == 1
            continue
        got = list(read_log(cut).events())
        assert repr(got) == repr(events[: len(got)])
        assert len(got) >= num_read, "a longer file tells at least as much"
        num_read = len(got)
    assert num_read >= len(events) - 1


def test_a_cut_is_said_and_unwritten_space_is_a_cut(tmp_path: Path) -> None:
    whole = write_log(tmp_path / "t", 5).read_bytes()
    log = read_log(tmp_path / "t")
    num_events = len(list(log.events()))
    assert log.cut_short is None
    (tmp_path / "t").write_bytes(whole[:-1])
    assert len(list(log.events())) == num_events - 1
    assert "incomplete record" in str(log.cut_short)
    (tmp_path / "t").write_bytes(whole + bytes(100))
    assert len(list(log.events())) == num_events
    assert "never written" in str(log.cut_short)


def test_a_changed_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    whole = write_log(tmp_path / "t", 2).read_bytes()
    for at in range(len(whole)):
        (tmp_path / "t").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        refused = refusal(tmp_path / "t")
        assert refused, f"byte {at} was changed and nobody noticed"
        assert len(refused.splitlines()) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"this is not a trace", "not a trace written by edgekv"),
        (b"EDGEKVT\n\x03\x00\x10\x00" + bytes(99), "trace format 3, this edgekv reads format 4"),
        (b"EDGEKVT\n\x09\x00\x10\x00" + bytes(99), "trace format 9, this edgekv reads format 4"),
        (b"EDGEKVT\n\x04\x00\xff\xff", "ends inside its header"),
        (b"EDGEKVT\n\x04\x00\x02\x00{}" + bytes(4), "the header is damaged"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(TraceError, match=said):
        read_log(tmp_path / "t")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_log(tmp_path / "t")
    with pytest.raises(TraceError, match="directory"):
        read_log(tmp_path)
    with pytest.raises(TraceError, match="cannot write the trace"):
        TraceWriter(make_cache(), tmp_path / "no" / "t")


def test_the_log_never_outgrows_its_limit_and_its_parts_fit_together(tmp_path: Path) -> None:
    cache, limit = make_cache(), 64 * 2**10
    log = TraceWriter(cache, tmp_path / "t", max_bytes=limit)
    for start in range(0, 4000, 400):
        sequence, _ = stream(cache, 400, start=start)
        sequence.close()
        parts = [part.stat().st_size for part in tmp_path.iterdir()]
        assert sum(parts) <= limit
    log.close()
    both = read_log(tmp_path / "t")
    assert len(both.parts) == 2
    assert not both.from_start
    frames = [e.frame for e in both.events() if isinstance(e, Planned) and e.kind == 1]
    assert frames == list(range(frames[0], 4000)), "no frame is missing between the parts"
    shutil.copy(tmp_path / "t.1", tmp_path / "other.1")
    write_log(tmp_path / "other", 3)
    assert len(read_log(tmp_path / "other").parts) == 1, "a part of another log is not its own"


def test_a_full_disk_ends_the_log_and_not_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = make_cache()
    log = TraceWriter(cache, tmp_path / "t")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogFile, "flush", full)
    stream(cache, 500)
    assert log.problem == "No space left on device"
    assert caplog.text.count("No space left on device") == 1
    log.close()


def test_a_log_begins_between_steps(tmp_path: Path) -> None:
    cache = make_cache()
    append = cache.open().append("frame", 3)
    with pytest.raises(CacheError, match="between steps"):
        TraceWriter(cache, tmp_path / "t")
    append.abort()
    with pytest.raises(ValueError, match="at least"):
        TraceWriter(cache, tmp_path / "t", max_bytes=1000)


def test_a_cache_that_is_not_logged_does_the_same(tmp_path: Path) -> None:
    def ends(cache: PageCache) -> list[list[int]]:
        sequence, _ = stream(cache, 60, ask_every=7)
        return sequence.snapshot().page_table.tolist()

    logged = make_cache()
    log = TraceWriter(logged, tmp_path / "t")
    assert ends(logged) == ends(make_cache())
    log.close()
