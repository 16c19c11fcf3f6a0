"""What engines are built from: each graph of a bundle, with what its engine shall take.

Owns: which profiles a graph gets, and whether it holds the operator. Knows neither TensorRT nor
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgekv.executors.signature import Signature
from edgekv.executors.tensorrt.profiles import (
    Profile,
    StepLimits,
    cross_profile,
    decoder_profiles,
    encoder_profile,
    vision_profile,
)


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One graph, and what its engine shall take."""

    graph: Path
    signature: Signature
    profiles: tuple[Profile, ...]
    has_operator: bool  # so that it needs the plugin


def decoder_job(path: Path, signature: Signature, limits: StepLimits) -> EngineJob:
    """The decoder's engine."""
    return EngineJob(path, signature, decoder_profiles(signature, limits), has_operator=True)


def vision_job(path: Path, signature: Signature) -> EngineJob:
    """The vision graph's engine."""
    return EngineJob(path, signature, (vision_profile(signature),), has_operator=False)


def encoder_job(path: Path, signature: Signature) -> EngineJob:
    """The engine of what encodes inputs of cross-attention."""
    return EngineJob(path, signature, (encoder_profile(signature),), has_operator=False)


def cross_job(path: Path, signature: Signature, *, num_pages: int, page_size: int) -> EngineJob:
    """The engine of what writes cross pools of ``num_pages`` pages."""
    profile = cross_profile(signature, num_pages=num_pages, page_size=page_size)
    return EngineJob(path, signature, (profile,), has_operator=True)
