"""The figures of one session, and of the pool and caches that it shares.

Owns: what is counted. Does not know how frames come and go.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.cache import CrossCounts, IndexCounts
from edgekv.encoder_cache import EncoderCacheStats
from edgekv.live_context import LiveContext
from edgekv.tiering import TierStats


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Counts of one session and of the pool it shares. Pages are counted once, however shared."""

    num_frames: int  # pushed since the session began
    num_still_frames: int  # of those since it was opened here, that were not encoded
    num_context_frames: int  # in the context now
    num_evicted_frames: int
    num_questions: int
    num_tokens: int  # in the context now
    num_pages: int  # of the pool
    pages_live: int
    pages_cached: int
    pages_in_flight: int
    pages_free: int
    pages_peak: int
    pool_bytes: int
    utilisation: float  # share of the live sequence's slots that hold a token
    num_copied_frames: int  # came on a GPU and were copied to the CPU, since opened or restored
    tier: TierStats | None  # None = the session was opened without one
    shared: IndexCounts  # of the model: segments found in the pool instead of computed
    encoder_cache: EncoderCacheStats  # of the model: pictures not encoded again
    cross: CrossCounts | None  # of what cross-attention sees; None for a model without

    @property
    def pages_available(self) -> int:
        """Pages that a context can have: free ones, and cached ones, which make way for it."""
        return self.pages_free + self.pages_cached


def session_stats(live: LiveContext) -> SessionStats:
    """Counts as of now. Raises SessionError for a session that was closed."""
    with live.runner.lock:
        live.check_open()
        cache, sequence, record = live.runner.cache, live.sequence, live.record
        counts = cache.counts
        num_slots = sequence.num_pages * cache.geometry.page_size
        return SessionStats(
            num_frames=record.num_frames,
            num_still_frames=live.num_still_frames,
            num_context_frames=sequence.num_frames,
            num_evicted_frames=record.num_evicted_frames,
            num_questions=record.num_questions,
            num_tokens=sequence.num_tokens,
            num_pages=counts.num_pages,
            pages_live=counts.live,
            pages_cached=counts.cached,
            pages_in_flight=counts.in_flight,
            pages_free=counts.free,
            pages_peak=counts.peak,
            pool_bytes=counts.num_pages * cache.geometry.page_bytes,
            utilisation=sequence.num_tokens / num_slots if num_slots else 1.0,
            shared=cache.index.counts,
            encoder_cache=live.inputs.encoder_cache,
            num_copied_frames=live.num_copied_frames,
            cross=None if (cross := cache.cross) is None else cross.counts,
            tier=None if live.tier is None else live.tier.stats(),
        )
