"""Attention without pages: the reference the oracle is proven against.

Owns: plain dense attention in float64 over keys that were stored unrotated and are rotated at the
positions where they stand now. Shares no code with the oracle. Knows nothing of pages or shifts.
"""

from __future__ import annotations

import numpy as np

from tests.operator.build import Call, Doubles, RowTruth, turn


def probabilities(call: Call, row: RowTruth) -> Doubles:  # (Hq, Q, N)
    """What every query token of a row gives to each of the row's tokens; the sink's share is left
    out."""
    case = call.case
    group = case.num_heads // case.num_kv_heads
    queries = turn(case, row.queries, row.query_positions)
    keys = np.repeat(turn(case, row.keys, row.positions), group, axis=1)  # (N, Hq, D)
    scores = np.einsum("qhd,nhd->hqn", queries, keys) * call.attributes.scale
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    index = np.arange(len(row.keys))
    seen = index[None, :] < row.limits[:, None]
    if case.window:
        seen &= index[None, :] > row.indices[:, None] - case.window
    scores = np.where(seen[None], scores, -np.inf)
    if call.inputs.sinks is not None:
        sinks = call.inputs.sinks.astype(np.float64)[:, None, None]
        scores = np.concatenate([scores, np.broadcast_to(sinks, (*scores.shape[:2], 1))], axis=2)
    if scores.shape[2] == 0:
        return scores
    top = scores.max(axis=2, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=2, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    shares: Doubles = weights[..., : len(row.keys)]
    return shares


def attend(call: Call, row: RowTruth) -> Doubles:  # (Q, Hq, D)
    """Every query token of a row against the row's tokens."""
    values = np.repeat(row.values, call.case.num_heads // call.case.num_kv_heads, axis=1)
    return np.einsum("hqn,nhd->qhd", probabilities(call, row), values)


def mass(call: Call) -> Doubles:  # (P,)
    """``page_mass`` after the call."""
    result: Doubles = call.inputs.page_mass.astype(np.float64)
    for row, weight in zip(call.truth, call.case.mass_weights, strict=True):
        np.add.at(result, row.pages, weight * probabilities(call, row).sum(axis=(0, 1)))
    return result


def attend_all(call: Call) -> Doubles:  # (T, Hq * D)
    """All rows of a call."""
    empty = np.zeros((0, call.case.num_heads, call.case.head_dim))
    results = [empty, *(attend(call, row) for row in call.truth)]
    return np.concatenate(results).reshape(-1, call.case.num_heads * call.case.head_dim)
