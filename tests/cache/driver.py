"""Plays random operations in a world from a seed, everything checked after each."""

from __future__ import annotations

import random
from collections import Counter

from tests.cache.world import World

OPERATIONS: dict[str, int] = {  # how often each is played
    "open": 8,
    "fork": 6,
    "transplant": 4,
    "append": 20,
    "share": 24,
    "begin": 20,
    "write": 20,
    "reserve": 6,
    "release_reserve": 5,
    "abort_step": 4,
    "abort_append": 4,
    "drop": 8,
    "set_aside": 10,
    "evict": 14,
    "insert": 30,
    "truncate": 6,
    "close": 8,
}


def play(world: World, seed: int, num_operations: int) -> Counter[str]:
    """Random operations, everything checked after each; then the end of everything."""
    rng = random.Random(seed)  # noqa: S311 - to be repeatable, not secret
    names, weights, done = list(OPERATIONS), list(OPERATIONS.values()), Counter[str]()
    while done.total() < num_operations:
        name = rng.choices(names, weights)[0]
        arguments = [rng.getrandbits(16) for _ in range(4)]
        try:
            if getattr(world, name)(*arguments):
                done[name] += 1
                world.check()
        except Exception as error:
            where = f"seed {seed}, operation {done.total()}: {name}{tuple(arguments)}"
            raise AssertionError(f"{where}: {error!r}") from error
    world.finish()
    return done
