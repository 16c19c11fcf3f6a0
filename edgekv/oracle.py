"""The paged-attention operator in plain NumPy: what docs/paged_attention.md says, line by line.

Owns: the meaning of the operator. Every kernel is tested against this file, so it is written to be
read, not to be fast: one loop per query token, head and key. Guarantees: inputs are left as they
were, the pools come back as new arrays. Validates nothing; knows no runtime.

Symbols as in the document: T tokens, B rows, M page-table columns, A rope axes, P pages, S page
size, Hq query heads, Hk KV heads, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Pool = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes of one node; names and defaults as in docs/paged_attention.md."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float = 0.0
    window: int = 0
    inv_freq: tuple[float, ...] = ()
    freq_axes: tuple[int, ...] = ()  # empty = axis 0 for every frequency
    rotary_interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one call. bfloat16 arrays cannot be held by NumPy and are outside the oracle."""

    query: Floats  # (T, Hq * D) float32 or float16
    key: Floats | None  # (T, Hk * D), None = read-only pages
    value: Floats | None  # (T, Hk * D)
    key_pool: Pool  # (P, Hk, S, D) float32, float16 or int8
    value_pool: Pool  # (P, Hk, S, D)
    page_table: NDArray[np.int32]  # (B, M, 2 + A) page id, valid tokens, shift per axis
    query_starts: NDArray[np.int32]  # (B + 1,)
    slot_mapping: NDArray[np.int32]  # (T,)
    kv_limits: NDArray[np.int32]  # (T,)
    query_indices: NDArray[np.int32]  # (T,)
    sinks: NDArray[np.float32] | None = None  # (Hq,)
    key_scales: NDArray[np.float32] | None = None  # (P, Hk, S), int8 pools only
    value_scales: NDArray[np.float32] | None = None  # (P, Hk, S)
    page_mass: NDArray[np.float32] | None = None  # (P,)
    mass_weights: NDArray[np.float32] | None = None  # (B,), with page_mass


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output 0, the pools and scales after the new tokens were written, the mass after the call."""

    output: Floats  # (T, Hq * D), dtype of the query
    key_pool: Pool  # (P, Hk, S, D)
    value_pool: Pool
    key_scales: NDArray[np.float32] | None  # (P, Hk, S), int8 pools only
    value_scales: NDArray[np.float32] | None
    page_mass: NDArray[np.float32] | None = None  # (P,)


def paged_attention(attributes: Attributes, inputs: Inputs) -> Outputs:
    """One call of the operator."""
    inputs = _write_new_tokens(attributes, inputs)
    num_rows = len(inputs.query_starts) - 1
    output = np.zeros_like(inputs.query)
    page_mass = None if inputs.page_mass is None else inputs.page_mass.copy()
    for row in range(num_rows):
        keys, values, shifts, pages = _read_row(attributes, inputs, row)
        for token in range(inputs.query_starts[row], inputs.query_starts[row + 1]):
            visible = list(_visible(attributes, inputs, token, len(keys)))
            heads = inputs.query[token].reshape(attributes.num_heads, attributes.head_dim)
            for head in range(attributes.num_heads):
                kv_head = head * attributes.num_kv_heads // attributes.num_heads
                sink = None if inputs.sinks is None else float(inputs.sinks[head])
                result, probabilities = _attend(
                    attributes,
                    heads[head].astype(np.float32),
                    keys[visible, kv_head],
                    values[visible, kv_head],
                    shifts[visible],
                    sink,
                )
                first = head * attributes.head_dim
                output[token, first : first + attributes.head_dim] = result
                if page_mass is not None and inputs.mass_weights is not None:
                    _add_mass(page_mass, pages[visible], probabilities, inputs.mass_weights[row])
    return Outputs(
        output,
        inputs.key_pool,
        inputs.value_pool,
        inputs.key_scales,
        inputs.value_scales,
        page_mass,
    )


def _add_mass(
    page_mass: NDArray[np.float32],  # (P,) written
    pages: NDArray[np.int64],  # (N,) the page of each visible token
    probabilities: NDArray[np.float32],  # (N,)
    weight: np.float32,
) -> None:
    if weight != 0:
        np.add.at(page_mass, pages, weight * probabilities)


def rotate(
    vector: Floats,  # (D,)
    shift: NDArray[np.int32],  # (A,)
    attributes: Attributes,
) -> NDArray[np.float32]:  # (D,)
    """R(shift) · vector: pair i turns by ``shift[freq_axes[i]] * inv_freq[i]``."""
    turned = vector.astype(np.float32)
    num_pairs = len(attributes.inv_freq)
    for i, frequency in enumerate(attributes.inv_freq):
        axis = attributes.freq_axes[i] if attributes.freq_axes else 0
        angle = float(shift[axis]) * float(np.float32(frequency))
        first, second = (2 * i, 2 * i + 1) if attributes.rotary_interleaved else (i, i + num_pairs)
        a, b = float(vector[first]), float(vector[second])
        turned[first] = a * math.cos(angle) - b * math.sin(angle)
        turned[second] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def quantize(
    vector: Floats,  # (D,) one token, one head
) -> tuple[NDArray[np.int8], np.float32]:
    """int8 numbers and their scale. All zeros has scale 0; anything not finite has scale NaN."""
    vector = vector.astype(np.float32)
    if not np.isfinite(vector).all():
        return np.zeros(vector.shape, np.int8), np.float32(np.nan)
    scale = np.max(np.abs(vector)) / np.float32(127)
    if scale == 0:
        return np.zeros(vector.shape, np.int8), np.float32(0)
    return np.clip(np.rint(vector / scale), -127, 127).astype(np.int8), scale


def _write_new_tokens(attributes: Attributes, inputs: Inputs) -> Inputs:
    """The inputs with pools (copies) in which every token with a slot is stored."""
    if inputs.key is None or inputs.value is None:
        return inputs
    key_pool, value_pool = inputs.key_pool.copy(), inputs.value_pool.copy()
    key_scales = None if inputs.key_scales is None else inputs.key_scales.copy()
    value_scales = None if inputs.value_scales is None else inputs.value_scales.copy()
    page_size = key_pool.shape[2]
    for token, slot in enumerate(inputs.slot_mapping):
        if slot < 0:
            continue
        page, offset = divmod(int(slot), page_size)
        for new, pool, scales in (
            (inputs.key, key_pool, key_scales),
            (inputs.value, value_pool, value_scales),
        ):
            heads = new[token].reshape(attributes.num_kv_heads, attributes.head_dim)
            for head in range(attributes.num_kv_heads):
                if scales is None:
                    pool[page, head, offset] = heads[head].astype(pool.dtype)
                else:
                    pool[page, head, offset], scales[page, head, offset] = quantize(heads[head])
    return replace(
        inputs,
        key_pool=key_pool,
        value_pool=value_pool,
        key_scales=key_scales,
        value_scales=value_scales,
    )


def _read_row(
    attributes: Attributes, inputs: Inputs, row: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32], NDArray[np.int64]]:
    """Keys, values (N, Hk, D), shifts (N, A), pages (N,) of a row's N tokens, in logical order."""
    keys: list[NDArray[np.float32]] = []
    values: list[NDArray[np.float32]] = []
    shifts: list[NDArray[np.int32]] = []
    pages: list[int] = []
    for entry in inputs.page_table[row]:
        page, num_valid = int(entry[0]), int(entry[1])
        if page < 0:
            continue
        for offset in range(num_valid):
            keys.append(_read_token(inputs.key_pool, inputs.key_scales, page, offset))
            values.append(_read_token(inputs.value_pool, inputs.value_scales, page, offset))
            shifts.append(entry[2:])
            pages.append(page)
    shape = (len(keys), attributes.num_kv_heads, attributes.head_dim)
    num_axes = inputs.page_table.shape[2] - 2
    return (
        np.array(keys, np.float32).reshape(shape),
        np.array(values, np.float32).reshape(shape),
        np.array(shifts, np.int32).reshape(len(shifts), num_axes),
        np.array(pages, np.int64),
    )


