"""Makes the executor for a device, importing its library only then."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

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

Pools = TypeVar("Pools")


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
        from edgekv.executors.host_pools import HostPools
        from edgekv.executors.ort_cpu import OrtDecoder

        return OrtDecoder(
            path,
            geometry,
            num_pages=num_pages,
            num_threads=num_threads,
            signature=signature,
            cross_pools=_pools_of(cross, HostPools),
        )
    from edgekv.executors.device_pools import DevicePools

    columns = min(max_columns or num_pages, num_pages)
    cross_pools = _pools_of(cross, DevicePools)
    if device == "cuda":
        from edgekv.executors.ort_cuda import OrtCudaDecoder

        return OrtCudaDecoder(
            path,
            geometry,
            num_pages=num_pages,
            max_columns=columns,
            signature=signature,
            cross_pools=cross_pools,
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
            num_cross_pages=0 if cross_pools is None else cross_pools.num_pages,
        ),
        source=_given(engines),
        cross_pools=cross_pools,
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


def _pools_of(cross: CrossExecutor | None, kind: type[Pools]) -> Pools | None:
    """The pools that ``cross`` owns. Raises ExecutorError where they lie somewhere else."""
    if cross is None:
        return None
    pools = getattr(cross, "pools", None)
    if not isinstance(pools, kind):
        raise ExecutorError(f"cross pools of a {type(cross).__name__} cannot be read here")
    return pools


def _given(engines: EngineSource | None) -> EngineSource:
    if engines is None:
        raise ExecutorError("the TensorRT executor must be told where engines are kept")
    return engines


def create_encoder(
    device: Device,
    path: Path,
    *,
    num_threads: int = 0,
    signature: Signature | None = None,
    engines: EngineSource | None = None,
) -> EncoderExecutor:
    """An encoder executor of a model with cross-attention; see ``create_decoder``."""
    if device == "cpu":
        from edgekv.executors.ort_cross import OrtEncoder

        return OrtEncoder(path, num_threads=num_threads, signature=signature)
    if device == "cuda":
        from edgekv.executors.ort_cross import OrtEncoder
        from edgekv.executors.ort_cuda import CUDA

        return OrtEncoder(path, signature=signature, providers=CUDA)
    from edgekv.executors.tensorrt.open import open_encoder

    if signature is None:
        raise ExecutorError("the TensorRT executor must be told what an encoder takes")
    return open_encoder(path, signature=signature, source=_given(engines))


def create_cross(
    device: Device,
    path: Path,
    geometry: KVGeometry,
    *,
    num_pages: int,
    num_threads: int = 0,
    signature: Signature | None = None,
    engines: EngineSource | None = None,
) -> CrossExecutor:
    """An executor that writes and owns cross pools; see ``create_decoder``."""
    if device == "cpu":
        from edgekv.executors.ort_cross import OrtCross

        return OrtCross(
            path, geometry, num_pages=num_pages, num_threads=num_threads, signature=signature
        )
    if device == "cuda":
        from edgekv.executors.ort_cross import OrtCross
        from edgekv.executors.ort_cuda import gpu

        return OrtCross(path, geometry, num_pages=num_pages, signature=signature, place=gpu())
    from edgekv.executors.tensorrt.open import open_cross

    if signature is None:
        raise ExecutorError("the TensorRT executor must be told the size of encoder states")
    return open_cross(
        path, geometry, num_pages=num_pages, signature=signature, source=_given(engines)
    )
