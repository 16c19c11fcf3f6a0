"""Each page's share of the softmax, added to ``page_mass``.

Owns: the second look at the keys that this needs, because a probability is known only once the
whole row has been summed. Runs for the one layer that asks, on rows with a weight. Guarantees: a
page's sum within a row has one order, so it comes out the same each time. Knows nothing of values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plugins.triton.rotate import load_turned
from plugins.triton.rows import scores, sees, visible_range


@triton.jit
def mass(
    page_mass,  # (P,) float32, added to
    mass_weights,  # (B,) float32
    query,  # (T, Hq, D)
    key_pool,  # (P, Hk, S, D)
    key_scales,  # (P, Hk, S) float32, int8 pools only
    page_table,  # (B, M, table_stride) int32
    query_starts,  # (B + 1,) int32
    kv_limits,  # (T,) int32
    query_indices,  # (T,) int32, read only when window > 0
    turns,  # (rotary_pairs,) int64
    freq_axes,  # (rotary_pairs,) int32
    starts,  # (B, M + 1) int32
    run_ends,  # (B, M) int32
    lse,  # (T, Hq) float32
    num_rows,
    num_columns,
    table_stride,
    num_heads,
    num_kv_heads,
    rotary_pairs,
    interleaved,
    window,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGES_UP: tl.constexpr,
    INT8: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (step of pages, row)."""
    PAGES: tl.constexpr = BLOCK_N // PAGE_SIZE
    row = tl.program_id(1).to(tl.int64)
    weight = tl.load(mass_weights + row)
    if weight == 0.0:
        return
    first = tl.program_id(0) * PAGES
    last = tl.minimum(first + PAGES, num_columns)
    table = page_table + row * num_columns * table_stride
    starts += row * (num_columns + 1)
    run_ends += row * num_columns
    if tl.load(starts + first) == tl.load(starts + last):
        return
    first_token = tl.load(query_starts + row)
    last_token = tl.load(query_starts + row + 1)
    group = num_heads // num_kv_heads

    d = tl.arange(0, BLOCK_D)[None, :]
    n = tl.arange(0, BLOCK_N)
    offset = n % PAGE_SIZE
    m = first + n // PAGE_SIZE
    inside = (n < PAGES * PAGE_SIZE) & (m < num_columns)
    page = tl.load(table + m * table_stride, mask=inside, other=0).to(tl.int64)
    begin = tl.load(starts + m, mask=inside, other=0)
    end = tl.load(starts + m + 1, mask=inside, other=0)
    j = begin + offset
    shares = tl.zeros([BLOCK_N], tl.float32)
    column = first
    while column < last:
        run_end = tl.minimum(tl.load(run_ends + column), last)
        shift = table + column * table_stride + 2
        valid = (offset < end - begin) & (m >= column) & (m < run_end)
        for kv_head in range(num_kv_heads):
            at = (page * num_kv_heads + kv_head) * PAGE_SIZE + offset
            mask = valid[:, None] & (d < HEAD_DIM)
            k = tl.load(key_pool + at[:, None] * HEAD_DIM + d, mask=mask, other=0.0)
            k = tl.trans(k.to(DOT))
            for first_query in range(0, (last_token - first_token) * group, BLOCK_M):
                r = first_query + tl.arange(0, BLOCK_M)
                token = first_token + r // group
                real = token < last_token
                query_row = token.to(tl.int64) * num_heads + kv_head * group + r % group
                low, limit = visible_range(kv_limits, query_indices, token, last_token, window)
                q = load_turned(
                    query, query_row * HEAD_DIM, real, shift, turns, freq_axes, rotary_pairs,
                    interleaved, HEAD_DIM, BLOCK_D,
                ).to(DOT)  # fmt: skip
                s = scores(q, k, key_scales, at, valid, scale, softcap, INT8, SOFTCAP, PRECISION)
                log_sum = tl.load(lse + query_row, mask=real, other=0.0)
                seen = sees(j, valid, low, limit)
                shares += tl.sum(tl.where(seen, tl.exp2(s - log_sum[:, None]), 0.0), 0)
        column = run_end

    entry = tl.arange(0, PAGES_UP)
    mine = (n // PAGE_SIZE)[None, :] == entry[:, None]
    sums = tl.sum(tl.where(mine, shares[None, :], 0.0), 1)
    m = first + entry
    inside = (entry < PAGES) & (m < num_columns)
    page = tl.load(table + m * table_stride, mask=inside, other=-1)
    tl.atomic_add(page_mass + page, sums * weight, mask=inside & (page >= 0))
