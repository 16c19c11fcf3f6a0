"""From a case to its arrays.

Owns: how pages, tables and tokens follow from a case and its seed, and the ``RowTruth``: the same
tokens unpaged, with keys before rotation and positions as they stand now, worked out in float64 and
with a rotation of its own, so that the oracle can be proven against it. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgekv.oracle import Attributes, Inputs
from tests.operator.cases import Case, Row, Use

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class RowTruth:
    """A row unpaged: N tokens in logical order, Q query tokens."""

    keys: Doubles  # (N, Hk, D) before rotation
    values: Doubles  # (N, Hk, D)
    positions: NDArray[np.int64]  # (N, A) as they stand now
    queries: Doubles  # (Q, Hq, D) before rotation
    query_positions: NDArray[np.int64]  # (Q, A)
    limits: NDArray[np.int64]  # (Q,)
    indices: NDArray[np.int64]  # (Q,)
    pages: NDArray[np.int64]  # (N,)


@dataclass(frozen=True, eq=False)
class Call:
    """A case's arrays. Compares by identity, so that it can key a cache."""

    case: Case
    attributes: Attributes
    inputs: Inputs
    truth: tuple[RowTruth, ...]
    stored_keys: NDArray[np.generic] = field(repr=False)  # (P, Hk, S, D) pool after the call
    stored_values: NDArray[np.generic] = field(repr=False)


def turn(case: Case, vectors: Doubles, positions: NDArray[np.int64], sign: int = 1) -> Doubles:
    """R(sign * positions) applied to (N, H, D), as a product with complex numbers."""
    attributes = make_attributes(case)
    frequencies = np.array(attributes.inv_freq, np.float32).astype(np.float64)
    num_pairs = len(frequencies)
    if num_pairs == 0:
        return vectors.copy()
    axes = np.array(attributes.freq_axes or (0,) * num_pairs)
    angles = sign * positions[:, axes] * frequencies  # (N, pairs)
    first = slice(0, 2 * num_pairs, 2) if case.interleaved else slice(0, num_pairs)
    second = slice(1, 2 * num_pairs, 2) if case.interleaved else slice(num_pairs, 2 * num_pairs)
    turned = (vectors[..., first] + 1j * vectors[..., second]) * np.exp(1j * angles)[:, None, :]
    result = vectors.copy()
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


def make_attributes(case: Case) -> Attributes:
    """The node's attributes."""
    rotary_dim = case.head_dim if case.rotary_dim is None else case.rotary_dim
    frequencies = 100.0 ** (-np.arange(0, rotary_dim, 2) / max(rotary_dim, 1))
    return Attributes(
        num_heads=case.num_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        scale=case.head_dim**-0.5,
        softcap=case.softcap,
        window=case.window,
        inv_freq=tuple(float(np.float32(f)) for f in frequencies),
        freq_axes=case.freq_axes,
        rotary_interleaved=case.interleaved,
    )


def quantize_pool(values: Doubles, dtype: str) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
    """(N, Hk, D) as a pool stores it, and (N, Hk) scales (ones unless int8)."""
    exact = values.astype(np.float32)
    if dtype != "int8":
        return exact.astype(dtype), np.ones(values.shape[:-1], np.float32)
    scales = np.abs(exact).max(axis=-1) / np.float32(127)
    return np.rint(exact / scales[..., None]).astype(np.int8), scales


@dataclass
class _Pools:
    keys: NDArray[np.generic]
    values: NDArray[np.generic]
    key_scales: NDArray[np.float32]
    value_scales: NDArray[np.float32]

    def copy(self) -> _Pools:
        return _Pools(*(a.copy() for a in vars(self).values()))


def _garbage_pools(case: Case, num_pages: int, rng: np.random.Generator) -> _Pools:
    """Pools in which every slot holds what must never reach an output."""
    shape = (num_pages, case.num_kv_heads, case.page_size, case.head_dim)
    if case.pool_dtype == "int8":
        pools = [rng.integers(-127, 128, shape).astype(np.int8) for _ in range(2)]
        scales = [np.full(shape[:-1], np.nan, np.float32) for _ in range(2)]
    else:
        rubbish = np.array([np.nan, np.inf, -np.inf, 1e4])
        pools = [rng.choice(rubbish, shape).astype(case.pool_dtype) for _ in range(2)]
        scales = [np.ones(shape[:-1], np.float32) for _ in range(2)]
    return _Pools(*pools, *scales)


