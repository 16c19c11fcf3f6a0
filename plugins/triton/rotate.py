"""Queries turned by the shift of a run of pages.

Owns: cosine and sine of a shift's angles, and R(-shift) q. Guarantees: a shift of any size loses
nothing, because whole turns are dropped in 64-bit integers; no library call, so no local memory.
Knows nothing of pages.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sin_turns(x):
    """sin(2 pi x) for x in [-0.75, 0.75], float32."""
    x = tl.where(x > 0.5, x - 1.0, x)
    x = tl.where(x > 0.25, 0.5 - x, tl.where(x < -0.25, -0.5 - x, x))
    a = x * 6.28318530717958648
    b = a * a
    p = b * 1.60590438e-10 - 2.50521084e-8
    p = p * b + 2.75573192e-6
    p = p * b - 1.98412698e-4
    p = p * b + 8.33333333e-3
    p = p * b - 1.66666667e-1
    return a + a * (b * p)


@triton.jit
def load_turned(
    query,  # (T, Hq, D)
    row_offsets,  # (BLOCK_M,) int64, where each query row begins
    row_mask,  # (BLOCK_M,)
    shift,  # pointer to the run's shifts (A) int32
    turns,  # (rotary_pairs) int64, angle per unit of shift as a fraction of a turn, modulo 1
    freq_axes,  # (rotary_pairs) int32
    rotary_pairs,
    interleaved,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """R(-shift) q of a block of query rows, (BLOCK_M, BLOCK_D) float32."""
    d = tl.arange(0, BLOCK_D)
    turning = d < 2 * rotary_pairs
    is_second = tl.where(interleaved != 0, d % 2 == 1, d >= rotary_pairs)
    half = tl.where(is_second, d - rotary_pairs, d)
    pair = tl.where(turning, tl.where(interleaved != 0, d // 2, half), 0)
    step = tl.where(interleaved != 0, 1, rotary_pairs)

    axis = tl.load(freq_axes + pair, mask=turning, other=0)
    amount = tl.load(shift + axis, mask=turning, other=0).to(tl.int64)
    fraction = amount * tl.load(turns + pair, mask=turning, other=0)  # modulo 2^64: no whole turns
    x = (fraction >> 32).to(tl.int32).to(tl.float32) * 2.3283064365386963e-10  # 2^-32
    sine = tl.where(is_second, -1.0, 1.0) * sin_turns(x)
    cosine = sin_turns(x + 0.25)

    mask = row_mask[:, None]
    at = query + row_offsets[:, None] + d[None, :]
    own = tl.load(at, mask=mask & (d < HEAD_DIM)[None, :], other=0.0).to(tl.float32)
    # A partner is one of two neighbours: two plain loads cost far fewer registers than a gather.
    behind = tl.load(at - step, mask=mask & (turning & is_second)[None, :], other=0.0)
    ahead = tl.load(at + step, mask=mask & (turning & (is_second == 0))[None, :], other=0.0)
    other = (behind + ahead).to(tl.float32)
    return tl.where(turning[None, :], own * cosine[None, :] + other * sine[None, :], own)
