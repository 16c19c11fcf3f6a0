"""What a session sees by cross-attention, in its file: the pages of its picture or sound.

Owns: the blocks named ``source.…``. Guarantees: a source that is in the cache already is not read
again; one that is read is found by others only after its checksum was compared; a restore that
fails gives every page back.
Does not know: the bytes of the format, the rest of a session.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import CrossInput, Sequence
from edgekv.contents import are_finite
from edgekv.errors import BudgetError, OutOfPagesError, SessionFileError
from edgekv.generate import Runner
from edgekv.session_file import Block, SessionFile

PREFIX = "source."
_PAGES = PREFIX + "pages"  # (n, num_layers, 2, Hk, S, D)
_KEY = PREFIX + "key"  # (32,) uint8, SHA-256 of model and content
_NUM_STATES = PREFIX + "num_states"  # () int64
_CHUNK_BYTES = 4 << 20
_NOT_FINITE = "keys or values of what the session looks at are infinite or no numbers"


def source_blocks(runner: Runner, sequence: Sequence) -> dict[str, Block]:
    """The blocks of what ``sequence`` looks at; none when it looks at nothing."""
    source = sequence.source
    if source is None:
        return {}
    cache = runner.cache.cross
    assert cache is not None
    empty = runner.read_source(source.pages[:0])
    step = _pages_per_chunk(runner)

    def chunks() -> Iterator[NDArray[np.generic]]:
        for start in range(0, len(source.table), step):
            part = source.table[start : start + step]
            contents = np.ascontiguousarray(runner.read_source(part[:, 0]))
            # Slots behind the last state hold what others left there.
            for page, num_valid in zip(contents, part[:, 1], strict=True):
                page[..., num_valid:, :] = 0
            if not are_finite(contents, cache.geometry.dtype):
                raise SessionFileError(f"{_NOT_FINITE}: what is there is kept")
            yield contents

    return {
        _PAGES: Block(empty.dtype, (len(source.table), *empty.shape[1:]), chunks()),
        _KEY: Block.whole(np.frombuffer(source.key, np.uint8)),
        _NUM_STATES: Block.whole(np.array(source.num_states, np.int64)),
    }


def check_source(file: SessionFile, runner: Runner) -> None:
    """Raise SessionFileError unless ``load_source`` can read what the file holds."""
    read = _read_key(file, runner)
    if read is None:
        return
    cache = runner.cache.cross
    assert cache is not None
    for contents in _saved_pages(file, runner, read[1]):
        if not are_finite(contents, cache.geometry.dtype):
            raise SessionFileError(f"{file.name}: {_NOT_FINITE}")


def load_source(file: SessionFile, runner: Runner, sequence: Sequence) -> None:
    """Let ``sequence`` look at what the file holds; nothing happens when it holds no source.

    Raises SessionFileError (damaged), BudgetError (what is in use leaves no room).
    """
    read = _read_key(file, runner)
    if read is None:
        return
    key, num_states = read
    with runner.lock:
        cache = runner.cache.cross
        assert cache is not None
        source = cache.find(key)
        if source is None:
            source = _read_source(file, runner, key, num_states)
        try:
            sequence.look_at(source)
        finally:
            source.release()


def _read_key(file: SessionFile, runner: Runner) -> tuple[bytes, int] | None:
    """Key and number of states of what the file holds; None = nothing."""
    if not any(name.startswith(PREFIX) for name in file.names):
        return None
    if runner.cache.cross is None:
        raise SessionFileError(f"{file.name}: holds a source, and this model looks at none")
    key, num_states = file.array(_KEY), file.array(_NUM_STATES)
    is_key = key.dtype == np.uint8 and key.shape == (32,)
    if not is_key or num_states.dtype != np.int64 or num_states.shape != ():
        raise SessionFileError(f"{file.name}: blocks {_KEY!r} and {_NUM_STATES!r} are no key")
    return key.tobytes(), int(num_states)


def _saved_pages(
    file: SessionFile, runner: Runner, num_states: int
) -> Iterator[NDArray[np.generic]]:
    cache = runner.cache.cross
    assert cache is not None
    empty = runner.read_source(np.empty(0, np.int32))
    num_pages = cache.geometry.pages_for(num_states)
    expected = (empty.dtype, (num_pages, *empty.shape[1:]))
    if num_states < 1 or file.dtype_and_shape(_PAGES) != expected:
        raise SessionFileError(f"{file.name}: block {_PAGES!r} must be {expected}")
    return file.chunks(_PAGES, _pages_per_chunk(runner))


def _read_source(file: SessionFile, runner: Runner, key: bytes, num_states: int) -> CrossInput:
    cache, start = runner.cache.cross, 0
    assert cache is not None
    try:
        source = cache.reserve(key, num_states)
    except OutOfPagesError as error:
        raise BudgetError(
            f"what the session looks at needs {error.needed} pages of cross-attention, "
            f"{error.free} can be had beside what other sessions look at"
        ) from None
    try:
        for contents in _saved_pages(file, runner, num_states):
            runner.fill_source(source.pages[start : start + len(contents)], contents)
            start += len(contents)
        cache.publish(source)
    except BaseException:
        source.release()
        raise
    return source


def _pages_per_chunk(runner: Runner) -> int:
    cache = runner.cache.cross
    assert cache is not None
    return max(_CHUNK_BYTES // cache.geometry.page_bytes, 1)
