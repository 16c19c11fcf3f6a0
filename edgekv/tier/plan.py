"""What a tier is told, and what its file says of that.

Owns: the user's wishes of a tier and what it needs to know of the model; the fields of a record.
Guarantees: a file whose header does not say just that of this session and model is refused, and so
    is a plan whose frames would take more memory to be found again than there is.
Does not know: records' contents, when something is stored.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from edgekv.checks import path_of, refuse, whole
from edgekv.config import Rotation, format_bytes
from edgekv.errors import TierError
from edgekv.memory import available_bytes
from edgekv.tier.codec import Codec, TierFormat, checked_format
from edgekv.tier.file import FRAME_BYTES, HEADER_BYTES
from edgekv.tier.index import NUM_RUNS, TierIndex, frame_dtype
from edgekv.types import ModelIdentity


@dataclass(frozen=True, slots=True)
class TierPlan:
    """What a tier needs to know of the model and the user's wishes."""

    model: ModelIdentity
    layer: int  # whose keys are summed up
    rotation: Rotation  # of that layer
    max_pages: int  # of a frame
    max_bytes: int
    format: TierFormat


@dataclass(frozen=True, slots=True)
class TierRecord:
    """What a saved session remembers of its tier."""

    path: str  # absolute
    session: str
    max_bytes: int
    format: TierFormat

    def __post_init__(self) -> None:
        path_of(self.path, "path")
        whole(self.max_bytes, "max_bytes", least=1)


def check_path(path: Path) -> None:
    """Raise ValueError for one that a saved session could not name."""
    absolute = str(path_of(path.absolute(), "tier"))
    try:
        absolute.encode()
    except UnicodeEncodeError:
        refuse("tier", "be a path in Unicode, as saved sessions name it", absolute)


def check_owner(path: str | Path, meta: dict[str, object], wanted: dict[str, object]) -> None:
    """Raise TierError unless a file's frames are this session's and this model's."""
    if meta.get("session") != wanted["session"]:
        raise TierError(
            f"{path}: holds the frames of another session, begun there since; a tier file serves "
            "one session: begin anew with a file of its own to store and recall frames again"
        )
    if meta != wanted:
        raise TierError(
            f"{path}: of another model or format; begin a new session to store and recall frames"
        )


def check_memory(path: str | Path, plan: TierPlan, num_slots: int, body_bytes: int) -> None:
    """Raise TierError when what is known of so many frames would not fit the memory."""
    geometry, available = plan.model.geometry, available_bytes()
    needed = TierIndex.num_bytes(geometry, num_slots)
    if available is None or needed <= available // 2:
        return
    fitting = available // 2 // TierIndex.num_bytes(geometry, 1)
    limit = HEADER_BYTES + fitting * (FRAME_BYTES + body_bytes)
    would_do = format_bytes(limit, rounded="down")
    raise TierError(
        f"{path}: to find {num_slots} frames again takes "
        f"{format_bytes(needed, rounded='up')} of memory, "
        f"{format_bytes(available, rounded='down')} are available: a tier of {would_do} would do"
    )


def codec_of(plan: TierPlan) -> Codec:
    """What turns contents of pages into payloads."""
    return Codec(plan.model.geometry, plan.max_pages, plan.format)


def record_dtype(plan: TierPlan, codec: Codec) -> np.dtype[np.void]:
    """The fields of a record: what is known of its frame, its summary, its payload."""
    geometry = plan.model.geometry
    summary = (NUM_RUNS, geometry.num_kv_heads, geometry.head_dim)
    return np.dtype(
        [
            ("frame", frame_dtype(max(geometry.num_rope_axes, 1))),
            ("summary", np.float16, summary),
            ("payload", np.uint8, (codec.payload_bytes,)),
        ]
    )


def meta_of(plan: TierPlan, session: str) -> dict[str, object]:
    """What the header says, as JSON."""
    return {
        "model": asdict(plan.model),
        "session": session,
        "format": checked_format(plan.format),
        "max_pages": plan.max_pages,
        "layer": plan.layer,
        "num_runs": NUM_RUNS,
    }
