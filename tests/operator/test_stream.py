"""Relocatable pages at the lowest layer: a stream in which 5,000 frames come and go.

The kernel is given a pinned start and a window of frames. Each step drops the oldest frame by
removing its entries and lowering the shift of every later page, then writes a new frame at its
current position. Keys are never rewritten, and the output must stay that of dense attention over
unrotated keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from edgekv.oracle import Attributes
from tests.operator.harness import build_model, node_attributes, open_session, to_ort

HEADS, KV_HEADS, DIM, PAGE, WINDOW = 2, 1, 16, 4, 6
ATTRIBUTES = Attributes(
    HEADS, KV_HEADS, DIM, DIM**-0.5, inv_freq=tuple(10.0 ** (-i / 2) for i in range(DIM // 2))
)
EVICTIONS = (1, 2, 100, 5000)


def turned(vectors: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """R(positions) of (N, D) in float64."""
    frequencies = np.array(ATTRIBUTES.inv_freq, np.float32).astype(np.float64)
    half = DIM // 2
    spun = (vectors[:, :half] + 1j * vectors[:, half:]) * np.exp(
        1j * positions[:, None] * frequencies
    )
    return np.concatenate([spun.real, spun.imag], axis=1)


@dataclass
class Frame:
    page: int
    keys: np.ndarray  # (PAGE, D) unrotated
    values: np.ndarray
    shift: int = 0


class Stream:
    """Pools, one session, and the frames now in the window."""

    def __init__(self, dtype: type) -> None:
        num_pages = WINDOW + 2
        self.rng = np.random.default_rng(3)
        self.dtype = dtype
        self.free = list(range(num_pages))
        pools = {
            name: np.full((num_pages, KV_HEADS, PAGE, DIM), np.nan, dtype)
            for name in ("key_pool", "value_pool")
        }
        self.values = {name: to_ort(pool) for name, pool in pools.items()}
        self.pools = pools
        self.frames: list[Frame] = []
        arrays = self.arrays(self.new_frame())
        self.session = open_session(build_model(arrays, node_attributes(ATTRIBUTES)), 1)

    def new_frame(self) -> Frame:
        keys, values = self.rng.standard_normal((2, PAGE, DIM))
        return Frame(self.free[0], keys, values)

    def arrays(self, frame: Frame) -> dict[str, np.ndarray]:
        """The call that writes ``frame`` behind the window; its keys are its queries too."""
        start = len(self.frames) * PAGE
        positions = np.arange(start, start + PAGE)
        shown = [*self.frames, frame]
        limits = np.full(PAGE, start + PAGE, np.int32)
        keys = turned(frame.keys, positions).astype(np.float32)
        return {
            "query": np.concatenate([keys, -keys], axis=1),
            "key": keys,
            "value": frame.values.astype(np.float32),
            **self.pools,
            "page_table": np.array([[[f.page, PAGE, f.shift] for f in shown]], np.int32),
            "query_starts": np.array([0, PAGE], np.int32),
            "slot_mapping": (frame.page * PAGE + np.arange(PAGE)).astype(np.int32),
            "kv_limits": limits,
            "query_indices": positions.astype(np.int32),
        }

    def push(self) -> np.ndarray:
        """Writes one frame and returns the output of its tokens."""
        frame = self.new_frame()
        arrays = self.arrays(frame)
        binding = self.session.io_binding()
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, self.values.get(name) or to_ort(array))
        binding.bind_output("output", "cpu")
        for name, value in self.values.items():
            binding.bind_ortvalue_output(f"{name}_out", value)
        self.session.run_with_iobinding(binding)
        self.free.remove(frame.page)
        self.frames.append(frame)
        return binding.get_outputs()[0].numpy()

    def evict(self) -> None:
        """Drops the second frame (the first is pinned): bookkeeping only."""
        dropped = self.frames.pop(1)
        self.free.append(dropped.page)
        for frame in self.frames[1:]:
            frame.shift -= PAGE

    def expected(self) -> np.ndarray:
        """Dense attention of the newest frame over the window as it stands."""
        keys = np.concatenate([frame.keys for frame in self.frames])
        values = np.concatenate([frame.values for frame in self.frames])
        positions = np.arange(len(keys))
        rotated = turned(keys, positions)
        outputs = []
        for sign in (1, -1):
            scores = sign * rotated[-PAGE:] @ rotated.T * ATTRIBUTES.scale
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs.append(weights / weights.sum(axis=1, keepdims=True) @ values)
        return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 5e-6), (np.float16, 5e-3)])
def test_the_five_thousandth_eviction_is_as_exact_as_the_first(
    dtype: type, tolerance: float
) -> None:
    stream = Stream(dtype)
    for _ in range(WINDOW):
        stream.push()
    for eviction in range(1, EVICTIONS[-1] + 1):
        stream.evict()
        output = stream.push()
        if eviction in EVICTIONS:
            np.testing.assert_allclose(output, stream.expected(), rtol=0, atol=tolerance)
