"""Numbers and runs as bytes: the alphabet of docs/trace_format.md.

Owns: variable-length numbers, runs of ids, the frame around a record, the header.
Guarantees: whatever the bytes, decoding ends with a value, ``Incomplete`` or ``ValueError``.
Does not know: what records mean, files.
"""

from __future__ import annotations

import json
import struct
from binascii import crc32, crc_hqx
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from edgekv.checks import whole
from edgekv.config import KVGeometry
from edgekv.decode import decode, parse_json

MAGIC = b"EDGEKVT\n"
VERSION = 4
MAX_HEADER_BYTES = 1 << 17
MAX_IDS = 1 << 24  # more in one list is no log but damage
_FIXED = struct.Struct("<8sHH")  # magic, version, length of the JSON that follows
_CRC16 = struct.Struct("<H")
_CRC32 = struct.Struct("<I")
_F64 = struct.Struct("<d")


class Incomplete(ValueError):  # noqa: N818 - it is the ordinary end of a log that was cut
    """The bytes end inside a value."""


@dataclass(frozen=True, slots=True)
class Header:
    """What stands at the start of each part of a log."""

    geometry: KVGeometry
    num_pages: int
    max_pages: int
    max_positions: int | None
    shiftable: bool
    cross: KVGeometry | None  # of what cross-attention reads; None for a model without
    num_cross_pages: int
    began_unix_s: float
    run: str  # the same in all parts of one log
    part: int  # 0, 1, 2, …
    part_us: int  # when the part began, since the log began

    def __post_init__(self) -> None:
        for name in ("num_pages", "max_pages"):
            whole(getattr(self, name), name, least=1, most=MAX_IDS)
        least = 0 if self.cross is None else 1
        whole(self.num_cross_pages, "num_cross_pages", least=least, most=MAX_IDS)
        for name in ("part", "part_us"):
            whole(getattr(self, name), name, least=0)
        if self.max_positions is not None:
            whole(self.max_positions, "max_positions", least=1)


def pack_header(header: Header) -> bytes:
    """Magic, version, length, JSON, CRC-32 of all of it."""
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    head = _FIXED.pack(MAGIC, VERSION, len(text)) + text
    return head + _CRC32.pack(crc32(head))


def unpack_header(data: bytes) -> tuple[Header, int]:
    """The header and where the records begin. ValueError says in words what is wrong."""
    if not data:
        raise ValueError("the file is empty")
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise ValueError("not a trace written by edgekv")
    if len(data) < _FIXED.size:
        raise ValueError("the file ends inside its header")
    _, version, length = _FIXED.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"trace format {version}, this edgekv reads format {VERSION}")
    end = _FIXED.size + length
    if len(data) < end + _CRC32.size:
        raise ValueError("the file ends inside its header")
    if _CRC32.unpack_from(data, end)[0] != crc32(data[:end]):
        raise ValueError("the header is damaged")
    value = parse_json(data[_FIXED.size : end], "the header")
    return decode(Header, value, "the header"), end + _CRC32.size


def put(out: bytearray, number: int) -> None:
    """Append a non-negative number, seven bits a byte, lowest first."""
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def put_signed(out: bytearray, number: int) -> None:
    """Append a number of either sign: 0, -1, 1, -2, … become 0, 1, 2, 3, …"""
    put(out, number << 1 if number >= 0 else (-number << 1) - 1)


def put_ids(out: bytearray, ids: Iterable[int]) -> None:
    """Append a list of ids as runs of consecutive ones: how many ids, then each run's start (from
    where the last run would have gone on) and length."""
    runs: list[list[int]] = []
    count, follows = 0, -1
    for number in ids:
        if number == follows and runs:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
        follows = number + 1
        count += 1
    put(out, count)
    follows = 0
    for start, length in runs:
        put_signed(out, start - follows)
        put(out, length)
        follows = start + length


def put_float(out: bytearray, number: float) -> None:
    """Append a float64."""
    out += _F64.pack(number)


def put_text(out: bytearray, text: str) -> None:
    """Append UTF-8 with its length in front."""
    data = text.encode()
    put(out, len(data))
    out += data


class Fields:
    """Takes values off the front of one record."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    @property
    def at(self) -> int:
        return self._at

    def number(self) -> int:
        """A non-negative number below 2**70."""
        data, at = self._data, self._at
        value = shift = 0
        try:
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                if byte < 128:
                    self._at = at
                    return value
                shift += 7
                if shift > 63:
                    raise ValueError("a number is too long")
        except IndexError:
            raise Incomplete("the record ends inside a number") from None

    def signed(self) -> int:
        value = self.number()
        return value >> 1 if not value & 1 else -((value + 1) >> 1)

    def ids(self) -> tuple[int, ...]:
        left, follows = self.number(), 0
        if left > MAX_IDS:
            raise ValueError("a list is too long")
        out: list[int] = []
        while left:
            start, length = follows + self.signed(), self.number()
            if start < 0 or not 0 < length <= left:
                raise ValueError("a list of ids does not make sense")
            follows = start + length
            out.extend(range(start, follows))
            left -= length
        return tuple(out)

    def numbers(self, count: int) -> tuple[int, ...]:
        return tuple([self.number() for _ in range(count)])

    def float(self) -> float:
        data = self._take(_F64.size)
        value: float = _F64.unpack(data)[0]
        return value

    def text(self) -> str:
        return self._take(self.number()).decode()

    def raw(self, size: int) -> bytes:
        """So many bytes as they are."""
        return self._take(size)

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise Incomplete("the record ends inside a value")
        self._at += size
        return data


def frame_record(record: bytes | bytearray, chain: int) -> tuple[bytes, int]:
    """A record with its length in front and the CRC-16 of it and all before it behind it, and that
    CRC: the chain that the next record goes on from."""
    out = bytearray()
    put(out, len(record))
    chain = crc_hqx(record, chain)
    return bytes(out + record + _CRC16.pack(chain)), chain


def unframe_record(data: bytes, at: int, chain: int) -> tuple[bytes, int, int]:
    """The record at ``at``, where the next begins, and the chain. Incomplete at the end of the
    data, ValueError when the check sum is wrong."""
    fields = Fields(data, at)
    length = fields.number()
    start = fields.at
    end = start + length
    if end + _CRC16.size > len(data):
        raise Incomplete("the file ends inside a record")
    record = data[start:end]
    chain = crc_hqx(record, chain)
    if _CRC16.unpack_from(data, end)[0] != chain:
        raise ValueError("the check sum is wrong")
    return record, end + _CRC16.size, chain
