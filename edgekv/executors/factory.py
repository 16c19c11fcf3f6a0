"""Makes the executor for a device, importing its library only then."""

from __future__ import annotations

from pathlib import Path

from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.base import (
    CrossExecutor,
    DecoderExecutor,
    EncoderExecutor,
    EngineSource,
    VisionExecutor,
)
from edgekv.executors.devices import Device
from edgekv.executors.signature import Signature, decoder_signature


def create_decoder(
    device: Device,
    path: Path,
    geometry: KVGeometry,
    *,
    num_pages: int,
    num_threads: int = 0,
    signature: Signature | None = None,
    cross: CrossExecutor | None = None,
    max_columns: int | None = None,
    max_step_tokens: int = 256,
    engines: EngineSource | None = None,
) -> DecoderExecutor:
    """A decoder executor with pools of ``num_pages`` pages.

    ``num_threads`` 0 = one per core. ``max_columns`` is the most pages a sequence may hold (None:
    the pool), ``max_step_tokens`` the largest step; executors that take any step ignore them.
    ``engines`` is needed by executors that compile; ``cross``, of the same device, owns the pools
    that cross-attention reads. Raises ExecutorError for a graph that is not what ``signature``
    (None: ``geometry``) says.
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
    columns = min(max_columns or num_pages, num_pages)
    if device == "cuda":
        from edgekv.executors.ort_cuda import OrtCudaDecoder

        return OrtCudaDecoder(
            path, geometry, num_pages=num_pages, max_columns=columns, signature=signature
        )
    from edgekv.executors.tensorrt.open import open_decoder
    from edgekv.executors.tensorrt.profiles import StepLimits

    return open_decoder(
        path,
        geometry,
        signature=signature or decoder_signature(geometry),
        limits=StepLimits(
            num_pages=num_pages,
            page_size=geometry.page_size,
            max_columns=columns,
            max_step_tokens=max(max_step_tokens, geometry.page_size),
        ),
        source=_given(engines),
    )


def create_vision(
    device: Device,
    path: Path,
    *,
    num_threads: int = 0,
    signature: Signature | None = None,
    engines: EngineSource | None = None,
) -> VisionExecutor:
    """A vision executor; see ``create_decoder``."""
    if device == "cpu":
        from edgekv.executors.ort_cpu import OrtVision

        return OrtVision(path, num_threads=num_threads, signature=signature)
    if device == "cuda":
        from edgekv.executors.ort_cuda import cuda_vision

        return cuda_vision(path, signature=signature)
    from edgekv.executors.tensorrt.open import open_vision

    if signature is None:
        raise ExecutorError("the TensorRT executor must be told the size of pictures")
    return open_vision(path, signature=signature, source=_given(engines))


def _given(engines: EngineSource | None) -> EngineSource:
    if engines is None:
        raise ExecutorError("the TensorRT executor must be told where engines are kept")
    return engines


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
