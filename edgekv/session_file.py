"""A session on disk: a checked JSON header, then raw arrays. The format is docs/session_file.md.

Owns: the bytes of the format. Guarantees: what a ``SessionFile`` gives out has the checksum that
was written with it; no byte of the file can change without an error; neither writing nor reading
holds more than one chunk of a large array. What is wrong raises SessionFileError: one line.
Does not know: what the header's ``meta`` and the arrays mean, where they come from.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgekv.checks import path_of, shown
from edgekv.decode import decode, parse_json
from edgekv.errors import SessionFileError
from edgekv.regular_file import open_regular

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT_VERSION = 2
MAGIC = b"edgekvse"
_PREAMBLE = struct.Struct("<8sII32s")  # magic, format version, bytes of the header, its SHA-256
_ALIGNMENT = 64  # of the first block, so that it can be mapped into memory
_MAX_HEADER_BYTES = 1 << 20
_DTYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<u2", "|i1", "|u1")
_NO_DIGEST = "0" * 64
_MAX_AXES, _MAX_NUMBERS = 16, 1 << 48  # of a block: more is none that NumPy can make


@dataclass(frozen=True, slots=True)
class Block:
    """One array to write, as consecutive pieces along its first axis."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: Iterable[NDArray[Any]]

    @classmethod
    def whole(cls, array: NDArray[Any]) -> Block:
        """An array that is at hand as a whole."""
        return cls(array.dtype, array.shape, (array,))


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a block lies and what its bytes must be."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the end of the header
    sha256: str

    def __post_init__(self) -> None:
        sizes = [max(size, 1) for size in self.shape]
        if (
            self.dtype not in _DTYPES
            or len(sizes) > _MAX_AXES
            or min(self.shape, default=0) < 0
            or prod(sizes) > _MAX_NUMBERS
        ):
            raise ValueError(f"no block has dtype {shown(self.dtype)}, shape {shown(self.shape)}")

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class _Header:
    """The JSON."""

    meta: dict[str, object]
    blocks: dict[str, _Entry]


def write_session_file(
    file: BinaryIO, meta: Mapping[str, object], blocks: Mapping[str, Block]
) -> int:
    """Write a session to an empty file: its size in bytes.

    ``meta`` is JSON. Raises ValueError when chunks do not add up to their block's shape.
    """
    entries = _place(blocks)
    start = _PREAMBLE.size + len(_header(meta, entries))
    file.seek(start)  # the header comes last: it holds the digests, which have one length
    for name, block in blocks.items():
        entries[name] = _write_block(file, name, block, entries[name])
    end = file.tell()
    header = _header(meta, entries)
    assert start == _PREAMBLE.size + len(header)
    file.seek(0)
    file.write(_PREAMBLE.pack(MAGIC, FORMAT_VERSION, len(header), hashlib.sha256(header).digest()))
    file.write(header)
    return end


