"""Makes the executor for a device, importing its library only then."""

from __future__ import annotations

from pathlib import Path

from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.base import (
    CrossExecutor,
    DecoderExecutor,
    EncoderExecutor,
    VisionExecutor,
)
from edgekv.executors.devices import Device
from edgekv.executors.signature import Signature


def create_decoder(
    device: Device,
    path: Path,
    geometry: KVGeometry,
    *,
    num_pages: int,
    num_threads: int = 0,
    signature: Signature | None = None,
    cross: CrossExecutor | None = None,
) -> DecoderExecutor:
    """A decoder executor with pools of ``num_pages`` pages. ``num_threads`` 0 = one per core.

    ``cross``, of the same device, owns the pools that cross-attention reads. Raises ExecutorError
    for a graph that is not what ``signature`` (None: ``geometry``) says.
    """
    if device == "cpu":
        from edgekv.executors.ort_cpu import OrtDecoder
        from edgekv.executors.ort_cross import OrtCross

        if not isinstance(cross, OrtCross | None):
            raise ExecutorError(f"cross pools of a {type(cross).__name__} cannot be read here")
        return OrtDecoder(
            path,
            geometry,
            num_pages=num_pages,
            num_threads=num_threads,
            signature=signature,
            cross_pools=None if cross is None else cross.pools,
        )
    raise ExecutorError(f"no decoder executor for device {device!r}")


def create_vision(
    device: Device, path: Path, *, num_threads: int = 0, signature: Signature | None = None
) -> VisionExecutor:
    """A vision executor. ``num_threads`` 0 = one per core."""
    if device == "cpu":
        from edgekv.executors.ort_cpu import OrtVision

        return OrtVision(path, num_threads=num_threads, signature=signature)
    raise ExecutorError(f"no vision executor for device {device!r}")


def create_encoder(
    device: Device, path: Path, *, num_threads: int = 0, signature: Signature | None = None
) -> EncoderExecutor:
    """An encoder executor of a model with cross-attention. ``num_threads`` 0 = one per core."""
    if device == "cpu":
        from edgekv.executors.ort_cross import OrtEncoder

        return OrtEncoder(path, num_threads=num_threads, signature=signature)
    raise ExecutorError(f"models with cross-attention run on the CPU only, not on {device!r}")


def create_cross(
    device: Device,
    path: Path,
    geometry: KVGeometry,
    *,
    num_pages: int,
    num_threads: int = 0,
    signature: Signature | None = None,
) -> CrossExecutor:
    """An executor that writes and owns cross pools. ``num_threads`` 0 = one per core."""
    if device == "cpu":
        from edgekv.executors.ort_cross import OrtCross

        return OrtCross(
            path, geometry, num_pages=num_pages, num_threads=num_threads, signature=signature
        )
    raise ExecutorError(f"models with cross-attention run on the CPU only, not on {device!r}")
