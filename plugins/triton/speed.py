"""Workloads to measure: decoding and prefill over paged memory, and what each is held against.

Owns: tensors of a workload and a timer. A call is timed many times between two events, so what the
host does is in the figure only where it is slower than the device. Knows nothing of bounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from plugins.triton.launch import Node
from plugins.triton.run import Launcher, Operator, Options, Tensors, make_shape
from plugins.triton.variants import Shape


@dataclass(frozen=True, slots=True)
class Workload:
    """One row: ``num_tokens`` in the context, the last ``num_new`` of them are the queries."""

    num_tokens: int
    num_new: int
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16
    pool_dtype: torch.dtype = torch.float16

    @property
    def query_dtype(self) -> torch.dtype:
        """What TensorRT's engines give the operator with such pools."""
        return torch.bfloat16 if self.pool_dtype == torch.bfloat16 else torch.float16

    @property
    def shape(self) -> Shape:
        """What its kernels are compiled for."""
        query, pool = (
            str(kind).removeprefix("torch.") for kind in (self.query_dtype, self.pool_dtype)
        )
        return Shape(self.head_dim, self.page_size, query, pool)  # type: ignore[arg-type]

    @property
    def read_bytes(self) -> int:
        """Of keys, values and scales in the context."""
        row = self.head_dim * self.pool_dtype.itemsize + 4 * (self.pool_dtype == torch.int8)
        return 2 * self.num_tokens * self.num_kv_heads * row


def median_seconds(
    call: Callable[[], object], device: torch.device, rounds: int, repeats: int
) -> float:
    """Median over rounds of a call's time, ``repeats`` calls a round."""
    call()
    times: list[float] = []
    for _ in range(rounds):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repeats):
                call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1000 / repeats)
        else:
            begin = time.perf_counter()
            for _ in range(repeats):
                call()
            times.append((time.perf_counter() - begin) / repeats)
    return statistics.median(times)


def captured(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call as a CUDA graph, as decoding is deployed; elsewhere the call itself."""
    if device.type != "cuda":
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # modules are loaded before the capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def copy_bytes_per_second(device: torch.device, num_bytes: int) -> float:
    """Of a copy on the device, bytes read and bytes written together."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_seconds(lambda: target.copy_(source), device, 5, 5)


def make_call(
    workload: Workload, device: torch.device, launcher: Launcher | None, *, shuffled: bool
) -> Callable[[], None]:
    """The operator's call: all pages full, anywhere in the pool or in order, one shift."""
    w, int8 = workload, workload.pool_dtype == torch.int8
    num_pages = w.num_tokens // w.page_size
    assert num_pages * w.page_size == w.num_tokens
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(num_pages, generator=generator) if shuffled else torch.arange(num_pages)
    pages = ids.to(torch.int32)
    table = torch.stack([pages, torch.full_like(pages, w.page_size), torch.zeros_like(pages)], -1)
    pool_shape = (num_pages, w.num_kv_heads, w.page_size, w.head_dim)
    first = w.num_tokens - w.num_new
    tokens = torch.arange(first, w.num_tokens, dtype=torch.int32)
    place = tokens % w.page_size + pages[(tokens // w.page_size).long()] * w.page_size

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=w.query_dtype, device=device)

    def pool() -> torch.Tensor:
        if int8:
            return torch.randint(-127, 128, pool_shape, dtype=torch.int8, device=device)
        return random(*pool_shape)

    scales = torch.full(pool_shape[:3], 0.01, device=device) if int8 else None
    query = random(w.num_new, w.num_heads * w.head_dim)
    tensors = Tensors(
        output=torch.empty_like(query),
        query=query,
        key=random(w.num_new, w.num_kv_heads * w.head_dim),
        value=random(w.num_new, w.num_kv_heads * w.head_dim),
        key_pool=pool(),
        value_pool=pool(),
        page_table=table[None].contiguous().to(device),
        query_starts=torch.tensor([0, w.num_new], dtype=torch.int32, device=device),
        slot_mapping=place.to(torch.int32).to(device),
        kv_limits=(tokens + 1).to(device),
        query_indices=tokens.to(device),
        key_scales=scales,
        value_scales=None if scales is None else scales.clone(),
    )
    node = Node(w.num_heads, w.num_kv_heads, w.head_dim, w.page_size)
    inv_freq = tuple(1e4 ** (-2 * i / w.head_dim) for i in range(w.head_dim // 2))
    shape = make_shape(tensors, head_dim=w.head_dim, softcap=False)
    options = Options(w.head_dim**-0.5, inv_freq=inv_freq)
    operator = Operator(node, options, shape, device, launcher=launcher)
    size = operator.plan_for(tensors).workspace_bytes
    workspace = torch.empty(size, dtype=torch.uint8, device=device)
    return lambda: operator(tensors, workspace)


def make_sdpa_call(workload: Workload, device: torch.device) -> Callable[[], torch.Tensor]:
    """torch's attention over contiguous keys and values: flash on a GPU, causal when prefilling."""
    w = workload
    kind = torch.float16 if device.type == "cuda" else torch.float32

    def random(heads: int, tokens: int) -> torch.Tensor:
        return torch.randn((1, heads, tokens, w.head_dim), dtype=kind, device=device)

    query = random(w.num_heads, w.num_new)
    key, value = random(w.num_kv_heads, w.num_tokens), random(w.num_kv_heads, w.num_tokens)
    backend = SDPBackend.FLASH_ATTENTION if device.type == "cuda" else SDPBackend.MATH
    causal = w.num_new > 1
    assert not causal or w.num_new == w.num_tokens

    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=True
            )

    return call
