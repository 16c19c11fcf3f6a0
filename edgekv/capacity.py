"""How many frames a session of a bundle can hold, before anything is loaded.

Owns: what of a bundle the arithmetic of ``limits`` needs. Guarantees: the same numbers as a session
that is alone on a pool of so many pages, and the same refusal. Does not know executors or devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.bundle import Bundle
from edgekv.cache import PageCache
from edgekv.config import KVDtype
from edgekv.inputs import InputEncoder
from edgekv.limits import Limits, plan_limits


@dataclass(frozen=True, slots=True)
class Capacity:
    """What bounds one session, and the tokens it comes from."""

    limits: Limits
    start_tokens: int
    frame_tokens: int  # with what a family puts around a picture


def session_capacity(
    bundle: Bundle,
    num_pages: int,
    kv_dtype: KVDtype | None = None,
    *,
    instructions: str | None = None,
) -> Capacity | None:
    """What a session can hold in a pool of ``num_pages``; None for a model whose context holds no
    frames. Raises BudgetError, as opening the session would, where not even one frame fits."""
    if bundle.image is None or bundle.cross is not None:
        return None
    inputs = InputEncoder(bundle, None)
    num_start = len(inputs.start_ids(instructions))
    limits = plan_limits(
        PageCache(bundle.geometry_for(kv_dtype), num_pages),
        num_start=num_start,
        num_frame=inputs.tokens_per_frame,
        max_context_tokens=bundle.manifest.max_context_tokens,
        reserve_tokens=None,
        num_pages=num_pages,
    )
    return Capacity(limits, num_start, inputs.tokens_per_frame)