class SessionFile:
    """An opened session file: ``meta`` and the blocks' names at once, arrays on request."""

    def __init__(self, path: str | Path) -> None:
        """Open and check all but the blocks' contents. Raises SessionFileError."""
        path = path_of(path, "path")
        self.name = str(path)
        try:
            self._file = open_regular(path)
        except OSError as error:
            raise SessionFileError(f"{path}: cannot be read ({error.strerror})") from None
        try:
            header = self._read_header()
            self.meta, self._entries = self._parse(header)
            self._start = _PREAMBLE.size + len(header)
            self._check_extent()
        except BaseException:
            self._file.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """The blocks, in the order in which they lie."""
        return tuple(self._entries)

    def dtype_and_shape(self, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Of the block ``name``. Raises SessionFileError when there is none."""
        entry = self._entry(name)
        return np.dtype(entry.dtype), entry.shape

    def array(self, name: str) -> NDArray[Any]:
        """The block ``name`` as a whole, checked. Raises SessionFileError."""
        entry = self._entry(name)
        chunks = list(self.chunks(name, max(entry.shape[0], 1) if entry.shape else 1))
        if not chunks:
            return np.empty(entry.shape, entry.dtype)
        return chunks[0].reshape(entry.shape)

    def chunks(self, name: str, num_rows: int) -> Iterator[NDArray[Any]]:
        """The block ``name`` in pieces of up to ``num_rows`` rows along its first axis.

        Its checksum is compared after the last piece: raises SessionFileError then, or before.
        """
        entry, digest = self._entry(name), hashlib.sha256()
        rows, row_shape = (entry.shape[0], entry.shape[1:]) if entry.shape else (1, ())
        dtype = np.dtype(entry.dtype)
        if not entry.num_bytes:
            return
        row_bytes = prod(row_shape) * dtype.itemsize
        self._file.seek(self._start + entry.offset)
        for start in range(0, rows, num_rows):
            count = min(num_rows, rows - start)
            data = self._read(count * row_bytes)
            digest.update(data)
            yield np.frombuffer(data, dtype).reshape(count, *row_shape)
        if digest.hexdigest() != entry.sha256:
            raise self._wrong(f"block {name!r} was changed, its SHA-256 differs")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- reading the header ---------------------------------------------------------------------

    def _read_header(self) -> bytes:
        preamble = self._read(_PREAMBLE.size, "it is shorter than its preamble")
        magic, version, length, digest = _PREAMBLE.unpack(preamble)
        if magic != MAGIC:
            raise self._wrong("not a saved session")
        if version > FORMAT_VERSION:
            raise self._wrong(
                f"format version {version} is newer than the {FORMAT_VERSION} this edgekv reads; "
                "update edgekv"
            )
        if version < 1 or length > _MAX_HEADER_BYTES:
            raise self._wrong(f"broken preamble: version {version}, header of {length} bytes")
        header = self._read(length)
        if hashlib.sha256(header).digest() != digest:
            raise self._wrong("its header was changed, its SHA-256 differs")
        return header

    def _parse(self, header: bytes) -> tuple[dict[str, object], dict[str, _Entry]]:
        try:
            read = decode(_Header, parse_json(header, "its header"), "its header")
        except ValueError as error:
            raise self._wrong(str(error)) from None
        return read.meta, read.blocks

    def _check_extent(self) -> None:
        """Blocks follow the header and each other without a gap, up to the end of the file."""
        end = 0
        for name, entry in self._entries.items():
            if entry.offset != end:
                raise self._wrong(f"block {name!r} is said to lie at {entry.offset}, not at {end}")
            end += entry.num_bytes
        if (size := self._file.seek(0, 2)) != (expected := self._start + end):
            raise self._wrong(f"expected {expected} bytes, got {size}: cut off or added to")

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise self._wrong(f"block {name!r} is missing")
        return self._entries[name]

    def _read(self, num_bytes: int, otherwise: str = "it was cut off") -> bytes:
        try:
            data = self._file.read(num_bytes)
        except OSError as error:
            raise self._wrong(f"cannot be read ({error.strerror})") from None
        if len(data) < num_bytes:
            raise self._wrong("the file is empty" if not self._file.tell() else otherwise)
        return data

    def _wrong(self, what: str) -> SessionFileError:
        return SessionFileError(f"{self.name}: {what}")


# -- writing ------------------------------------------------------------------------------------


def _place(blocks: Mapping[str, Block]) -> dict[str, _Entry]:
    """Where each block will lie, without its digest."""
    entries, offset = {}, 0
    for name, block in blocks.items():
        if block.dtype.str not in _DTYPES:
            raise ValueError(f"block {name!r}: dtype {block.dtype.str} is not one of the format's")
        entries[name] = _Entry(block.dtype.str, tuple(block.shape), offset, _NO_DIGEST)
        offset += entries[name].num_bytes
    return entries


def _header(meta: Mapping[str, object], entries: Mapping[str, _Entry]) -> bytes:
    """The JSON, padded with spaces so that the first block is aligned."""
    blocks = {
        name: {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "offset": entry.offset,
            "sha256": entry.sha256,
        }
        for name, entry in entries.items()
    }
    text = json.dumps({"meta": meta, "blocks": blocks}, allow_nan=False).encode()
    return text + b" " * (-(len(text) + _PREAMBLE.size) % _ALIGNMENT)


def _write_block(file: BinaryIO, name: str, block: Block, entry: _Entry) -> _Entry:
    digest, num_bytes = hashlib.sha256(), 0
    for chunk in block.chunks:
        if chunk.dtype != block.dtype:
            raise ValueError(f"block {name!r}: expected {block.dtype}, got {chunk.dtype}")
        data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
        digest.update(data)
        num_bytes += file.write(data)
    if num_bytes != entry.num_bytes:
        raise ValueError(f"block {name!r}: its chunks do not add up to {block.shape}")
    return _Entry(entry.dtype, entry.shape, entry.offset, digest.hexdigest())
