"""What the demo model is shown when: kinds of question, lengths of video, parts of the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from demo_training.data import Mix
from edgekv.demo import KINDS, MAX_FRAMES, Kind

_WEIGHTS: Final[dict[Kind, float]] = {  # the kinds that are hard to learn come oftener
    "visible": 2.0,
    "shape": 0.5,
    "colour": 0.8,
    "count": 1.0,
    "list": 1.5,
    "where": 2.0,
    "direction": 1.0,
    "appeared": 2.4,
    "seen": 1.6,
    "first": 0.8,
    "gone": 4.5,
    "caption": 1.4,
}


@dataclass(frozen=True)
class Phase:
    """A part of the training: its end as a share of the whole, and the batches drawn in it."""

    name: str
    end: float
    mixes: tuple[Mix, ...]


def phases(scale: float) -> tuple[Phase, ...]:
    """The curriculum; ``scale`` multiplies the number of sequences in a batch."""

    def mix(sequences: int, frames: int, questions: int, window: int | None = None) -> Mix:
        weights = tuple(_WEIGHTS[k] for k in KINDS)
        return Mix(max(1, round(sequences * scale)), frames, questions, KINDS, weights, window)

    short = (mix(48, 1, 5), mix(24, 3, 8), mix(16, 4, 10))
    middle = (mix(24, 2, 6), mix(12, 6, 12), mix(8, 12, 14), mix(4, 24, 20))
    whole = (mix(32, 1, 5), mix(20, 3, 8), mix(10, 8, 14), mix(4, 24, 28), mix(4, 24, 28))
    stream = (
        mix(20, 3, 8),
        mix(10, 8, 14),
        mix(4, 24, 28),
        mix(2, 48, 44, MAX_FRAMES),
        mix(2, 56, 44, MAX_FRAMES),
    )
    return (
        Phase("vision", 0.05, ()),
        Phase("short", 0.15, short),
        Phase("middle", 0.40, middle),
        Phase("whole", 0.62, whole),
        Phase("stream", 1.0, stream),
    )
