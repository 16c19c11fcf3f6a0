"""What is known of pages is never that of what they held before, whatever happens to them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekv.cache import CacheObserver, PageCache, Sequence
from edgekv.cache.append import Append
from edgekv.cache.heat import HALF_LIFE
from edgekv.native.columns import PageValues
from tests.cache.driver import OPERATIONS
from tests.cache.world import World


class Warm(CacheObserver):
    """Heat by page, kept by being told of every page that comes to hold something else."""

    def __init__(self, cache: PageCache) -> None:
        self.cache = cache
        self.heat = np.zeros(cache.counts.num_pages)

    def use(self, pages: NDArray[np.int32], mass: NDArray[np.float32]) -> None:
        self.cache.heat.add(pages, mass)
        self.heat /= 2 ** (1 / HALF_LIFE)
        self.heat[pages] += mass

    def planned(self, append: Append, *_: object) -> None:
        self.heat[append.taken] = 0

    def opened(self, sequence: Sequence, parent: Sequence | None) -> None:
        if parent is None:
            self.heat[sequence.table.page_ids] = 0

    def inserted(self, sequence: Sequence, segment_ids: NDArray[np.int64]) -> None:
        for segment in sequence.segments:
            if segment.id in segment_ids:
                self.heat[segment.pages] = 0


def look(world: World, warm: Warm) -> int:
    """Compare all that is known with what pages hold now; how many numbers were not trivial."""
    pool, num_seen = world.slots.reshape(-1, world.page_size), 0
    for sequence, _ in world.pairs:
        heat, summaries = sequence.heat(), sequence.summaries()
        for k, segment in enumerate(sequence.segments):
            wanted = warm.heat[segment.pages].sum()
            assert heat[k] == pytest.approx(wanted, rel=1e-9, abs=1e-12)
            mean = np.nan
            if segment.kind == "frame":
                mean = pool[segment.pages].ravel()[: segment.num_tokens].mean()
            np.testing.assert_allclose(summaries[k], [mean], rtol=1e-5)
            num_seen += bool(wanted) + (segment.kind == "frame")
    return num_seen


@pytest.mark.parametrize("found", [False, True], ids=["read", "found in memory"])
def test_nothing_stale_is_known_of_a_page(found: bool) -> None:
    num_seen = 0
    for seed in range(4):
        rng, world = random.Random(seed), World(num_axes=1)  # noqa: S311 - to be repeatable
        pool = np.empty((world.cache.counts.num_pages, 1, world.page_size, 1), np.float32)
        values, warm = PageValues(pool), Warm(world.cache)
        world.cache.observe(warm)
        world.cache.summaries.keep()
        if found:
            world.cache.summaries.read_from(pytest.fail, lambda held=values: held)
        else:
            world.cache.summaries.read_from(lambda pages, held=pool: held[pages])
        for _ in range(400):
            name = rng.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
            words = [rng.getrandbits(16) for _ in range(4)]
            if name == "append":  # a frame is whole when it is looked at
                words[3] &= ~1
            getattr(world, name)(*words)
            pool[:] = world.slots.reshape(pool.shape)
            if world.pairs and rng.random() < 0.3:
                pages = rng.choice(world.pairs)[0].table.page_ids.copy()
                warm.use(pages, np.array([rng.random() for _ in pages], np.float32))
            if rng.random() < 0.5:
                num_seen += look(world, warm)
        world.finish()
    assert num_seen > 1_500
