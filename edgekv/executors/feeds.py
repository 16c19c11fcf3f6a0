"""The small inputs of one step by the names of the graph: what every decoder executor sends.

Owns: which of ``StepTables``'s arrays goes where. Knows no graph library.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv import names
from edgekv.types import StepTables


def step_feeds(
    embeds: NDArray[np.float32],  # (T, hidden)
    tables: StepTables,
    logit_indices: NDArray[np.int64],  # (N,)
    *,
    num_rope_axes: int,
    page_mass: bool,  # whether a layer of the graph adds it up
) -> dict[str, NDArray[np.generic]]:
    """Every input but the pools."""
    feeds: dict[str, NDArray[np.generic]] = {
        names.INPUTS_EMBEDS: embeds,
        names.POSITION_IDS: tables.position_ids if num_rope_axes > 1 else tables.position_ids[0],
        names.LOGIT_INDICES: logit_indices,
        names.PAGE_TABLE: tables.page_table,
        names.QUERY_STARTS: tables.query_starts,
        names.SLOT_MAPPING: tables.slot_mapping,
        names.KV_LIMITS: tables.kv_limits,
        names.QUERY_INDICES: tables.query_indices,
    }
    if page_mass:
        weights = tables.mass_weights
        if weights is None:
            weights = np.zeros(len(tables.page_table), np.float32)
        feeds[names.MASS_WEIGHTS] = weights
    if tables.cross is not None:
        feeds[names.CROSS_PAGE_TABLE] = tables.cross.page_table
        feeds[names.CROSS_KV_LIMITS] = tables.cross.kv_limits
    return feeds
