"""New keys and values into their slots, and where every page-table entry begins.

Owns: conversion to the pool's dtype, int8 scales included, and the two arrays the other kernels
walk pages by: ``starts`` (B, M + 1), the logical index of each entry's first token, and
``run_ends`` (B, M), the first later entry whose shift differs. Both jobs are one launch: nothing
else may run before either is done. Knows nothing of attention.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prepare(
    key,  # (T, Hk, D), not read when num_writers is 0
    value,
    key_pool,  # (P, Hk, S, D)
    value_pool,
    key_scales,  # (P, Hk, S) float32, int8 pools only
    value_scales,
    slot_mapping,  # (T,) int32
    page_table,  # (B, M, table_stride) int32
    starts,  # (B, M + 1) int32, out
    run_ends,  # (B, M) int32, out
    num_tokens,
    num_rows,
    num_columns,
    table_stride,
    num_kv_heads,
    num_writers,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    INT8: tl.constexpr,
):
    """The first ``num_writers`` programs write tokens, the rest measure one row's entries each."""
    program = tl.program_id(0)
    if program < num_writers:
        head = program % num_kv_heads
        token = (program // num_kv_heads) * BLOCK_M + tl.arange(0, BLOCK_M)
        slot = tl.load(slot_mapping + token, mask=token < num_tokens, other=-1)
        page = (slot // PAGE_SIZE).to(tl.int64)
        to = (page * num_kv_heads + head) * PAGE_SIZE + slot % PAGE_SIZE
        source = token.to(tl.int64) * num_kv_heads + head
        written = slot >= 0
        _write(key, key_pool, key_scales, source, to, written, HEAD_DIM, BLOCK_M, BLOCK_D, INT8)
        _write(
            value, value_pool, value_scales, source, to, written, HEAD_DIM, BLOCK_M, BLOCK_D, INT8
        )
    else:
        row = (program - num_writers).to(tl.int64)
        _measure_row(
            page_table + row * num_columns * table_stride,
            starts + row * (num_columns + 1),
            run_ends + row * num_columns,
            num_columns,
            table_stride,
            BLOCK_COLUMNS,
        )


@triton.jit
def _write(
    new,
    pool,
    scales,
    source,  # (BLOCK_M,) int64, rows of new
    to,  # (BLOCK_M,) int64, rows of the pool
    written,  # (BLOCK_M,)
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    INT8: tl.constexpr,
):
    d = tl.arange(0, BLOCK_D)[None, :]
    mask = written[:, None] & (d < HEAD_DIM)
    x = tl.load(new + source[:, None] * HEAD_DIM + d, mask=mask, other=0.0)
    at = pool + to[:, None] * HEAD_DIM + d
    if INT8:
        x = x.to(tl.float32)
        broken = tl.max(tl.where(tl.abs(x) < float("inf"), 0, 1), axis=1) > 0
        largest = tl.max(tl.where(tl.abs(x) < float("inf"), tl.abs(x), 0.0), axis=1)
        scale = tl.div_rn(largest, tl.full([BLOCK_M], 127.0, tl.float32))
        usable = (scale > 0) & (broken == 0)
        divisor = tl.where(usable, scale, 1.0)
        quotient = tl.div_rn(x, tl.broadcast_to(divisor[:, None], (BLOCK_M, BLOCK_D)))
        rounded = (quotient + 12582912.0) - 12582912.0  # 1.5 * 2^23: half to even, below 2^22
        rounded = tl.minimum(tl.maximum(rounded, -127.0), 127.0)  # a subnormal scale is inexact
        tl.store(at, tl.where(usable[:, None], rounded, 0.0).to(tl.int8), mask=mask)
        tl.store(scales + to, tl.where(broken, float("nan"), scale), mask=written)
    else:
        tl.store(at, x.to(pool.dtype.element_ty), mask=mask)


@triton.jit
def _measure_row(table, starts, run_ends, num_columns, table_stride, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    total = 0
    for first in range(0, num_columns, BLOCK):
        m = first + column
        inside = m < num_columns
        page = tl.load(table + m * table_stride, mask=inside, other=-1)
        count = tl.load(table + m * table_stride + 1, mask=inside, other=0)
        count = tl.where(page >= 0, count, 0)
        tl.store(starts + m, total + tl.cumsum(count, 0) - count, mask=inside)
        total += tl.sum(count, 0)
    tl.store(starts + num_columns, total)

    # Backwards, because an entry's run ends where a later one differs.
    end = num_columns
    num_blocks = (num_columns + BLOCK - 1) // BLOCK
    for block in range(num_blocks):
        m = (num_blocks - 1 - block) * BLOCK + column
        follows = m + 1 < num_columns
        differs = m + 1 > num_columns  # no column is its own follower
        for axis in range(2, table_stride):
            here = tl.load(table + m * table_stride + axis, mask=follows, other=0)
            after = tl.load(table + (m + 1) * table_stride + axis, mask=follows, other=0)
            differs = differs | (here != after)
        stop = tl.where(differs, m + 1, num_columns)
        stop = tl.minimum(_suffix_min(stop), end)
        tl.store(run_ends + m, stop, mask=m < num_columns)
        end = tl.min(stop, 0)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def _suffix_min(x):
    return tl.associative_scan(x, 0, _smaller, reverse=True)
