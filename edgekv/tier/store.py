"""The tier of one session: frames that leave its context go to a file and can be read again.

Owns: the file, its codec and its index, and the counts.
Guarantees: a disk that fails never stops the stream: nothing is stored from then on, with a reason;
    memory is taken once; what is read is what was stored, to the codec's precision, or nothing.
Does not know: which frames leave, who reads pages, where a frame that is read goes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Sequence, SequenceState
from edgekv.cache.segments import FRAME_CODE, segment_dtype
from edgekv.contents import are_finite, widen
from edgekv.errors import TierError
from edgekv.tier.file import HEADER_BYTES, TierFile, slots_within
from edgekv.tier.index import TierIndex, mean_keys
from edgekv.tier.plan import (
    TierPlan,
    check_memory,
    check_owner,
    codec_of,
    meta_of,
    record_dtype,
)

_MAX_POSITION = 2**24  # further on, float32 does not tell positions apart
SCRATCH_FRAMES = 5  # written and read to time the disk
ReadPages = Callable[[NDArray[np.int32]], NDArray[Any]]  # (n,) -> (n, L, 2, Hk, S, D)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A frame that was read back."""

    row: np.void  # fields as in frame_dtype
    pages: NDArray[Any]  # (n, L, 2, Hk, S, D)


class Tier:
    """Made by ``create`` for a new session and by ``reopen`` for one that goes on."""

    def __init__(self, file: TierFile, plan: TierPlan, session: str) -> None:
        self.session = session  # random, the same in the file and in what a session saves
        self.plan = plan
        self.problem: str | None = None  # why nothing is stored any more
        self.num_stored = 0  # frames written since it was opened
        self.num_skipped = 0  # frames that fit no record, are not finite, or failed to be written
        self.num_damaged = 0  # records that were refused when they were read
        geometry = plan.model.geometry
        self.index = TierIndex(geometry, file.header.num_slots)
        self._unseen: list[int] = []  # records of frames that the session has not seen
        self._file = file
        self._codec = codec_of(plan)
        self._page_size = geometry.page_size
        fields = record_dtype(plan, self._codec)
        if file.buffer.size != fields.itemsize:
            raise TierError(f"{file.path}: records of another size than this model's")
        self._record = file.buffer.view(fields)

    @classmethod
    def create(cls, path: str | Path, plan: TierPlan) -> Tier:
        """A new tier in place of an older one at ``path``. Raises TierError."""
        session = os.urandom(8).hex()
        body = record_dtype(plan, codec_of(plan)).itemsize
        meta = meta_of(plan, session)
        check_memory(path, plan, slots_within(plan.max_bytes, body), body)
        file = TierFile.create(path, body_bytes=body, max_bytes=plan.max_bytes, meta=meta)
        return cls(file, plan, session)

    @classmethod
    def reopen(cls, path: str | Path, plan: TierPlan, session: str, state: SequenceState) -> Tier:
        """The tier of a session that goes on from ``state``: its intact frames are known again.

        Those that the session has not seen yet, since it goes on from an older save, are not; they
        stay in the file until ``erase_unseen``.
        Raises TierError when the file is missing, of another model or of another session.
        """
        file = TierFile.open(path)
        try:
            check_owner(path, file.header.meta, meta_of(plan, session))
            check_memory(path, plan, file.header.num_slots, len(file.buffer))
            tier = cls(file, plan, session)
            tier._find_frames(state.next_segment_id)
        except BaseException:
            file.close()
            raise
        return tier

    def _find_frames(self, next_segment_id: int) -> None:
        """Know the intact records again, apart from those of segments that are not there yet."""
        for number in self._file.records():
            row = self._record[0]
            if row["frame"]["segment"] >= next_segment_id:
                self._unseen.append(number)
            elif self._is_sound(row):
                self.index.put(number, row["frame"], row["summary"])

    def erase_unseen(self) -> None:
        """Make room for what is to come: frames that the session has not seen would be taken for
        its own. To be called once it goes on, before anything is stored. Raises TierError."""
        try:
            while self._unseen:
                self._file.erase(self._unseen[-1])
                self._unseen.pop()
        except OSError as error:
            raise TierError(f"{self.path}: cannot be written ({error.strerror})") from None

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def max_frames(self) -> int:
        """How many the file can hold."""
        return self._file.header.num_slots

    @property
    def _frame_bytes(self) -> int:
        return self._file.header.record_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the records that are there."""
        return len(self.index) * self._frame_bytes

    def time_reading(self, sequence: Sequence, read_pages: ReadPages) -> float:
        """Seconds, the median of a few: the last frame of ``sequence`` from the disk to pages, with
        a file of its own beside this one, which has no name once it is open: one that a kill in
        between left is replaced by the next. Raises TierError."""
        path = self.path.with_name(f".{self.path.name}.probe")
        plan = replace(self.plan, max_bytes=HEADER_BYTES + (SCRATCH_FRAMES + 1) * self._frame_bytes)
        scratch = Tier.create(path, plan)
        try:
            scratch._file.lose_name()
            ((row, entries),) = _frames_of(sequence, sequence.segment_table().ids[-1:])
            for _ in range(SCRATCH_FRAMES):
                scratch.index.forget_all()
                scratch._store(row, entries, read_pages)
            scratch.forget_cached()
            seconds = []
            for number in range(scratch.num_stored):
                began = time.perf_counter()
                if scratch._read_number(number) is not None:
                    seconds.append(time.perf_counter() - began)
        except OSError as error:
            raise TierError(f"{path}: cannot be written ({error.strerror})") from None
        finally:
            scratch.close()
        if not seconds:
            raise TierError(f"{self.path}: no record could be read back")
        return median(seconds)

    def store(self, sequence: Sequence, ids: NDArray[np.int64], read_pages: ReadPages) -> None:
        """Write those frames of ``sequence`` that are among the segments ``ids`` (k,)."""
        self.check_file()
        for row, entries in _frames_of(sequence, ids):
            if self.problem is None and not self.index.has(int(row["id"])):
                try:
                    self._store(row, entries, read_pages)
                except OSError as error:
                    self.num_skipped += 1
                    self.stop(f"{self.path}: cannot be written ({error.strerror})")

    def _store(self, row: np.void, entries: NDArray[np.int32], read_pages: ReadPages) -> None:
        """Write one frame. Raises OSError."""
        num_tokens, num_axes = int(row["num_tokens"]), row["span"].size
        full = _valid(num_tokens, len(entries), self._page_size)
        written = entries[:, 2 + num_axes :]
        if len(entries) > self.plan.max_pages or (
            (entries[:, 1] != full).any() or (written != written[0]).any()
        ):
            self.num_skipped += 1  # not as one append leaves a frame
            return
        pages, dtype = read_pages(entries[:, 0]), self.plan.model.geometry.dtype
        pages[-1, ..., full[-1] :, :] = 0  # slots without a token hold what others left there
        record = self._record[0]
        frame = record["frame"]
        frame["segment"] = row["id"]
        for name in ("index", "time_s", "num_tokens", "num_pages", "span", "uniform"):
            frame[name] = row[name]
        frame["written"] = written[0]
        keys = pages[:, self.plan.layer, 0]
        with np.errstate(over="ignore", invalid="ignore"):  # it is not sound then
            wide = widen(keys, dtype)
            record["summary"] = mean_keys(wide, num_tokens, written[0], self.plan.rotation)
        if not (are_finite(pages, dtype) and self._is_sound(record)):
            self.num_skipped += 1  # one such summary in the index would hide all other frames
            return
        self._codec.encode(pages, record["payload"])
        number = self._file.append()
        self.num_stored += 1
        self.index.put(number, frame, record["summary"])

    def stop(self, reason: str) -> None:
        """Store nothing from now on. What is there can still be read."""
        self.problem = reason
        _log.warning("frames are no longer stored: %s", reason)

    def check_file(self) -> None:
        """Store nothing more, with a reason, where the file is not at its path any more. What it
        holds can be read until it is closed, unless somebody has written over it."""
        if self._file.closed or self._file.overwritten:
            return
        try:
            self._file.check_there()
        except OSError as error:
            if self._file.overwritten:
                self.index.forget_all()
            if self.problem is None:
                self.stop(f"{self.path}: {error.strerror}")

    def read_ahead(self, slots: NDArray[np.intp]) -> None:
        """Ask the system for records without waiting for them."""
        for slot in slots:
            self._file.read_ahead(int(self.index.numbers[slot]))

    def read(self, slot: int) -> StoredFrame | None:
        """The frame in a slot, None when its record is torn or changed: it is forgotten then."""
        return self._read_number(int(self.index.numbers[slot]))

    def _read_number(self, number: int) -> StoredFrame | None:
        frame = self._decoded() if self._file.read(number) else None
        if frame is None:
            self.num_damaged += 1
            self.index.forget(number)
        return frame

    def _decoded(self) -> StoredFrame | None:
        """The frame of the record that was read, None for one that this tier cannot have written:
        its checksum does not tell."""
        record = self._record[0]
        if not self._is_sound(record):
            return None
        num_pages = int(record["frame"]["num_pages"])
        with np.errstate(over="ignore", invalid="ignore"):  # it is not finite then
            pages = self._codec.decode(record["payload"], num_pages)
        if not are_finite(pages, self.plan.model.geometry.dtype):
            return None
        return StoredFrame(record["frame"].copy(), pages)

    def _is_sound(self, record: np.void) -> bool:
        """Whether a record says of its frame what one of this model can say."""
        frame = record["frame"]
        num_tokens, num_pages = int(frame["num_tokens"]), int(frame["num_pages"])
        spans = np.concatenate([frame["span"], frame["written"]])
        return bool(
            1 <= num_pages <= self.plan.max_pages
            and (num_pages - 1) * self._page_size < num_tokens <= num_pages * self._page_size
            and frame["segment"] >= 0
            and frame["index"] >= -1
            and np.isfinite(frame["time_s"])
            and (not frame["uniform"] or (frame["span"] == num_tokens).all())
            and (spans >= 0).all()
            and (spans <= _MAX_POSITION).all()
            and np.isfinite(record["summary"]).all()
        )

    def forget_cached(self) -> None:
        """Have the next reads come from the disk: for measurements."""
        self._file.forget_cached()

    def close(self) -> None:
        """Let go of the file. Closing twice is fine."""
        self.check_file()
        self._file.close()


def _frames_of(
    sequence: Sequence, ids: NDArray[np.int64]
) -> Iterator[tuple[np.void, NDArray[np.int32]]]:
    """Those frames of ``sequence`` that are among the segments ``ids`` (k,): their rows of
    ``segment_dtype``, and their page-table entries (n, 2 + 2 R)."""
    rows = sequence.export_state().segments
    ends = np.cumsum(rows["num_pages"])
    for place in np.flatnonzero(np.isin(rows["id"], ids) & (rows["kind"] == FRAME_CODE)):
        start = int(ends[place] - rows["num_pages"][place])
        yield rows[place], sequence.table.rows[start : ends[place]]


def state_of(frames: list[StoredFrame], page_size: int, next_id: int) -> SequenceState:
    """Frames, by growing id, as a sequence of their own would hold them: to ``Sequence.insert``."""
    num_axes = frames[0].row["span"].size
    rows = np.zeros(len(frames), segment_dtype(num_axes))
    rows["kind"] = FRAME_CODE
    for row, frame in zip(rows, frames, strict=True):
        row["id"] = frame.row["segment"]
        for name in ("index", "time_s", "num_tokens", "num_pages", "span", "uniform"):
            row[name] = frame.row[name]
    starts = np.repeat(np.cumsum(rows["span"], axis=0) - rows["span"], rows["num_pages"], axis=0)
    written = np.repeat([frame.row["written"] for frame in frames], rows["num_pages"], axis=0)
    valid = [_valid(int(r["num_tokens"]), int(r["num_pages"]), page_size) for r in rows]
    return SequenceState(
        np.concatenate(valid), (starts - written).astype(np.int32), written, rows, next_id
    )


def _valid(num_tokens: int, num_pages: int, page_size: int) -> NDArray[np.int32]:
    """(num_pages,) tokens by page, all full but the last."""
    valid = np.full(num_pages, page_size, np.int32)
    valid[-1] = num_tokens - (num_pages - 1) * page_size
    return valid
