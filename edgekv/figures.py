"""What a monitor reads of a model: figures, all of one moment.

Owns: which figures there are. Guarantees: a copy, taken under the model's lock.
Does not know: who reads them, in which format.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from edgekv.cache import CacheCounters, CrossCounts, IndexCounts, PageCounts
from edgekv.config import KVGeometry
from edgekv.encoder_cache import EncoderCacheStats
from edgekv.generate import Runner
from edgekv.members import Member


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """One open session, of the same moment as the model."""

    number: int  # among all sessions since the model was loaded
    num_context_frames: int
    num_tokens: int
    num_pages: int  # shared ones included
    num_frames: int  # pushed since the session began
    num_evicted_frames: int
    num_questions: int


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What a monitor reads, all of one moment."""

    name: str
    geometry: KVGeometry
    counts: PageCounts
    counters: CacheCounters  # a copy
    shared: IndexCounts
    encoder_cache: EncoderCacheStats
    cross: CrossCounts | None  # None for a model without cross-attention
    sessions: tuple[SessionFigures, ...]  # open ones


def _session_figures(member: Member) -> SessionFigures:
    return SessionFigures(
        number=member.number,
        num_context_frames=member.sequence.num_frames,
        num_tokens=member.sequence.num_tokens,
        num_pages=member.sequence.num_pages,
        num_frames=member.record.num_frames,
        num_evicted_frames=member.record.num_evicted_frames,
        num_questions=member.record.num_questions,
    )


def model_figures(name: str, runner: Runner, encoder_cache: EncoderCacheStats) -> ModelFigures:
    """The figures as of now."""
    with runner.lock:
        cache = runner.cache
        return ModelFigures(
            name=name,
            geometry=cache.geometry,
            counts=cache.counts,
            counters=deepcopy(cache.counters),
            shared=cache.index.counts,
            encoder_cache=encoder_cache,
            cross=None if cache.cross is None else cache.cross.counts,
            sessions=tuple(map(_session_figures, runner.sharing.members)),
        )