def _read_token(
    pool: Pool, scales: NDArray[np.float32] | None, page: int, offset: int
) -> NDArray[np.float32]:  # (Hk, D)
    token: NDArray[np.float32] = pool[page, :, offset].astype(np.float32)
    if scales is None:
        return token
    scaled: NDArray[np.float32] = token * scales[page, :, offset, None]
    return scaled


def _visible(attributes: Attributes, inputs: Inputs, token: int, num_tokens: int) -> Iterator[int]:
    """Logical indices that a query token sees."""
    for j in range(min(num_tokens, int(inputs.kv_limits[token]))):
        if attributes.window == 0 or j > int(inputs.query_indices[token]) - attributes.window:
            yield j


def _attend(
    attributes: Attributes,
    query: NDArray[np.float32],  # (D,)
    keys: NDArray[np.float32],  # (N, D), visible ones only
    values: NDArray[np.float32],  # (N, D)
    shifts: NDArray[np.int32],  # (N, A)
    sink: float | None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:  # (D,), (N,)
    """Softmax attention of one head of one token, and the probability of each visible token."""
    if len(keys) == 0:
        return np.zeros(attributes.head_dim, np.float32), np.zeros(0, np.float32)
    scores: list[float] = []
    turned_by: dict[tuple[int, ...], NDArray[np.float32]] = {}
    for key, shift in zip(keys, shifts, strict=True):
        if tuple(shift) not in turned_by:
            turned_by[tuple(shift)] = rotate(query, -shift, attributes)
        score = attributes.scale * float(turned_by[tuple(shift)] @ key)
        if attributes.softcap:
            score = attributes.softcap * math.tanh(score / attributes.softcap)
        scores.append(score)
    top = max(scores) if sink is None else max(*scores, sink)
    weights = np.array([math.exp(score - top) for score in scores], np.float32)
    total = float(weights.sum()) + (0.0 if sink is None else math.exp(sink - top))
    result: NDArray[np.float32] = (weights @ values / np.float32(total)).astype(np.float32)
    return result, (weights / np.float32(total)).astype(np.float32)