@dataclass
class _Stored:
    """A piece's tokens and where they lie."""

    slots: NDArray[np.int64]  # (N,)
    pages: NDArray[np.int64]
    written_at: NDArray[np.int64]  # (N, A)
    keys: Doubles  # (N, Hk, D) unrotated, as the pool's dtype keeps them
    values: Doubles
    given_keys: Doubles  # (N, Hk, D) rotated, before the pool's dtype
    given_values: Doubles


def _store_pieces(
    case: Case, rng: np.random.Generator, before: _Pools, after: _Pools, pages: NDArray[np.int64]
) -> list[_Stored]:
    """Lays the pieces out on shuffled pages; new tokens are in ``after`` only."""
    size, taken, result = case.page_size, 0, []
    for piece in case.pieces:
        n = piece.num_tokens
        mine = pages[taken : taken + -(-n // size)]
        taken += len(mine)
        token = np.arange(n)
        page, offset = mine[token // size], token % size
        shape = (n, case.num_kv_heads, case.head_dim)
        given = [
            rng.standard_normal(shape).astype(case.query_dtype).astype(np.float64) for _ in "kv"
        ]
        written_at = rng.integers(0, 60, case.num_axes) + np.arange(n)[:, None]
        kept = []
        for given_one, pool_name in zip(given, ("key", "value"), strict=True):
            stored, scales = quantize_pool(given_one, case.pool_dtype)
            for pools, last in ((before, n - piece.num_new), (after, n)):
                getattr(pools, f"{pool_name}s")[page[:last], :, offset[:last]] = stored[:last]
                getattr(pools, f"{pool_name}_scales")[page[:last], :, offset[:last]] = scales[:last]
            kept.append(stored.astype(np.float64) * scales[..., None])
        keys = turn(case, kept[0], written_at, sign=-1)
        result.append(_Stored(page * size + offset, mine, written_at, keys, kept[1], *given))
    return result


def _shift(case: Case, use: Use) -> tuple[int, ...]:
    return (use.shift + (0,) * case.num_axes)[: case.num_axes]


def _row_table(case: Case, row: Row, stored: list[_Stored]) -> list[list[int]]:
    entries: list[list[int]] = []
    for use in row.uses:
        piece = stored[use.piece]
        left = len(piece.slots) if use.num_tokens is None else use.num_tokens
        for page in piece.pages:
            if left <= 0:
                break
            if case.empty_columns:
                entries.append([-1, 99, *([7] * case.num_axes)])
            entries.append([int(page), min(left, case.page_size), *_shift(case, use)])
            left -= case.page_size
    return entries


def _row_truth(case: Case, row: Row, stored: list[_Stored], rng: np.random.Generator) -> RowTruth:
    keys, values, positions, query_at, pages = [], [], [], [], []
    limits: list[int] = []
    total = 0
    for use in row.uses:
        piece, num_new = stored[use.piece], case.pieces[use.piece].num_new
        n = len(piece.slots) if use.num_tokens is None else use.num_tokens
        keys.append(piece.keys[:n])
        values.append(piece.values[:n])
        pages.append(piece.slots[:n] // case.page_size)
        positions.append(piece.written_at[:n] + np.array(_shift(case, use), np.int64))
        new = list(range(total + n - num_new, total + n)) if num_new else []
        query_at += new
        limits += [total + n if row.limits == "bidirectional" else j + 1 for j in new]
        total += n
    query_at += [total + i for i in range(row.num_unwritten)]
    limits += [total] * row.num_unwritten
    fixed = {"all": total, "nothing": 0}.get(row.limits)
    count = len(query_at)
    queries = rng.standard_normal((count, case.num_heads, case.head_dim))
    shape = (-1, case.num_kv_heads, case.head_dim)
    return RowTruth(
        keys=np.concatenate(keys).reshape(shape) if keys else np.zeros((0, *shape[1:])),
        values=np.concatenate(values).reshape(shape) if values else np.zeros((0, *shape[1:])),
        positions=np.concatenate(positions)
        if positions
        else np.zeros((0, case.num_axes), np.int64),
        queries=queries,
        query_positions=rng.integers(0, 80, (count, case.num_axes)),
        limits=np.array([fixed] * count if fixed is not None else limits, np.int64),
        indices=np.array(query_at, np.int64),
        pages=np.concatenate([np.zeros(0, np.int64), *pages]),
    )


def _tokens(
    case: Case, stored: list[_Stored]
) -> tuple[list[Doubles], list[Doubles], list[NDArray[np.int64]]]:
    """Keys, values and slots of the call's tokens, in row order; unwritten tokens carry rubbish."""
    keys, values, slots = [], [], []
    for row in case.rows:
        for use in row.uses:
            num_new = case.pieces[use.piece].num_new
            if num_new:
                keys.append(stored[use.piece].given_keys[-num_new:])
                values.append(stored[use.piece].given_values[-num_new:])
                slots.append(stored[use.piece].slots[-num_new:])
        rubbish = np.full((row.num_unwritten, case.num_kv_heads, case.head_dim), np.nan)
        keys.append(rubbish)
        values.append(rubbish)
        slots.append(np.full(row.num_unwritten, -1))
    return keys, values, slots


@cache
def build(case: Case) -> Call:
    """The arrays of a case."""
    rng = np.random.default_rng(case.seed + 1000 * len(case.name))
    num_pages = sum(-(-piece.num_tokens // case.page_size) for piece in case.pieces) + 3
    before = _garbage_pools(case, num_pages, rng)
    after = before.copy()
    stored = _store_pieces(case, rng, before, after, rng.permutation(num_pages))
    truth = tuple(_row_truth(case, row, stored, rng) for row in case.rows)
    tables = [_row_table(case, row, stored) for row in case.rows]
    width = max((len(table) for table in tables), default=0) + 1
    unused = [-1, 0, *([0] * case.num_axes)]
    page_table = np.array(
        [table + [unused] * (width - len(table)) for table in tables], np.int32
    ).reshape(len(tables), width, 2 + case.num_axes)
    queries = [turn(case, row.queries, row.query_positions) for row in truth]
    truth = tuple(
        replace(row, queries=_rounded_queries(case, row, query))
        for row, query in zip(truth, queries, strict=True)
    )
    keys, values, slots = _tokens(case, stored)
    int8 = case.pool_dtype == "int8"

    def packed(parts: list[Doubles], num_heads: int) -> NDArray[np.floating]:
        empty = np.zeros((0, num_heads, case.head_dim))
        joined = np.concatenate([empty, *parts]).reshape(-1, num_heads * case.head_dim)
        return joined.astype(case.query_dtype)

    def per_token(parts: list[NDArray[np.int64]]) -> NDArray[np.int32]:
        return np.concatenate([np.zeros(0), *parts]).astype(np.int32)

    inputs = Inputs(
        query=packed(queries, case.num_heads),
        key=None if case.read_only else packed(keys, case.num_kv_heads),
        value=None if case.read_only else packed(values, case.num_kv_heads),
        key_pool=before.keys,
        value_pool=before.values,
        page_table=page_table,
        query_starts=np.cumsum([0, *(len(row.limits) for row in truth)]).astype(np.int32),
        slot_mapping=per_token(slots),
        kv_limits=per_token([row.limits for row in truth]),
        query_indices=per_token([row.indices for row in truth]),
        sinks=rng.standard_normal(case.num_heads).astype(np.float32) if case.sinks else None,
        key_scales=before.key_scales if int8 else None,
        value_scales=before.value_scales if int8 else None,
        page_mass=rng.random(num_pages).astype(np.float32) if case.mass_weights else None,
        mass_weights=np.array(case.mass_weights, np.float32) if case.mass_weights else None,
    )
    return Call(case, make_attributes(case), inputs, truth, after.keys, after.values)


def _rounded_queries(case: Case, row: RowTruth, turned: Doubles) -> Doubles:
    """The unrotated queries after the graph's dtype has rounded the rotated ones."""
    rounded = turned.astype(case.query_dtype).astype(np.float64)
    return turn(case, rounded, row.query_positions, sign=-1)
