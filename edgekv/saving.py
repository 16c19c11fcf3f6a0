"""Between a session and its file: what is written, and what must agree before it is read back.

Owns: ``SessionRecord``, what a session file's ``meta`` says, and which blocks it has.
Guarantees: a save holds the model's lock only while it copies, never while the disk flushes, and
takes memory for one chunk of pages; a file is checked as a whole before anything is taken for it,
and a restore that fails leaves the pool as it was.
Does not know: the bytes of the format, how a session uses what it gets back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgekv.atomic_file import holds_something_else, replacing
from edgekv.cache import PageCache, Sequence, SequenceState
from edgekv.cache.retention import retention_rule
from edgekv.cache.segments import checked_label
from edgekv.checks import path_of, whole
from edgekv.contents import are_finite
from edgekv.decode import decode
from edgekv.errors import SessionError, SessionFileError
from edgekv.generate import Runner
from edgekv.limits import plan_limits
from edgekv.members import Member
from edgekv.saved_source import PREFIX, check_source, load_source, source_blocks
from edgekv.session_file import MAGIC, Block, SessionFile, write_session_file
from edgekv.tier.plan import TierRecord
from edgekv.types import ModelIdentity

_PAGES = "pages"  # (num_pages, num_layers, 2, Hk, S, D)
_CHUNK_BYTES = 4 << 20
_NOT_FINITE = "keys or values of the context are infinite or no numbers"


@dataclass(slots=True)
class SessionRecord:
    """What a session knows beside the tokens of its context; the session keeps it up to date."""

    retain: str  # the rule's name
    instructions: str | None
    reserve_tokens: int
    last_time_s: float | None = None  # None = no frame yet
    num_frames: int = 0  # pushed since the session began
    num_evicted_frames: int = 0
    num_questions: int = 0
    tier: TierRecord | None = None  # where frames go that leave

    def __post_init__(self) -> None:
        retention_rule(self.retain)
        whole(self.reserve_tokens, "reserve_tokens", least=2)
        for name in ("num_frames", "num_evicted_frames", "num_questions"):
            whole(getattr(self, name), name, least=0)
        if self.last_time_s is not None:
            checked_label(0, self.last_time_s)


@dataclass(frozen=True, slots=True)
class _Meta:
    model: ModelIdentity
    session: SessionRecord


def savable(path: str | Path, name: str) -> Path:
    """A path that a session may be saved to, as far as can be told before. Raises ValueError for
    what is no path, SessionFileError where another file would be lost."""
    checked = path_of(path, name)
    if holds_something_else(checked, MAGIC):
        raise SessionFileError(
            f"{checked}: holds something else than a session and is not replaced"
        )
    return checked


def save_context(
    path: str | Path,
    runner: Runner,
    member: Member,
    model: ModelIdentity,
    record: SessionRecord,
) -> int:
    """Write the context of ``member`` to ``path``, as a whole or not at all: the file's bytes.

    Raises SessionFileError when the file cannot be written; what was there is there still.
    """
    path = savable(path, "path")
    try:
        with replacing(path) as file, runner.lock:
            runner.check_open()
            meta, sequence = _Meta(model, record), member.sequence
            if sequence.closed:
                raise SessionError("this session is closed")
            state = sequence.export_state()
            blocks = {_PAGES: _page_block(runner, sequence.table.page_ids, state.valid)}
            blocks |= {name: Block.whole(array) for name, array in state.to_arrays().items()}
            blocks |= source_blocks(runner, sequence)
            return write_session_file(file, asdict(meta), blocks)
    except OSError as error:
        raise SessionFileError(f"{path}: cannot be saved ({error.strerror or error})") from None


def _page_block(runner: Runner, pages: NDArray[np.int32], valid: NDArray[np.int32]) -> Block:
    empty = runner.read_pages(pages[:0])
    step = _pages_per_chunk(runner)

    def chunks() -> Iterator[NDArray[np.generic]]:
        for start in range(0, pages.size, step):
            part = slice(start, start + step)
            contents = np.ascontiguousarray(runner.read_pages(pages[part]))
            # Slots without a token hold what others left there: not this session's to write down.
            for page, num_valid in zip(contents, valid[part], strict=True):
                page[..., num_valid:, :] = 0
            if not are_finite(contents, runner.cache.geometry.dtype):
                raise SessionFileError(f"{_NOT_FINITE}: what is there is kept")
            yield contents

    return Block(empty.dtype, (pages.size, *empty.shape[1:]), chunks())


def saved_record(path: str | Path) -> SessionRecord:
    """What a saved session knows, whichever model it is of. Raises SessionFileError."""
    with SessionFile(path) as file:
        return _read_meta(file).session


def read_saved(
    file: SessionFile, runner: Runner, model: ModelIdentity
) -> tuple[SessionRecord, SequenceState]:
    """What the session and its cache knew, once the whole file was checked.

    Raises SessionFileError: damaged, or of another format or model.
    """
    record, state = _read_state(file, runner.cache, model)
    for contents in _saved_pages(file, runner, state.num_pages):
        if not are_finite(contents, model.geometry.dtype):
            raise SessionFileError(f"{file.name}: {_NOT_FINITE}")
    check_source(file, runner)
    return record, state


@contextmanager
def restoring(
    file: SessionFile,
    record: SessionRecord,
    state: SequenceState,
    runner: Runner,
    *,
    begin: Callable[[Sequence], None] | None = None,
    num_frame: int,  # tokens
    max_context_tokens: int,
    priority: int,
) -> Generator[Member, None, None]:
    """What ``read_saved`` has checked, in pages of its own, as one of the pool's sessions.

    The block makes a ``Session`` of it. Nobody else comes to the pool until it has ended, so the
    newcomer gives frames like any other as soon as it can be asked for some. ``begin`` gets its
    context, empty, before anybody has given room: for what can be done then, and may fail.
    Raises BudgetError (no room), and what the disk and the block raise; the pool is as before then,
    but for frames that others let go where it has no room for both.
    """
    rule = retention_rule(record.retain, shiftable=runner.cache.shiftable)
    with runner.lock:
        runner.check_open()
        limits = plan_limits(
            runner.cache,
            num_start=state.num_pinned_tokens,
            num_frame=num_frame,
            max_context_tokens=max_context_tokens,
            reserve_tokens=record.reserve_tokens,
            num_pages=runner.cache.counts.num_pages,
            recall=record.tier is not None,
        )
        runner.sharing.check_newcomer(limits, num_pages=state.num_pages)
        member = Member(runner.cache.open(), rule, limits, priority, record)
        try:
            if begin is not None:
                begin(member.sequence)
        except BaseException:
            member.sequence.close()
            raise
        with runner.sharing.entering(member, state.num_pages):
            sequence = runner.cache.import_state(state)
            member.sequence.close()
            member.sequence = sequence
            _load_pages(file, runner, sequence)
            load_source(file, runner, sequence)
            yield member


def _read_state(
    file: SessionFile, cache: PageCache, model: ModelIdentity
) -> tuple[SessionRecord, SequenceState]:
    """What the session and its cache knew."""
    meta = _read_meta(file)
    _check_model(file.name, meta.model, model)
    known = [name for name in file.names if name != _PAGES and not name.startswith(PREFIX)]
    arrays = {name: file.array(name) for name in known}
    try:
        state = SequenceState.from_arrays(arrays, max(model.geometry.num_rope_axes, 1))
        cache.check_importable(state)
        _check_times(meta.session, state)
    except ValueError as error:
        raise SessionFileError(f"{file.name}: {error}") from None
    return meta.session, state


def _read_meta(file: SessionFile) -> _Meta:
    try:
        return decode(_Meta, _with_tier(file.meta), "meta")
    except ValueError as error:
        raise SessionFileError(f"{file.name}: {error}") from None


def _check_times(record: SessionRecord, state: SequenceState) -> None:
    """Raise ValueError where a frame is later than the last one."""
    times = state.segments["time_s"]
    newest = times[~np.isnan(times)].max(initial=-np.inf)
    if newest > (-np.inf if record.last_time_s is None else record.last_time_s):
        raise ValueError(f"last_time_s is {record.last_time_s}, but a frame stands at {newest} s")


def _with_tier(meta: dict[str, object]) -> dict[str, object]:
    """``meta`` as this version writes it: in version 1 no session had a tier."""
    session = meta.get("session")
    return {**meta, "session": {"tier": None, **session}} if isinstance(session, dict) else meta


def _check_model(where: str, saved: ModelIdentity, here: ModelIdentity) -> None:
    if saved == here:
        return
    if saved.weights_sha256 != here.weights_sha256:
        raise SessionFileError(
            f"{where}: saved with the model {saved.name} {saved.weights_sha256[:12]}, "
            f"this one is {here.name} {here.weights_sha256[:12]}"
        )
    if saved.geometry != here.geometry:
        old, new = asdict(saved.geometry), asdict(here.geometry)
        key = next(key for key in old if old[key] != new[key])
        remedy = f"; load it with kv_dtype={old[key]!r} (--kv-dtype {old[key]})"
        raise SessionFileError(
            f"{where}: saved with {key} {old[key]} of the KV pool, this model has {new[key]}"
            f"{remedy if key == 'dtype' else ''}"
        )
    raise SessionFileError(
        f"{where}: saved with operator version {saved.operator_version} of {saved.name}, this "
        f"model has version {here.operator_version} and the name {here.name}"
    )


def _load_pages(file: SessionFile, runner: Runner, sequence: Sequence) -> None:
    """Fill the pages of an imported sequence."""
    pages, start = sequence.table.page_ids.copy(), 0
    for contents in _saved_pages(file, runner, pages.size):
        runner.write_pages(pages[start : start + len(contents)], contents)
        start += len(contents)


def _saved_pages(
    file: SessionFile, runner: Runner, num_pages: int
) -> Iterator[NDArray[np.generic]]:
    """Contents of the saved pages, a chunk at a time."""
    empty = runner.read_pages(np.empty(0, np.int32))
    expected = (empty.dtype, (num_pages, *empty.shape[1:]))
    if file.dtype_and_shape(_PAGES) != expected:
        raise SessionFileError(f"{file.name}: block {_PAGES!r} must be {expected}")
    return file.chunks(_PAGES, _pages_per_chunk(runner))


def _pages_per_chunk(runner: Runner) -> int:
    return max(_CHUNK_BYTES // runner.cache.geometry.page_bytes, 1)
