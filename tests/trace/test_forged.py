"""A forged log is refused with TraceError or read, drawn and replayed, whatever it says."""

from __future__ import annotations

import json
import random
import struct
from binascii import crc32
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekv.errors import TraceError
from edgekv.trace import read_log
from edgekv.trace.codec import MAGIC, VERSION, frame_record, unframe_record, unpack_header
from edgekv.trace.replay import replay
from edgekv.trace.timeline import build_timeline
from edgekv.trace.view import make_view
from edgekv.trace.words import describe
from tests.forging import forgeries, refusal
from tests.trace.inputs import write_inputs
from tests.trace.streams import write_log

FIXED = struct.Struct("<8sHH")


def described(path: Path) -> None:
    log = read_log(path)
    describe(log, make_view(build_timeline(log)))


def replayed(path: Path) -> None:
    replay(read_log(path))


USES: list[Callable[[Path], object]] = [described, replayed]


def with_header(header: Any, records: bytes) -> bytes:
    text = json.dumps(header).encode()[: 2**16 - 1]
    head = FIXED.pack(MAGIC, VERSION, len(text)) + text
    return head + struct.pack("<I", crc32(head)) + records


@pytest.mark.parametrize("use", USES)
def test_headers(tmp_path: Path, use: Callable[[Path], object]) -> None:
    path = write_log(tmp_path / "t", 12)
    data = path.read_bytes()
    length = FIXED.unpack_from(data)[2]
    header, end = json.loads(data[FIXED.size : FIXED.size + length]), unpack_header(data)[1]
    said = []
    for _, forged in forgeries(header, each=12):
        path.write_bytes(with_header(forged, data[end:]))
        said.append(refusal(lambda: use(path), TraceError))
    assert len(said) - said.count(None) > len(said) // 2 > 50


@pytest.mark.parametrize("text", [b"", b"[1]", b"null", b"{", b"\xff", b"[" * 60_000])
def test_what_is_no_json_object(tmp_path: Path, text: bytes) -> None:
    head = FIXED.pack(MAGIC, VERSION, len(text)) + text
    (tmp_path / "t").write_bytes(head + struct.pack("<I", crc32(head)))
    with pytest.raises(TraceError):
        read_log(tmp_path / "t")


def write_stream(path: Path) -> None:
    write_log(path, 12, ask_every=6)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("write", [write_stream, write_inputs])
def test_records(
    tmp_path: Path, write: Callable[[Path], object], use: Callable[[Path], object]
) -> None:
    """Bytes of records changed, records taken out, told twice or in another order; checksums
    right."""
    path, draw = tmp_path / "t", random.Random(3)  # noqa: S311
    write(path)
    data = path.read_bytes()
    at, chain, records = unpack_header(data)[1], 0, []
    start = data[:at]
    while at < len(data):
        record, at, chain = unframe_record(data, at, chain)
        records.append(record)
    said = []
    for _ in range(100):
        changed = list(records)
        place = draw.randrange(len(records))
        if (how := draw.randrange(4)) == 0:
            del changed[place]
        elif how == 1:
            changed.insert(draw.randrange(len(records)), records[place])
        else:
            some = bytearray(records[place])
            for _ in range(draw.randrange(1, 3)):
                some[draw.randrange(len(some))] = draw.choice(
                    (0, 1, 127, 128, 255, draw.randrange(256))
                )
            changed[place] = bytes(some)
        out, chain = bytearray(start), 0
        for record in changed:
            framed, chain = frame_record(record, chain)
            out += framed
        path.write_bytes(out)
        said.append(refusal(lambda: use(path), TraceError))
    assert any(said)
