"""A record that is given out is the one that was written, whatever happens to the file."""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgekv.errors import TierError
from edgekv.tier.file import FRAME_BYTES, HEADER_BYTES, TierFile

BODY = 100
RECORD = BODY + FRAME_BYTES


def create(path: Path, num_slots: int = 4) -> TierFile:
    limit = HEADER_BYTES + num_slots * RECORD + RECORD - 1
    return TierFile.create(path, body_bytes=BODY, max_bytes=limit, meta={"who": "test"})


def write(file: TierFile, *numbers: int) -> None:
    for number in numbers:
        file.buffer[:] = number
        assert file.append() == number


def found(path: Path) -> dict[int, int]:
    """Numbers of intact records and what they hold."""
    file = TierFile.open(path)
    try:
        out = {}
        for number in file.records():
            assert len(set(file.buffer.tolist())) == 1
            out[number] = int(file.buffer[0])
        return out
    finally:
        file.close()


def test_the_oldest_leave_and_the_limit_holds(tmp_path: Path) -> None:
    path = tmp_path / "t"
    file = create(path)
    write(file, *range(10))
    assert path.stat().st_size == HEADER_BYTES + 4 * RECORD
    assert [file.read(number) for number in range(10)] == [False] * 6 + [True] * 4
    assert file.buffer[0] == 9
    file.close()
    assert found(path) == {8: 8, 9: 9, 6: 6, 7: 7}


def test_new_records_go_on_from_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "t"
    file = create(path)
    write(file, *range(6))
    file.close()
    file = TierFile.open(path)
    list(file.records())
    write(file, 6)
    file.close()
    assert sorted(found(path)) == [3, 4, 5, 6]


