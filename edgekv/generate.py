"""Feeds tokens of sequences through the decoder, in chunks.

Owns: a model's pools, which are touched under its one lock, and the chunking of long inputs.
Guarantees: a call that fails leaves its sequence as it was; nothing is computed once it was shut
down. Does not know frames, prompts or retention; it is given embeddings and sequences.
"""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

from edgekv.cache import Append, CrossInput, PageCache, Sequence
from edgekv.contents import widen
from edgekv.errors import ModelError
from edgekv.executors import CrossExecutor, DecoderExecutor
from edgekv.pool_lock import PoolLock
from edgekv.sharing import Sharing
from edgekv.types import SegmentKind


class Runner:
    """A decoder, the cache whose pages its pools hold, and the sessions that share them."""

    def __init__(
        self,
        decoder: DecoderExecutor,
        cache: PageCache,
        *,
        cross: CrossExecutor | None = None,
        max_step_tokens: int = 256,
    ) -> None:
        self.cache = cache
        self.lock = PoolLock()
        self.sharing = Sharing(cache)
        self._decoder = decoder
        self._cross = cross
        self._closed = False
        page_size = cache.geometry.page_size
        self._chunk = max(max_step_tokens // page_size, 1) * page_size
        # The pools go with the model as soon as nobody holds it, not when cycles are looked for.
        reference = weakref.ref(self)

        def alive() -> Runner:
            runner = reference()
            assert runner is not None, "the cache is used without its runner"
            return runner

        cache.summaries.read_from(
            lambda pages: alive()._read_values(pages),
            lambda: alive()._decoder.find_values(cache.summaries.layer),
        )

    def feed(
        self,
        sequence: Sequence,
        kind: SegmentKind,
        embeds: NDArray[np.float32],  # (n, hidden)
        *,
        extend: bool = False,
        index: int = -1,
        time_s: float = float("nan"),
        positions: NDArray[np.int64] | None = None,  # (R, n) from the sequence's next position on
        advance: tuple[int, ...] = (),  # (R,) how far that one moves, given with ``positions``
        mass_weight: float = 0.0,
    ) -> NDArray[np.float32]:
        """Append one run of tokens; logits (vocab,) of its last token. All or nothing.

        Without ``positions`` tokens count up on every axis. With a ``mass_weight`` they are one use
        of the pages that they look at, see ``PageHeat``.
        """
        with self.lock:
            self.check_open()
            num_before = sequence.num_tokens
            # An input in several pieces fits, or fails before the first is computed; whoever has
            # reserved pages has done so for this.
            reserves = len(embeds) > self._chunk and not sequence.reserved_pages.size
            if reserves:
                sequence.reserve(len(embeds), positions=positions)
            try:
                for start in range(0, len(embeds), self._chunk):
                    stop = min(start + self._chunk, len(embeds))
                    own = None if positions is None else positions[:, start:stop]
                    # Positions count from where the run began, so only its last chunk moves on.
                    move = advance if stop == len(embeds) else (0,) * len(advance)
                    append = sequence.append(
                        kind,
                        stop - start,
                        extend=extend or start > 0,
                        positions=own,
                        advance=None if own is None else move,
                        index=index,
                        time_s=time_s,
                        mass_weight=mass_weight,
                    )
                    logits = self._step(append, embeds[start:stop])
                if reserves:
                    sequence.release_reserve()
            except BaseException:
                if sequence.pending is not None:
                    sequence.pending.abort()
                if sequence.num_tokens > num_before:
                    sequence.truncate(num_before)
                if reserves:
                    sequence.release_reserve()
                if mass_weight:  # what a failed use has looked at is no part of the next one
                    self._decoder.take_mass(np.arange(self.cache.counts.num_pages, dtype=np.int32))
                raise
            if mass_weight:
                pages = sequence.table.page_ids
                self.cache.heat.add(pages, self._decoder.take_mass(pages))
            return logits

    def write_source(self, states: NDArray[np.float32], source: CrossInput) -> None:
        """Keys and values of encoder states (L, hidden) into the pages of ``source``."""
        assert self._cross is not None
        with self.lock:
            self.check_open()
            self._cross.write(states, source.slots(len(states)))

    def read_source(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """As ``read_pages``, of the cross pools."""
        assert self._cross is not None
        with self.lock:
            self.check_open()
            return np.moveaxis(self._cross.read_pages(pages), 2, 0)

    def fill_source(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put back what ``read_source`` gave, into pages (n,) that nobody can find yet."""
        assert self._cross is not None
        with self.lock:
            self.check_open()
            self._cross.write_pages(pages, np.moveaxis(contents, 0, 2))

    def _step(self, append: Append, embeds: NDArray[np.float32]) -> NDArray[np.float32]:
        try:
            step = self.cache.begin_step([append])
        except BaseException:
            append.abort()
            raise
        with step:
            if len(step.copies):
                self._decoder.copy_pages(step.copies[:, 0], step.copies[:, 1])
            logits = self._decoder.run(embeds, step.tables, np.array([len(embeds) - 1]))
            step.commit()
        row: NDArray[np.float32] = logits[0]
        return row

    @property
    def shows_queries(self) -> bool:
        """Whether ``last_query`` can be asked."""
        return self._decoder.shows_queries

    def last_query(
        self, sequence: Sequence, embeds: NDArray[np.float32]
    ) -> NDArray[np.float32]:  # (Hq * D,)
        """Append text and tell what its last token looks for, in the layer that shows queries.
        Raises ExecutorError where none does; the sequence has text of ``embeds`` or less then."""
        with self.lock:
            self.check_open()
            for start in range(0, len(embeds), self._chunk):
                chunk = embeds[start : start + self._chunk]
                append = sequence.append("text", len(chunk), extend=start > 0)
                with self.cache.begin_step([append]) as step:
                    if len(step.copies):
                        self._decoder.copy_pages(step.copies[:, 0], step.copies[:, 1])
                    queries = self._decoder.queries(chunk, step.tables)
                    step.commit()
            last: NDArray[np.float32] = queries[-1]
            return last

    def read_pages(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """What pages (n,) hold: (n, num_layers, 2, Hk, S, W) contents; keys, then values."""
        with self.lock:
            self.check_open()
            return np.moveaxis(self._decoder.read_pages(pages), 2, 0)

    def write_pages(self, pages: NDArray[np.int32], contents: NDArray[np.generic]) -> None:
        """Put back what ``read_pages`` gave, into any pages (n,) that nobody reads."""
        with self.lock:
            self.check_open()
            self._decoder.write_pages(pages, np.moveaxis(contents, 0, 2))

    def _read_values(self, pages: NDArray[np.int32]) -> NDArray[np.generic]:
        """Values (n, Hk, S, D) of pages (n,) in the layer that is summed up."""
        layer = self.cache.summaries.layer  # whoever asks the cache holds the lock
        contents = self._decoder.read_values(pages, layer)
        return widen(contents, self.cache.geometry.dtype)

    def close(self, sequence: Sequence) -> None:
        """Give a sequence's pages back."""
        with self.lock:
            sequence.close()

    def check_open(self) -> None:
        """Raise ModelError once it was shut down."""
        if self._closed:
            raise ModelError("this model is closed")

    def shut_down(self) -> None:
        """Give pools and graph back, and what sessions and answers still hold."""
        with self.lock:
            self._closed = True
            self.lock.close_all()
            self.cache.stop_sharing()  # there is nothing in the pages any more
            self._decoder.close()
            if self._cross is not None:
                self._cross.close()
