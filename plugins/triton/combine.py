"""The parts of a split row joined into its output.

Owns: the weighted sum of ``num_splits`` partial results and the attention sink. A part that saw
nothing left no accumulator, and its memory is not read. Knows nothing of pages.
"""

from __future__ import annotations

import triton
import triton.language as tl

from plugins.triton.rows import LOG2E


@triton.jit
def combine(
    output,  # (T, Hq, D)
    sinks,  # (Hq,) float32, read only when has_sinks
    stats,  # (num_splits, T, Hq, 2) float32: maximum (base 2), sum
    partial,  # (num_splits, T, Hq, D) float32
    lse,  # (T, Hq) float32, out when has_lse
    num_tokens,
    num_heads,
    has_sinks,
    has_lse,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Program (token, head)."""
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * num_heads + head
    stride = num_tokens.to(tl.int64) * num_heads
    d = tl.arange(0, BLOCK_D)[None, :]
    sink = tl.load(sinks + head, mask=has_sinks != 0, other=float("-inf")) * LOG2E
    top = sink
    for first in range(0, num_splits, BLOCK_SPLITS):
        s = first + tl.arange(0, BLOCK_SPLITS)
        at = row + s.to(tl.int64) * stride
        tops = tl.load(stats + at * 2, mask=s < num_splits, other=float("-inf"))
        top = tl.maximum(top, tl.max(tops, 0))
    base = tl.where(top == float("-inf"), 0.0, top)

    total = tl.exp2(sink - base)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for first in range(0, num_splits, BLOCK_SPLITS):
        s = first + tl.arange(0, BLOCK_SPLITS)
        at = row + s.to(tl.int64) * stride
        tops = tl.load(stats + at * 2, mask=s < num_splits, other=float("-inf"))
        sums = tl.load(stats + at * 2 + 1, mask=s < num_splits, other=0.0)
        weight = tl.exp2(tops - base)
        total += tl.sum(sums * weight, 0)
        saw = (sums != 0)[:, None] & (d < HEAD_DIM)
        part = tl.load(partial + at[:, None] * HEAD_DIM + d, mask=saw, other=0.0)
        acc += tl.sum(part * weight[:, None], 0)

    out = acc / tl.where(total == 0.0, 1.0, total)
    column = tl.arange(0, BLOCK_D)
    to = output + row * HEAD_DIM + column
    tl.store(to, out.to(output.dtype.element_ty), mask=column < HEAD_DIM)
    if has_lse != 0:
        tl.store(lse + row, base + tl.log2(total))
