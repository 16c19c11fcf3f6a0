"""What models that look and hear by cross-attention are shown, and what they must say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import edgekv
from edgekv import SamplingOptions
from edgekv.cache import CrossCounts
from tests.session.cross_bundle import Reference

SHORT = SamplingOptions(max_new_tokens=6)
QUESTION = "What?"
SIZES = ((4, 4), (3, 9), (12, 5), (8, 8))  # one tile, two side by side, two stacked, one
START = "<s>You watch.</s>"
PICTURES, SOUNDS = Reference("pictures"), Reference("sounds")


def picture(k: int) -> NDArray[np.uint8]:
    return np.random.default_rng(k).integers(0, 256, (*SIZES[k % 4], 3), np.uint8)


def sound(k: int) -> NDArray[np.float32]:
    return np.random.default_rng(k).normal(0, 0.3, 500 + 400 * k).astype(np.float32)


def cross(session: edgekv.Session) -> CrossCounts:
    counts = session.stats().cross
    assert counts is not None
    assert counts.live + counts.cached + counts.free == counts.num_pages
    return counts


def asked(session: edgekv.Session, question: str = QUESTION) -> tuple[int, ...]:
    return session.ask(question, SHORT).token_ids


def told(k: int, question: str = QUESTION) -> tuple[int, ...]:
    """What the model must say about picture k."""
    states = PICTURES.states(picture(k))
    return PICTURES.answer([(START, None), (f"<|image|>{question}</s>", states)], 6)


def heard(k: int, task: str = "<|task|>") -> tuple[int, ...]:
    return SOUNDS.answer([(f"<|start|>{task}", SOUNDS.states(sound(k)))], 6)


def watch(model: edgekv.Model) -> edgekv.Session:
    return model.session(instructions="You watch.", retain="window")
