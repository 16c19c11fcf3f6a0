"""Encoder outputs are found by all of a picture and keep to their bytes."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.encoder_cache import EncoderCache, picture_digest

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)  # 32 bytes


def key(k: int) -> bytes:
    return picture_digest(np.full((1, 3, 2, 2), k, np.float32))


def test_rows_come_back_as_they_were_and_cannot_be_changed() -> None:
    cache, rows = EncoderCache(100), ROWS.copy()
    assert cache.get(key(0)) is None
    cache.put(key(0), rows)
    rows[:] = 0
    found = cache.get(key(0))
    assert found is not None
    np.testing.assert_array_equal(found, ROWS)
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1


def test_the_one_used_longest_ago_leaves_first() -> None:
    cache = EncoderCache(100)
    for k in range(3):
        cache.put(key(k), ROWS)
    assert cache.get(key(0)) is not None
    cache.put(key(3), ROWS)
    assert [cache.get(key(k)) is not None for k in range(4)] == [True, False, True, True]
    stats = cache.stats
    assert (stats.hits, stats.misses, stats.evictions) == (4, 4, 1)
    assert (stats.num_pictures, stats.num_bytes, stats.max_bytes) == (3, 96, 100)


def test_what_is_larger_than_all_that_is_allowed_is_not_kept() -> None:
    cache = EncoderCache(40)
    cache.put(key(0), ROWS)
    cache.put(key(1), np.zeros((3, 4), np.float32))
    assert cache.get(key(0)) is not None
    assert (cache.stats.num_pictures, cache.stats.evictions, cache.stats.misses) == (1, 0, 2)


def test_a_thousand_pictures_take_no_more_bytes_than_allowed() -> None:
    cache, rng = EncoderCache(1000), np.random.default_rng(0)
    for k in range(1000):
        cache.put(key(k), np.zeros((int(rng.integers(1, 9)), 4), np.float32))
        assert cache.stats.num_bytes <= 1000
    assert cache.stats.num_pictures + cache.stats.evictions == 1000


@pytest.mark.parametrize("max_bytes", [0, 10])
def test_a_cache_too_small_for_anything_keeps_nothing(max_bytes: int) -> None:
    cache = EncoderCache(max_bytes)
    assert cache.enabled == (max_bytes > 0)
    cache.put(key(0), ROWS)
    assert cache.get(key(0)) is None


def test_fewer_than_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="0 bytes or more, got -1"):
        EncoderCache(-1)


def test_every_value_the_shape_and_the_dtype_tell_pictures_apart() -> None:
    picture = np.zeros((1, 3, 4, 6), np.float32)
    others = [picture.reshape(1, 3, 6, 4), picture.astype(np.float64), picture.view(np.int32)]
    for place in ((0, 0, 0, 0), (0, 2, 3, 5), (0, 1, 2, 2)):
        changed = picture.copy()
        changed[place] = np.nextafter(np.float32(0), np.float32(1))
        others.append(changed)
    digests = {picture_digest(other) for other in [picture, *others]}
    assert len(digests) == 1 + len(others)
    assert picture_digest(picture[..., ::-1]) == picture_digest(picture), "whatever its strides"
