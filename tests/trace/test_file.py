"""A log whose file is taken away ends with a reason, and nobody else's file suffers from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edgekv.errors import TraceError
from edgekv.trace import TraceWriter, read_log
from tests.trace.streams import make_cache, stream, write_log

LIMIT = 64 * 2**10
GONE = "it was removed, renamed or replaced meanwhile"


def replaced(path: Path) -> None:
    (path.parent / "new").write_text("a letter")
    (path.parent / "new").replace(path)


@pytest.mark.parametrize("at_the_end", [False, True], ids=["on the way", "at the end"])
@pytest.mark.parametrize(
    ("take", "said"),
    [
        (Path.unlink, GONE),
        (lambda path: shutil.rmtree(path.parent), GONE),
        (replaced, GONE),
        (lambda path: path.write_bytes(b""), "it was cut off or written to meanwhile"),
        (lambda path: path.write_bytes(b"a letter"), "it was cut off or written to meanwhile"),
    ],
    ids=["removed", "folder removed", "replaced", "cut off", "overwritten"],
)
def test_a_log_whose_file_is_taken_ends_with_a_reason(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    take: Callable[[Path], object],
    said: str,
    at_the_end: bool,
) -> None:
    path = tmp_path / "folder" / "t"
    path.parent.mkdir()
    cache = make_cache()
    log = TraceWriter(cache, path, max_bytes=LIMIT)
    stream(cache, 5)
    take(path)
    left = path.read_bytes() if path.exists() else None
    if not at_the_end:
        stream(cache, 2000, start=5)  # enough for another part
        assert log.problem == said
    log.close()
    assert log.problem == said
    assert caplog.text.count(f"the trace {path} ends here: {said}") == 1
    assert left == (path.read_bytes() if path.exists() else None)
    assert not (path.parent / "t.1").exists()


def test_two_logs_do_not_share_a_file(tmp_path: Path) -> None:
    first, second = make_cache(), make_cache()
    log = TraceWriter(first, tmp_path / "t")
    stream(first, 5)
    with pytest.raises(TraceError, match="another log is being written there"):
        TraceWriter(second, tmp_path / "t")
    stream(first, 5, start=5)
    stream(second, 5)
    log.close()
    read = read_log(tmp_path / "t")
    assert len(list(read.events())) > 20
    assert read.cut_short is None
    TraceWriter(second, tmp_path / "t").close()


def test_somebody_elses_file_does_not_make_way_for_the_older_part(tmp_path: Path) -> None:
    (tmp_path / "t.1").write_text("a letter")
    with pytest.raises(TraceError, match=r"t\.1 holds something else than a trace"):
        TraceWriter(make_cache(), tmp_path / "t")
    assert (tmp_path / "t.1").read_text() == "a letter"
    write_log(tmp_path / "old", 3).replace(tmp_path / "t.1")
    TraceWriter(make_cache(), tmp_path / "t").close()


def test_a_log_goes_on_where_it_was_when_the_program_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache()
    monkeypatch.chdir(tmp_path)
    log = TraceWriter(cache, "t", max_bytes=LIMIT)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    stream(cache, 2000)
    log.close()
    assert log.problem is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "t", "t.1"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_child_that_was_forked_off_logs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache()
    log = TraceWriter(cache, tmp_path / "t")
    stream(cache, 5)
    before = (tmp_path / "t").read_bytes()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    stream(cache, 2000)
    assert log.problem == "it stays with the process that has opened it"
    assert (tmp_path / "t").read_bytes() == before
    log.close()
