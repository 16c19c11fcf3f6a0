"""Which frames a query finds, and what is known of frames that were stored twice or are gone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekv.bench.unrotated import rotate
from edgekv.config import KVGeometry, Rotation
from edgekv.rotation import turn
from edgekv.tier.index import NUM_RUNS, TierIndex, frame_dtype, mean_keys

GEOMETRY = KVGeometry(1, 2, 4, 4, "float32")
NONE = np.empty(0, np.int64)


def frame(segment: int) -> np.void:
    row = np.zeros(1, frame_dtype(1))
    row["segment"] = segment
    return row[0]


def index_of(*keys: tuple[float, ...]) -> TierIndex:
    """Frame k is segment k, all of whose mean keys are ``keys[k]`` in every head."""
    index = TierIndex(GEOMETRY, 8)
    for number, key in enumerate(keys):
        summary = np.broadcast_to(np.array(key), (NUM_RUNS, 2, 4))
        index.put(number, frame(number), summary)
    return index


def query(*numbers: float) -> NDArray[np.float32]:
    return np.tile(np.array(numbers, np.float32), (6, 1))  # 3 query heads for each KV head


def best(index: TierIndex, count: int, exclude: NDArray[np.int64] = NONE) -> list[int]:
    return index.best(query(1, 0, 0, 0), 1.0, count, exclude).tolist()


def test_the_frame_that_would_get_most_attention_comes_first() -> None:
    index = index_of((0, 5, 0, 0), (2, 0, 0, 0), (-3, 0, 0, 0), (4, 0, 0, 0))
    assert best(index, 3) == [3, 1, 0]
    assert best(index, 9) == [3, 1, 0, 2]
    assert best(index, 2, np.array([3])) == [1, 0]
    assert best(index, 0) == []
    assert best(TierIndex(GEOMETRY, 8), 3) == []


def test_one_part_of_a_frame_is_enough() -> None:
    index = index_of((1, 0, 0, 0), (1, 0, 0, 0))
    summary = np.zeros((NUM_RUNS, 2, 4), np.float32)
    summary[2, :, 0] = 8
    index.put(2, frame(2), summary)
    assert best(index, 1) == [2]


def test_heads_look_at_their_own_keys() -> None:
    index = TierIndex(GEOMETRY, 8)
    for number, head in enumerate((0, 1)):
        summary = np.zeros((NUM_RUNS, 2, 4), np.float32)
        summary[:, head, 0] = 3
        index.put(number, frame(number), summary)
    looks = np.zeros((6, 4), np.float32)
    looks[3:, 0] = 1  # the query heads of KV head 1
    assert index.best(looks, 1.0, 1, NONE).tolist() == [1]


def test_numbers_too_large_for_exp_are_ranked() -> None:
    index = index_of((3e4, 0, 0, 0), (6e4, 0, 0, 0), (-6e4, 0, 0, 0))
    with np.errstate(all="raise", under="ignore"):
        assert best(index, 1) == [1]


def test_a_frame_stored_twice_is_known_by_its_newest_record() -> None:
    index = index_of((1, 0, 0, 0), (0, 0, 0, 0))
    index.put(5, frame(0), np.zeros((NUM_RUNS, 2, 4)))
    assert len(index) == 2
    assert index.numbers[best(index, 2)].tolist() == [1, 5]
    index.put(2, frame(0), np.zeros((NUM_RUNS, 2, 4)))  # an older record, read later
    assert len(index) == 2
    assert 2 not in index.numbers[best(index, 2)]


def test_a_slot_that_is_written_anew_forgets() -> None:
    index = index_of((1, 0, 0, 0))
    index.put(8, frame(9), np.zeros((NUM_RUNS, 2, 4)))
    assert not index.has(0)
    assert index.has(9)
    index.forget(0)
    assert index.has(9), "the record that was there before is not the one that is there"
    index.forget(8)
    assert len(index) == 0


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("written", [0, 300])
def test_mean_keys_are_those_of_a_frame_at_the_start(num_tokens: int, written: int) -> None:
    """Wherever the frame was written, and whatever its last page holds behind its tokens."""
    rotation = Rotation((1.0, 0.1))
    rng = np.random.default_rng(num_tokens)
    plain = rng.normal(size=(num_tokens, 2, 4))
    pages = np.full((2 * 4, 2, 4), np.nan, np.float32)
    here = np.arange(written, written + num_tokens)[None]
    pages[:num_tokens] = rotate(plain, here, rotation)
    paged = pages.reshape(2, 4, 2, 4).swapaxes(1, 2)
    means = mean_keys(paged, num_tokens, np.array([written], np.int32), rotation)
    at_start = rotate(plain, np.arange(num_tokens)[None], rotation)
    assert means.shape == (NUM_RUNS, 2, 4)
    assert not np.isnan(means).any()
    if num_tokens % NUM_RUNS == 0:
        runs = at_start.reshape(NUM_RUNS, -1, 2, 4).mean(axis=1)
        np.testing.assert_allclose(means, runs, atol=2e-5)
    elif num_tokens == 1:
        np.testing.assert_allclose(means, at_start.repeat(NUM_RUNS, 0), atol=2e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_turning_is_what_the_bench_does_in_float64(interleaved: bool) -> None:
    rotation = Rotation((1.0, 0.3, 0.01), (0, 2, 1), interleaved)
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(5, 2, 8))  # rotary dimension 6 of 8
    positions = rng.integers(0, 400, (3, 5))
    turned = turn(keys.astype(np.float32), positions.T[:, None], rotation)
    np.testing.assert_allclose(turned, rotate(keys, positions, rotation), atol=1e-5)
    back = turn(turned, -positions.T[:, None], rotation)
    np.testing.assert_allclose(back, keys, atol=1e-5)