@pytest.mark.parametrize("offset", [0, 4, 8, FRAME_BYTES, RECORD - 1])
def test_a_changed_byte_is_never_served(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "t"
    file = create(path)
    write(file, 0, 1, 2)
    with path.open("r+b") as other:
        other.seek(HEADER_BYTES + RECORD + offset)
        byte = other.read(1)[0]
        other.seek(-1, os.SEEK_CUR)
        other.write(bytes([byte ^ 16]))
    assert [file.read(number) for number in range(3)] == [True, False, True]
    file.close()
    assert sorted(found(path)) == [0, 2]


@pytest.mark.parametrize("length", range(0, RECORD, 13))
def test_a_torn_record_is_never_served(tmp_path: Path, length: int) -> None:
    """As a writer leaves it that is killed in the middle, in a new slot and over an old record."""
    path = tmp_path / "t"
    for num_before in (2, 6):
        file = create(path)
        write(file, *range(num_before + 1))
        file.close()
        new = path.read_bytes()[HEADER_BYTES + 2 * RECORD :][:length]
        file = create(path)
        write(file, *range(num_before))
        file.close()
        with path.open("r+b") as other:
            other.seek(HEADER_BYTES + num_before % 4 * RECORD)
            other.write(new)
        intact = {number: number for number in range(max(num_before - 4, 0), num_before)}
        whole = found(path)
        assert whole.items() <= intact.items()
        assert len(whole) >= len(intact) - 1


def test_a_record_in_another_slot_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "t"
    file = create(path)
    write(file, 0, 1)
    file.close()
    data = path.read_bytes()
    path.write_bytes(data[: HEADER_BYTES + RECORD] + data[HEADER_BYTES : HEADER_BYTES + RECORD])
    assert found(path) == {0: 0}


def test_an_erased_record_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "t"
    file = create(path)
    write(file, 0, 1)
    file.erase(0)
    assert not file.read(0)
    file.close()
    assert found(path) == {1: 1}


def test_only_one_writer(tmp_path: Path) -> None:
    file = create(tmp_path / "t")
    for again in (TierFile.open, create):
        with pytest.raises(TierError, match="another session writes to it"):
            again(tmp_path / "t")
    file.close()
    file.close()
    create(tmp_path / "t").close()


def test_a_file_that_was_forgotten_is_let_go(tmp_path: Path) -> None:
    cycle: list[object] = [create(tmp_path / "t")]  # found by gc only
    cycle.append(cycle)
    del cycle
    with pytest.warns(ResourceWarning, match="unclosed file .*/t'"):
        gc.collect()
    create(tmp_path / "t").close()


def test_of_many_who_begin_at_once_one_has_the_file(tmp_path: Path) -> None:
    path, files, refused = tmp_path / "t", [], []
    ready = threading.Barrier(8)

    def begin() -> None:
        ready.wait(60)
        for _ in range(20):
            try:
                files.append(create(path))
            except TierError as error:
                refused.append(str(error))

    for _ in range(10):
        threads = [threading.Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (file,) = files
        assert len(refused) == 159
        assert {said.partition(";")[0] for said in refused} == {
            f"{path}: another session writes to it"
        }
        write(file, 0)
        file.close()
        assert found(path) == {0: 0}
        path.unlink()
        files.clear()
        refused.clear()
    assert not list(tmp_path.iterdir())


def test_what_fails_to_be_made_leaves_what_was_there(tmp_path: Path) -> None:
    older = create(tmp_path / "older")
    write(older, 0)
    older.close()
    before = (tmp_path / "older").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        for name in ("older", "new"):
            with pytest.raises(TierError, match=r"cannot be made \(File too large\)"):
                create(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "older").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["older"]
    (tmp_path / "link").symlink_to(tmp_path / "target")
    create(tmp_path / "link").close()
    assert (tmp_path / "link").is_symlink()
    assert found(tmp_path / "target") == {}


@contextmanager
def forked(in_child: Callable[[], object]) -> Iterator[None]:
    """A child that has done something lives for as long as the block."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads may run here
        pid = os.fork()
    if not pid:
        in_child()
        os.write(writing, b"!")
        signal.pause()
    try:
        assert os.read(reading, 1) == b"!"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def test_a_child_that_was_forked_off_keeps_nobody_from_the_file(tmp_path: Path) -> None:
    """Nor does it let go of what its parent holds."""
    file = create(tmp_path / "t")
    with forked(file.close), pytest.raises(TierError, match="another session writes to it"):
        create(tmp_path / "t")
    with forked(int):
        file.close()
        create(tmp_path / "t").close()


@pytest.mark.parametrize("what", ["removed", "renamed", "replaced", "its folder is gone"])
def test_a_file_that_is_not_at_its_path_is_told_and_can_be_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "folder" / "t"
    path.parent.mkdir()
    file = create(path)
    write(file, 0)
    file.check_there()
    if what == "removed":
        path.unlink()
    elif what == "renamed":
        path.rename(tmp_path / "other")
    elif what == "replaced":
        create(tmp_path / "other").close()
        (tmp_path / "other").replace(path)
    else:
        shutil.rmtree(path.parent)
    with pytest.raises(OSError, match="it was removed, renamed or replaced meanwhile"):
        file.check_there()
    assert file.read(0)
    assert not file.overwritten
    file.close()


@pytest.mark.parametrize("what", ["cut off", "another's"])
def test_a_file_that_somebody_wrote_over_is_told(tmp_path: Path, what: str) -> None:
    file = create(tmp_path / "t")
    write(file, 0)
    other = create(tmp_path / "other", num_slots=5)
    write(other, 0)
    other.close()
    data = b"" if what == "cut off" else (tmp_path / "other").read_bytes()
    (tmp_path / "t").write_bytes(data)  # in place
    with pytest.raises(OSError, match="it was overwritten meanwhile"):
        file.check_there()
    assert file.overwritten
    file.close()


def test_a_file_stays_where_it_is_when_the_program_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    file = create(Path("t"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    file.check_there()
    write(file, 0)
    file.close()
    assert found(tmp_path / "t") == {0: 0}


def test_a_child_that_was_forked_off_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on with the numbers that its parent goes on with."""
    file = create(tmp_path / "t")
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        with pytest.raises(OSError, match="it stays with the process that has opened it"):
            file.check_there()
    file.check_there()
    file.close()


def damaged_header(data: bytes) -> bytes:
    return data[:60] + b"?" + data[61:]


def newer(data: bytes) -> bytes:
    return data[:8] + b"\x09" + data[9:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged_header, "its header was changed"),
        (newer, "format 9, this edgekv reads format 1"),
        (lambda data: data[:100], "ends inside its header"),
        (lambda data: data[:0], "not a tier of edgekv"),
        (lambda data: b"x" * len(data), "not a tier of edgekv"),
    ],
)
def test_what_is_no_tier_is_refused(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "t"
    create(path).close()
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TierError, match=message):
        TierFile.open(path)


def test_somebody_elses_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(b"video")
    with pytest.raises(TierError, match="something else than a tier"):
        create(path)
    assert path.read_bytes() == b"video"


def test_limits_and_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="holds no frame"):
        create(tmp_path / "t", num_slots=0)
    with pytest.raises(TierError, match="cannot be made"):
        create(tmp_path / "no" / "t")
    with pytest.raises(TierError, match="cannot be opened"):
        TierFile.open(tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_the_callers_to_handle(tmp_path: Path) -> None:
    file = create(tmp_path / "t")
    write(file, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + RECORD + 50, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            file.append()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.read(0), file.read(1)] == [True, False]
    write(file, 1)
    assert file.read(1)
    file.close()


def test_the_header_is_what_the_document_says(tmp_path: Path) -> None:
    create(tmp_path / "t").close()
    data = (tmp_path / "t").read_bytes()
    length = int.from_bytes(data[12:16], "little")
    assert json.loads(data[48 : 48 + length]) == {
        "record_bytes": RECORD,
        "num_slots": 4,
        "meta": {"who": "test"},
    }
