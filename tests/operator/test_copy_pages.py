"""Pages copied by one native call, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.native.pages import PageCopier


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_the_same_as_numpy(dtype: type, count: int) -> None:
    random = np.random.default_rng(count)
    pools = [random.integers(-99, 99, (17, 2, 4, 3)).astype(dtype) for _ in range(6)]
    wanted = [pool.copy() for pool in pools]
    pages = random.permutation(17).astype(np.int32)[: 2 * count].reshape(count, 2)
    for pool in wanted:
        pool[pages[:, 1]] = pool[pages[:, 0]]
    PageCopier(pools).copy(pages[:, 0], pages[:, 1])
    for pool, want in zip(pools, wanted, strict=True):
        np.testing.assert_array_equal(pool, want)


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ([0, 4], [1, 2], "0 to 3"),
        ([0, 1], [2, -1], "0 to 3"),
        ([0, 1], [2, 2], "named once"),
        ([0, 1], [1, 2], "not be copied from"),
        ([0], [1, 2], "int32"),
    ],
)
def test_what_is_refused_copies_nothing(source: list[int], target: list[int], said: str) -> None:
    pools = [np.arange(8, dtype=np.float32).reshape(4, 2)]
    copier = PageCopier(pools)
    with pytest.raises(ValueError, match=said):
        copier.copy(np.array(source, np.int32), np.array(target, np.int32))
    assert pools[0].ravel().tolist() == list(range(8))
    with pytest.raises(ValueError, match="int32"):
        copier.copy(np.array([0]), np.array([1]))


def test_pools_that_cannot_be_copied_in_are_refused() -> None:
    pool = np.zeros((4, 2), np.float32)
    for pools in ([], [pool, pool[:2]], [pool.T], [pool, pool.astype(np.float16)]):
        with pytest.raises(ValueError, match="one shape and dtype"):
            PageCopier(pools)
