"""What is known in memory of the frames in a tier: where they stood, and which answer a question.

Owns: two arrays with a row for every record that the file can hold, taken at once.
Guarantees: nothing grows; a frame that was stored twice is known by its newest record.
Does not know: files, pages, how queries are made.

A summary is a few mean keys of one layer: the frame's tokens are split into as many runs, and each
run's keys are averaged as if the frame stood at position 0. A question's relevance is attention's
own: the mass that its last token's queries would give a frame if all stood right in front of it
(ReKV retrieves by mean keys as well, with cosine and without positions).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVGeometry, Rotation
from edgekv.rotation import turn

NUM_RUNS = 4  # mean keys a frame


def frame_dtype(num_axes: int) -> np.dtype[np.void]:
    """What a record says of its frame, beside its keys and values."""
    return np.dtype(
        [
            ("segment", np.int64),  # id in its session
            ("index", np.int64),
            ("time_s", np.float64),
            ("num_tokens", np.int32),
            ("num_pages", np.int32),
            ("span", np.int32, (num_axes,)),
            ("written", np.int32, (num_axes,)),  # where it stood when its keys were computed
            ("uniform", np.uint8),
        ]
    )


def mean_keys(
    keys: NDArray[np.generic],  # (n, Hk, S, D) of one layer, as written
    num_tokens: int,
    written: NDArray[np.int32],  # (R,)
    rotation: Rotation,
) -> NDArray[np.float32]:
    """(NUM_RUNS, Hk, D), as if the frame stood at 0. Turning is linear: means first, then turn."""
    num_heads, dim = keys.shape[1], keys.shape[3]
    tokens = keys.swapaxes(1, 2).reshape(-1, num_heads, dim)[:num_tokens].astype(np.float32)
    ends = np.arange(1, NUM_RUNS + 1) * num_tokens // NUM_RUNS
    starts = np.minimum(np.concatenate([[0], ends[:-1]]), num_tokens - 1)
    sums = np.add.reduceat(tokens, starts, axis=0)
    means = sums / np.maximum(ends - starts, 1).astype(np.float32)[:, None, None]
    return turn(means.astype(np.float32), -written, rotation)


class TierIndex:
    """Rows by slot."""

    def __init__(self, geometry: KVGeometry, num_slots: int) -> None:
        axes = max(geometry.num_rope_axes, 1)
        self.frames = np.zeros(num_slots, frame_dtype(axes))
        self.frames["segment"] = -1  # nothing is there
        self.numbers = np.full(num_slots, -1, np.int64)  # of the records
        shape = (num_slots, NUM_RUNS, geometry.num_kv_heads, geometry.head_dim)
        self.summaries = np.full(shape, 0, np.float16)

    @staticmethod
    def num_bytes(geometry: KVGeometry, num_slots: int) -> int:
        """Memory that an index of so many slots takes."""
        per_slot = (
            frame_dtype(max(geometry.num_rope_axes, 1)).itemsize + np.dtype(np.int64).itemsize
        )
        return num_slots * (per_slot + 2 * NUM_RUNS * geometry.num_kv_heads * geometry.head_dim)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.frames["segment"] >= 0))

    def put(self, number: int, frame: np.void, summary: NDArray[np.floating]) -> None:
        """The record ``number`` holds this; what its slot held is gone."""
        slot = number % len(self.numbers)
        same = np.flatnonzero(self.frames["segment"] == frame["segment"])
        if (self.numbers[same] > number).any():
            self.frames["segment"][slot] = -1
            return
        self.frames["segment"][same] = -1
        self.frames[slot], self.numbers[slot], self.summaries[slot] = frame, number, summary

    def has(self, segment: int) -> bool:
        """Whether the frame with this segment id is there."""
        return bool((self.frames["segment"] == segment).any())

    def forget_all(self) -> None:
        """Nothing is there."""
        self.frames["segment"] = -1

    def forget(self, number: int) -> None:
        """The record is torn or gone."""
        slot = number % len(self.numbers)
        if self.numbers[slot] == number:
            self.frames["segment"][slot] = -1

    def best(
        self,
        query: NDArray[np.float32],  # (Hq, D) turned so that it fits keys of frames that stand at 0
        scale: float,
        count: int,
        exclude: NDArray[np.int64],  # ids of segments
    ) -> NDArray[np.intp]:
        """(k <= count,) slots of the frames that the query would attend to most, best first."""
        ids = self.frames["segment"]
        slots = np.flatnonzero((ids >= 0) & ~np.isin(ids, exclude))
        if not slots.size or count < 1:
            return slots[:0]
        keys = self.summaries[slots].astype(np.float32)  # (n, NUM_RUNS, Hk, D)
        grouped = query.reshape(keys.shape[2], -1, keys.shape[3])  # (Hk, group, D)
        scores = scale * np.einsum("nrhd,hgd->nrhg", keys, grouped, optimize=True)
        mass = np.exp(scores - scores.max(axis=(0, 1)))
        share = (mass / mass.sum(axis=(0, 1))).sum(axis=(1, 2, 3))  # (n,)
        best = np.argsort(-share, kind="stable")[:count]
        chosen: NDArray[np.intp] = slots[best]
        return chosen
