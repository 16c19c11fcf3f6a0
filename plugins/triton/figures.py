"""The figures of decoding and prefill, each with its baseline measured in the same run.

Owns: which workloads are measured, how large they are, what the figures are called. Knows nothing
of bounds, nor who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from plugins.triton import speed
from plugins.triton.run import Launcher
from plugins.triton.variants import Shape

# Pools that decoding is measured over, and what their figures are called.
DECODED = {
    "decode_32k": torch.float16,
    "decode_32k_bfloat16": torch.bfloat16,
    "decode_32k_int8": torch.int8,
}


@dataclass(frozen=True, slots=True)
class Bench:
    """A device, and sizes that keep it busy."""

    device: torch.device
    decode_tokens: int = 32768
    prefill_tokens: int = 4096
    copied_bytes: int = 1 << 30
    heads: tuple[int, int] = (32, 8)  # Hq, Hk
    layers: int = 4  # different memory a decoding step goes through
    rounds: int = 5
    repeats: int = 10

    @property
    def shapes(self) -> list[Shape]:
        """What kernels have to be compiled for."""
        return [speed.Workload(16, 1, pool_dtype=kind).shape for kind in DECODED.values()]

    def workload(self, tokens: int, new: int, pool_dtype: torch.dtype) -> speed.Workload:
        """One row of ``tokens``, of which ``new`` are queries."""
        return speed.Workload(tokens, new, *self.heads, pool_dtype=pool_dtype)

    def seconds(self, call: Callable[[], object]) -> float:
        """Of a call, as a CUDA graph where there is one."""
        graph = speed.captured(call, self.device)
        return speed.median_seconds(graph, self.device, self.rounds, self.repeats)

    def seconds_of_a_layer(self, make: Callable[[], Callable[[], object]]) -> float:
        """Of one call, when others have filled the cache in between, as a model's layers do."""
        calls: Sequence[Callable[[], object]] = [make() for _ in range(self.layers)]

        def every() -> None:
            for call in calls:
                call()

        return self.seconds(every) / len(calls)


def tiny(device: torch.device) -> Bench:
    """To walk through every step where there is no GPU."""
    return Bench(device, 64, 32, 1 << 16, (4, 2), 2, 1, 1)


def measured(bench: Bench, launcher: Launcher | None) -> dict[str, float]:
    """Every figure by its name."""
    copy = speed.copy_bytes_per_second(bench.device, bench.copied_bytes)
    figures = {"copy_gbytes_per_s": copy / 1e9}
    for name, pool_dtype in DECODED.items():
        figures |= _decoding(bench, launcher, name, pool_dtype, copy)
    return figures | _decoding_baseline(bench, figures["decode_32k_us"]) | _prefill(bench, launcher)


def _decoding(
    bench: Bench, launcher: Launcher | None, name: str, pool_dtype: torch.dtype, copy: float
) -> dict[str, float]:
    work = bench.workload(bench.decode_tokens, 1, pool_dtype)

    def seconds(*, shuffled: bool) -> float:
        return bench.seconds_of_a_layer(
            lambda: speed.make_call(work, bench.device, launcher, shuffled=shuffled)
        )

    paged, flat = seconds(shuffled=True), seconds(shuffled=False)
    return {
        f"{name}_us": paged * 1e6,
        f"{name}_share_of_copy": work.read_bytes / paged / copy,
        f"{name}_paged_over_contiguous": paged / flat,
    }


def _decoding_baseline(bench: Bench, paged_us: float) -> dict[str, float]:
    work = bench.workload(bench.decode_tokens, 1, torch.float16)
    seconds = bench.seconds_of_a_layer(lambda: speed.make_sdpa_call(work, bench.device))
    return {"decode_32k_speed_over_sdpa": seconds * 1e6 / paged_us}


def _prefill(bench: Bench, launcher: Launcher | None) -> dict[str, float]:
    work = bench.workload(bench.prefill_tokens, bench.prefill_tokens, torch.float16)
    paged, flat = (
        bench.seconds(speed.make_call(work, bench.device, launcher, shuffled=shuffled))
        for shuffled in (True, False)
    )
    return {
        "prefill_ms": paged * 1e3,
        "prefill_paged_over_contiguous": paged / flat,
        "prefill_speed_over_sdpa_flash": bench.seconds(speed.make_sdpa_call(work, bench.device))
        / paged,
    }
