"""The format of a saved session and the replacing of files, without a model."""

from __future__ import annotations

import json
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from edgekv import atomic_file
from edgekv.atomic_file import replacing
from edgekv.errors import SessionFileError
from edgekv.session_file import Block, SessionFile, write_session_file

META = {"name": "köln", "time_s": 0.1, "none": None}
ROWS = np.arange(7 * 2 * 3, dtype=np.float16).reshape(7, 2, 3)
SMALL = {
    "ids": np.array([3, -1], np.int64),
    "none": np.empty((0, 2), np.int32),
    "one": np.array(9, np.int64),
}


def write(file: BinaryIO) -> int:
    blocks = {"rows": Block(ROWS.dtype, ROWS.shape, (ROWS[:3], ROWS[3:6], ROWS[6:]))}
    return write_session_file(file, META, blocks | {k: Block.whole(a) for k, a in SMALL.items()})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with replacing(tmp_path / "a.session") as file:
        size = write(file)
    assert (tmp_path / "a.session").stat().st_size == size
    return tmp_path / "a.session"


def read_all(path: Path) -> dict[str, np.ndarray]:
    with SessionFile(path) as file:
        return {name: file.array(name) for name in file.names}


def test_what_was_written_is_read(path: Path) -> None:
    with SessionFile(path) as file:
        assert file.meta == META
        assert file.names == ("rows", *SMALL)
        assert file.dtype_and_shape("rows") == (ROWS.dtype, ROWS.shape)
        pieces = list(file.chunks("rows", 2))
        assert [len(piece) for piece in pieces] == [2, 2, 2, 1]
        np.testing.assert_array_equal(np.concatenate(pieces), ROWS)
        for name, array in SMALL.items():
            got = file.array(name)
            assert (got.dtype, got.shape, got.tolist()) == (
                array.dtype,
                array.shape,
                array.tolist(),
            )


def test_numpy_alone_can_read_it(path: Path) -> None:
    """As docs/session_file.md says."""
    data = path.read_bytes()
    magic, version, length = struct.unpack_from("<8sII", data)
    assert (magic, version) == (b"edgekvse", 2)
    start = 48 + length
    assert start % 64 == 0
    entry = json.loads(data[48:start])["blocks"]["rows"]
    rows = np.memmap(
        path, entry["dtype"], "r", offset=start + entry["offset"], shape=tuple(entry["shape"])
    )
    np.testing.assert_array_equal(rows, ROWS)


def test_no_byte_can_change_unnoticed(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(SessionFileError) as refused:
            read_all(path)
        assert len(str(refused.value).splitlines()) == 1
    path.write_bytes(whole)
    read_all(path)


def test_no_length_is_accepted_but_the_right_one(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(SessionFileError, match=r"a\.session: "):
            SessionFile(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(SessionFileError, match="cut off or added to"):
        SessionFile(path)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"", "the file is empty"),
        (b"edgekv", "shorter than its preamble"),
        (b"PK\3\4" + b"\0" * 100, "not a saved session"),
        (struct.pack("<8sII32s", b"edgekvse", 3, 0, b""), "format version 3 is newer than the 2"),
        (struct.pack("<8sII32s", b"edgekvse", 1, 2**31, b""), "header of 2147483648 bytes"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, contents: bytes, said: str) -> None:
    (tmp_path / "x").write_bytes(contents)
    with pytest.raises(SessionFileError, match=said):
        SessionFile(tmp_path / "x")


def test_a_missing_file_and_a_missing_block(tmp_path: Path, path: Path) -> None:
    with pytest.raises(SessionFileError, match="cannot be read"):
        SessionFile(tmp_path / "missing")
    with pytest.raises(SessionFileError, match="cannot be read"):
        SessionFile(tmp_path)
    with SessionFile(path) as file, pytest.raises(SessionFileError, match="'keys' is missing"):
        file.array("keys")


def test_blocks_that_are_not_as_announced_are_refused(tmp_path: Path) -> None:
    wrong = {
        "do not add up": Block(ROWS.dtype, (8, 2, 3), (ROWS,)),
        "expected float16": Block(ROWS.dtype, ROWS.shape, (ROWS.astype(np.float32),)),
        "not one of the format's": Block.whole(np.array(["text"])),
    }
    for said, block in wrong.items():
        with pytest.raises(ValueError, match=said), replacing(tmp_path / "x") as file:
            write_session_file(file, {}, {"rows": block})
    assert list(tmp_path.iterdir()) == []


# -- replacing a file ------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_file_and_nothing_else(path: Path) -> None:
    whole = path.read_bytes()
    with suppress(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half of")
        raise KeyboardInterrupt
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "fdopen"])
def test_a_disk_that_fails_leaves_the_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    whole = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file.os, call, fail)
    with pytest.raises(OSError, match="No space left"), replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]


def test_what_killed_writers_left_goes_and_what_living_ones_write_stays(path: Path) -> None:
    stale = [path.parent / f".a.session.{k}.tmp" for k in range(3)]
    for left in stale:
        left.write_bytes(b"left behind")
    others = path.parent / ".other.session.0.tmp"
    others.touch()
    with replacing(path) as first:
        first.write(b"first")
        with replacing(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert sorted(path.parent.iterdir()) == sorted([path, others])


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, errors = tmp_path / "a", []

    def write_often(byte: bytes) -> None:
        try:
            for _ in range(100):
                with replacing(path) as file:
                    file.write(byte * 5000)
                assert len(set(path.read_bytes())) == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write_often, args=(bytes([k]),)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_names_may_be_odd(tmp_path: Path) -> None:
    (tmp_path / "real [1]*").write_bytes(b"old")
    (tmp_path / ".real [1]*.x.tmp").touch()
    (tmp_path / "link").symlink_to("real [1]*")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real [1]*").read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 2
