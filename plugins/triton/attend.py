"""Attention of a block of query rows over a part of its sequence's pages.

Owns: softmax attention with running maximum and sum, float32. A query row is one token and one of
the heads that share a KV head; a block is ``BLOCK_M`` rows that follow each other in one sequence,
so decoding and prefill are one kernel with different block sizes. Guarantees: no slot that a row
does not see changes it, NaN included. Knows nothing of writing; ``prepare`` ran before.

Pages are walked in runs of equal shift, the queries turned once per run, several pages a step.
What is long here is parameters: a part that is compiled into a kernel is handed all it uses.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plugins.triton.rotate import load_turned
from plugins.triton.rows import LOG2E, find_columns, find_row, scores, sees, visible_range


@triton.jit
def _add_values(
    acc,  # (BLOCK_M, BLOCK_D)
    p,  # (BLOCK_M, BLOCK_N) float32
    v,  # (BLOCK_N, BLOCK_D)
    seen,  # (BLOCK_M, BLOCK_N)
    value_scales,
    at,  # (BLOCK_N,) rows of the pool
    valid,  # (BLOCK_N,)
    INT8: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    CAREFUL: tl.constexpr,
):
    """The accumulator with a step's values added."""
    if INT8:
        # Scales go into p, relative to the step's largest so that no product underflows.
        scales = tl.load(value_scales + at, mask=valid, other=0.0)
        largest = tl.max(tl.where(scales < float("inf"), scales, 0.0), 0)
        unit = tl.where(largest > 0, largest, 1.0)
        p = tl.where(seen, p * (scales / unit)[None, :], 0.0)
        acc += tl.dot(p.to(DOT), v, input_precision=PRECISION) * unit
    elif CAREFUL:
        # 0 * NaN: numbers that are not finite reach only the rows that see them.
        finite = tl.abs(v) < float("inf")
        clean = tl.dot(p.to(DOT), tl.where(finite, v, 0.0), input_precision=PRECISION)
        raw = tl.dot(p.to(DOT), v, input_precision=PRECISION)
        broken = tl.where(finite, 0.0, 1.0).to(DOT)
        hit = tl.dot(tl.where(seen, 1.0, 0.0).to(DOT), broken, input_precision=PRECISION)
        acc += tl.where(hit > 0, raw, clean)
    else:
        acc = tl.dot(p.to(DOT), v, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _weigh(s, top, total):
    """The running maximum and sum with a step's scores, both (BLOCK_M,); the step's weights
    (BLOCK_M, BLOCK_N); and what all that was summed before must be multiplied by (BLOCK_M,)."""
    new_top = tl.maximum(top, tl.max(s, axis=1))
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    p = tl.exp2(s - base[:, None])
    keep = tl.exp2(top - base)
    return new_top, total * keep + tl.sum(p, axis=1), p, keep


@triton.jit
def _walk(
    query,
    row_offsets,
    real,
    low,
    limit,
    key_pool,
    value_pool,
    key_scales,
    value_scales,
    table,  # of this sequence, (M, table_stride)
    starts,  # of this sequence, (M + 1,)
    run_ends,  # of this sequence, (M,)
    first,  # slots of this sequence's entries, entry after entry: [first, last)
    last,
    turns,
    freq_axes,
    table_stride,
    kv_head,
    num_kv_heads,
    rotary_pairs,
    interleaved,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    INT8: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    CAREFUL: tl.constexpr,
):
    """Maximum, sum (BLOCK_M,) and accumulator (BLOCK_M, BLOCK_D) over the slots [first, last)."""
    d = tl.arange(0, BLOCK_D)[None, :]
    n = tl.arange(0, BLOCK_N)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    slot = first
    while slot < last:
        column = slot // PAGE_SIZE
        run_end = tl.minimum(tl.load(run_ends + column) * PAGE_SIZE, last)
        shift = table + column * table_stride + 2
        q = load_turned(
            query, row_offsets, real, shift, turns, freq_axes, rotary_pairs, interleaved,
            HEAD_DIM, BLOCK_D,
        ).to(DOT)  # fmt: skip
        for step in tl.range(slot, run_end, BLOCK_N, num_stages=STAGES):
            inside = step + n < run_end
            m = (step + n) // PAGE_SIZE
            offset = (step + n) % PAGE_SIZE
            page = tl.load(table + m * table_stride, mask=inside, other=0)
            begin = tl.load(starts + m, mask=inside, other=0)
            end = tl.load(starts + m + 1, mask=inside, other=0)
            valid = offset < end - begin
            at = (page.to(tl.int64) * num_kv_heads + kv_head) * PAGE_SIZE + offset
            mask = valid[:, None] & (d < HEAD_DIM)
            k = tl.load(key_pool + at[:, None] * HEAD_DIM + d, mask=mask, other=0.0)
            s = scores(
                q, tl.trans(k.to(DOT)), key_scales, at, valid, scale, softcap,
                INT8, SOFTCAP, PRECISION,
            )  # fmt: skip
            seen = sees(begin + offset, valid, low, limit)
            s = tl.where(seen, s, float("-inf"))
            top, total, p, keep = _weigh(s, top, total)
            acc = acc * keep[:, None]
            v = tl.load(value_pool + at[:, None] * HEAD_DIM + d, mask=mask, other=0.0).to(DOT)
            acc = _add_values(
                acc, p, v, seen, value_scales, at, valid, INT8, DOT, PRECISION, CAREFUL
            )
        slot = run_end
    return top, total, acc


@triton.jit
def _part_of(first, last, split, num_splits, BLOCK_N: tl.constexpr):
    """The slots [first, last) that are the split's, whole steps but for the last."""
    steps = (tl.maximum(last - first, 0) + BLOCK_N - 1) // BLOCK_N
    width = (steps + num_splits - 1) // num_splits * BLOCK_N
    first += split * width
    return first, tl.minimum(first + width, last)


@triton.jit
def finish(top, total, acc, sink):
    """Output rows and the logarithm (base 2) of the softmax's denominator, the sink included."""
    base = tl.maximum(top, sink)
    base = tl.where(base == float("-inf"), 0.0, base)
    keep = tl.exp2(top - base)
    total = total * keep + tl.exp2(sink - base)
    empty = total == 0.0
    out = acc * (keep / tl.where(empty, 1.0, total))[:, None]
    return out, base + tl.log2(total)


@triton.jit
def attend(
    output,  # (T, Hq, D)
    query,  # (T, Hq, D)
    key_pool,  # (P, Hk, S, D)
    value_pool,
    key_scales,  # (P, Hk, S) float32, int8 pools only
    value_scales,
    page_table,  # (B, M, table_stride) int32
    query_starts,  # (B + 1,) int32
    kv_limits,  # (T,) int32
    query_indices,  # (T,) int32, read only when window > 0
    sinks,  # (Hq,) float32, read only when has_sinks
    turns,  # (rotary_pairs,) int64
    freq_axes,  # (rotary_pairs,) int32
    starts,  # (B, M + 1) int32, from prepare
    run_ends,  # (B, M) int32, from prepare
    stats,  # (num_splits, T, Hq, 2) float32, out when num_splits > 1
    partial,  # (num_splits, T, Hq, D) float32, out when num_splits > 1
    lse,  # (T, Hq) float32, out when has_lse and num_splits == 1
    num_tokens,
    num_rows,
    num_columns,
    table_stride,
    num_heads,
    num_kv_heads,
    rotary_pairs,
    interleaved,
    window,
    has_sinks,
    has_lse,
    num_splits,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    INT8: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (block, KV head, split)."""
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    group = num_heads // num_kv_heads
    row = find_row(query_starts, block, num_rows, group, BLOCK_M)
    first_token = tl.load(query_starts + row)
    last_token = tl.load(query_starts + row + 1)
    first_query = (block - first_token * group // BLOCK_M - row) * BLOCK_M
    if first_query >= (last_token - first_token) * group:
        return
    r = first_query + tl.arange(0, BLOCK_M)
    token = first_token + r // group
    head = kv_head * group + r % group
    real = token < last_token
    low, limit = visible_range(kv_limits, query_indices, token, last_token, window)

    table = page_table + row.to(tl.int64) * num_columns * table_stride
    starts += row.to(tl.int64) * (num_columns + 1)
    run_ends += row.to(tl.int64) * num_columns
    lowest = tl.min(tl.where(real, low, 2147483647), 0)
    first, last = find_columns(starts, num_columns, lowest, tl.max(limit, 0))
    first, last = _part_of(first * PAGE_SIZE, last * PAGE_SIZE, split, num_splits, BLOCK_N)

    query_row = token.to(tl.int64) * num_heads + head
    row_offsets = query_row * HEAD_DIM
    top, total, acc = _walk(
        query, row_offsets, real, low, limit, key_pool, value_pool, key_scales, value_scales,
        table, starts, run_ends, first, last, turns, freq_axes, table_stride, kv_head, num_kv_heads,
        rotary_pairs, interleaved, scale, softcap, HEAD_DIM, PAGE_SIZE, BLOCK_M, BLOCK_N, BLOCK_D,
        STAGES, INT8, SOFTCAP, DOT, PRECISION, False,
    )  # fmt: skip
    if not INT8:
        # Rare, so it is looked for once: a value that some rows must not see was not finite. In
        # short steps, for this must not cost registers.
        if tl.max(tl.where(tl.abs(acc) < float("inf"), 0, 1)) > 0:
            top, total, acc = _walk(
                query, row_offsets, real, low, limit, key_pool, value_pool, key_scales,
                value_scales, table, starts, run_ends, first, last, turns, freq_axes, table_stride,
                kv_head, num_kv_heads, rotary_pairs, interleaved, scale, softcap, HEAD_DIM,
                PAGE_SIZE, BLOCK_M, 16, BLOCK_D, 1, INT8, SOFTCAP, DOT, PRECISION, True,
            )  # fmt: skip

    d = tl.arange(0, BLOCK_D)[None, :]
    mask = real[:, None] & (d < HEAD_DIM)
    if num_splits == 1:
        sunk = head < tl.where(has_sinks != 0, num_heads, 0)
        sink = tl.load(sinks + head, mask=sunk, other=float("-inf")) * LOG2E
        out, log_sum = finish(top, total, acc, sink)
        tl.store(output + row_offsets[:, None] + d, out.to(output.dtype.element_ty), mask=mask)
        tl.store(lse + query_row, log_sum, mask=token < tl.where(has_lse != 0, last_token, 0))
    else:
        at = split.to(tl.int64) * num_tokens * num_heads + query_row
        tl.store(stats + at * 2, top, mask=real)
        tl.store(stats + at * 2 + 1, total, mask=real)
        tl.store(partial + at[:, None] * HEAD_DIM + d, acc, mask=mask & (total != 0)[:, None])
