"""The native call that thins out the past, against its definition in plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.cache import SegmentTable
from edgekv.cache.retention.thinning import thin_out
from edgekv.cache.segments import segment_dtype
from edgekv.native import thinning as native_thinning
from edgekv.native.columns import PageValues
from tests.cache.helpers import frames, make_cache

ENDLESS = 1_000_000


def drawn(seed: int) -> SegmentTable:
    """Segments with gaps between their ids, some alike, some without a vector, some worth
    nothing, and some whose pages others hold too."""
    rng = np.random.default_rng(seed)
    n = 60 if seed % 20 == 0 else int(rng.integers(1, 50))  # few are rated on the stack
    width = int(rng.choice([1, 8, 13]))
    rows = np.zeros(n, segment_dtype(1 + 2 * (seed % 2)))
    rows["id"] = np.sort(rng.choice(300, n, replace=False))
    rows["num_pages"] = rng.integers(1, 6, n)
    looks = rng.standard_normal((max(n // 3, 1), width))
    noise = 0 if seed % 4 == 0 else 1e-3  # without any, some are exactly alike
    vectors = looks[rng.integers(0, len(looks), n)] + noise * rng.standard_normal((n, width))
    vectors[rng.random(n) < 0.2] = np.nan
    vectors[rng.random(n) < 0.1] = 0
    heat = rng.random(n) * (rng.random(n) < 0.6)
    free = rng.integers(0, 5, n).astype(np.int32) if seed % 3 == 0 else None
    table = SegmentTable.of(rows, summaries=vectors.astype(np.float32), heat=heat)
    return table.having(num_pages=free)


def products_of(vectors: np.ndarray) -> np.ndarray:
    """(n, n) float32, of vectors (n, width): in eight lanes, which are summed up by halves."""
    sums = np.zeros((len(vectors), len(vectors), 8), np.float32)
    for start in range(0, vectors.shape[1], 8):
        part = vectors[:, start : start + 8]
        sums[..., : part.shape[1]] += part[:, None] * part[None]
    for half in (4, 2, 1):
        sums = sums[..., :half] + sums[..., half : 2 * half]
    products: np.ndarray = sums[..., 0]
    return products


def defined(
    table: SegmentTable,
    num_pages: int,
    worth: np.ndarray | None,
    vectors: np.ndarray | None,
    by_gap: bool,
) -> list[int]:
    """What the docstring of ``thin_out`` says, word for word."""
    ids, pages, here = table.ids.tolist(), table.num_pages.tolist(), list(range(len(table)))
    past = range(len(table) - -(-len(table) // 4))
    products = None if vectors is None else products_of(vectors)

    def has_vector(i: int) -> bool:
        return products is not None and bool(products[i, i] > 0)

    def rating(i: int) -> float:
        rated = 1.0 if worth is None else float(worth[i])
        if products is not None:
            if not has_vector(i):
                return -1.0
            norms = np.sqrt(products.diagonal())
            others = [j for j in here if j != i and has_vector(j)]
            away = [np.float32(1) - products[i, j] / (norms[i] * norms[j]) for j in others]
            rated *= max(float(min(away, default=np.inf)), 0.0) * float(norms[i])
        if by_gap:
            at = here.index(i)
            inner = 0 < at < len(here) - 1
            gap = ids[here[at + 1]] - ids[here[at - 1]] if inner else ENDLESS
            rated *= min(gap, ENDLESS)
        return rated

    gone: list[int] = []
    while num_pages > 0 and (able := [i for i in here if i in past and pages[i]]):
        lowest = min(able, key=rating)
        here.remove(lowest)
        gone.append(lowest)
        num_pages -= pages[lowest]
    while num_pages > 0:  # the past is not enough: the oldest of what is left
        num_pages -= pages[here[0]]
        gone.append(here.pop(0))
    return sorted(gone)


@pytest.mark.parametrize("which", ["gap", "heat", "look", "all"])
def test_the_native_call_does_as_defined(which: str) -> None:
    num_played = 0
    for seed in range(60):
        table = drawn(seed)
        total = int(table.num_pages.sum())
        if not total:
            continue
        worth = table.heat if which in ("heat", "all") else None
        vectors = table.summaries if which in ("look", "all") else None
        by_gap = which in ("gap", "look", "all")
        for num_pages in {1, total // 4, total // 2, total}:
            chosen = thin_out(
                table,
                num_pages,
                by_heat=worth is not None,
                by_look=vectors is not None,
                by_gap=by_gap,
            )
            assert chosen.dtype == np.int64
            wanted = defined(table, num_pages, worth, vectors, by_gap)
            assert chosen.tolist() == wanted, f"seed {seed}, {num_pages} of {total} pages"
            num_played += 1
    assert num_played > 150


def test_what_is_known_of_pages_is_rated_as_its_columns_are() -> None:
    rng = np.random.default_rng(8)
    cache = make_cache(256)
    pool = rng.standard_normal((256, 1, 4, 1)).astype(np.float16)
    values = PageValues(pool)
    cache.summaries.keep()
    cache.summaries.read_from(pytest.fail, lambda: values)
    sequence = frames(cache, 60)
    cache.heat.add(sequence.table.page_ids, rng.random(sequence.num_pages).astype(np.float32))
    whole = sequence.segment_table(summaries=True, heat=True)
    columns = SegmentTable.of(
        whole.rows[1:], summaries=sequence.summaries()[1:], heat=sequence.heat()[1:]
    )
    for by_heat, by_look in ((True, False), (False, True), (True, True)):
        found = sequence.segment_table(summaries=True, heat=True)
        found.skip(1)  # the pinned start
        wanted = thin_out(columns, 40, by_heat=by_heat, by_look=by_look, by_gap=True)
        chosen = thin_out(found, 40, by_heat=by_heat, by_look=by_look, by_gap=True)
        assert chosen.tolist() == wanted.tolist()


def test_a_choice_without_memory_leaves_the_next_one_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(_: np.ndarray) -> int:
        raise MemoryError

    rows = np.zeros(3_000, segment_dtype(1))
    rows["id"], rows["num_pages"] = np.arange(3_000), 1
    table = SegmentTable.of(rows)
    with monkeypatch.context() as patch:
        patch.setattr(native_thinning, "address", failing)
        with pytest.raises(MemoryError):
            thin_out(table, 2_000)
    assert thin_out(table, 2_000).tolist() == list(range(2_000))
