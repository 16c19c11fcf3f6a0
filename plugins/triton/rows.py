"""Which tokens the rows of a block are, what they see, and how well their queries match keys.

Owns: the arithmetic that every pass over keys shares. Guarantees: what a row sees is decided here
alone. Knows nothing of values, nor of what becomes of scores.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # softmax in powers of two: exp2 is one instruction


@triton.jit
def cap(s, softcap):
    """softcap * tanh(s / softcap)."""
    return softcap * (1.0 - 2.0 / (tl.exp2(s / softcap * (2.0 * LOG2E)) + 1.0))


@triton.jit
def scores(
    q,  # (BLOCK_M, BLOCK_D)
    k,  # (BLOCK_D, BLOCK_N)
    key_scales,
    at,  # (BLOCK_N,) rows of the pool
    valid,  # (BLOCK_N,)
    scale,
    softcap,
    INT8: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Scores of queries and keys, in powers of two (BLOCK_M, BLOCK_N)."""
    s = tl.dot(q, k, input_precision=PRECISION)
    if INT8:
        s = s * tl.load(key_scales + at, mask=valid, other=0.0)[None, :]
    if SOFTCAP:
        s = cap(s * scale, softcap) * LOG2E
    else:
        s = s * (scale * LOG2E)
    return s


@triton.jit
def find_row(query_starts, block, num_rows, group, BLOCK_M: tl.constexpr):
    """The sequence of a block; sequence b's blocks begin at starts[b] * group / BLOCK_M + b."""
    found = 0
    for first in range(0, num_rows, 32):
        b = first + tl.arange(0, 32)
        begin = tl.load(query_starts + b, mask=b < num_rows, other=0) * group // BLOCK_M + b
        found += tl.sum(((begin <= block) & (b < num_rows)).to(tl.int32), 0)
    return found - 1


@triton.jit
def visible_range(kv_limits, query_indices, token, last_token, window):
    """Logical indices [low, limit) that each query row sees, both (BLOCK_M,)."""
    limit = tl.load(kv_limits + token, mask=token < last_token, other=0)
    windowed = token < tl.where(window > 0, last_token, 0)
    index = tl.load(query_indices + token, mask=windowed, other=0)
    low = tl.where(window > 0, tl.maximum(index - window + 1, 0), 0)
    return low, limit


@triton.jit
def sees(j, valid, low, limit):
    """Whether each row sees each slot (BLOCK_M, BLOCK_N), of logical index ``j`` (BLOCK_N,)."""
    return valid[None, :] & (j[None, :] < limit[:, None]) & (j[None, :] >= low[:, None])


@triton.jit
def find_columns(starts, num_columns, low, limit):
    """Columns [first, last) of the page table that hold logical indices in [low, limit)."""
    first = 0
    last = 0
    for block in range(0, num_columns, 1024):
        m = block + tl.arange(0, 1024)
        inside = m < num_columns
        begin = tl.load(starts + m, mask=inside, other=0)
        end = tl.load(starts + m + 1, mask=inside, other=0)
        first += tl.sum((inside & (end <= low)).to(tl.int32), 0)
        last += tl.sum((inside & (begin < limit)).to(tl.int32), 0)
    return first, last
