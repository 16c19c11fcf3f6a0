"""``edgekv bench identity``: what is saved by holding once what several sessions have in common.

Twenty sessions with the same instructions watch different pictures; a second session follows a
first one; a picture comes again; questions are asked about one frame. The baseline is the same
model with ``share=False, encoder_cache=0``, in the same run. Beside it stands what finding costs:
the digest of a picture. One thread; times are medians.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from edgekv.bench.report import BenchResult, machine
from edgekv.bundle import Bundle
from edgekv.config import ImageSettings
from edgekv.encoder_cache import picture_digest
from edgekv.inputs import InputEncoder
from edgekv.loading import load
from edgekv.media.preprocess import Preprocessor
from edgekv.model import Model
from edgekv.sampling import SamplingOptions

NUM_SESSIONS = 20
NUM_QUESTIONS = (1, 10, 100)
MAX_DIGEST_SHARE = 0.05  # of a frame's time
_INSTRUCTIONS = "You watch a street. Say what moves. " * 6
_QUESTION = "What do you see?"
_REPEATS = 25

Pixels = NDArray[np.uint8]  # (height, width, 3)


def run(path: Path, *, console: Console) -> BenchResult:
    """Measure on a bundle. Raises BundleError, BudgetError, ExecutorError."""
    bundle = Bundle.open(path)
    if bundle.image is None:
        raise ValueError(f"{bundle.manifest.name} is a text-only model, it takes no frames")
    budget = 1024 * bundle.geometry.page_bytes
    with load(path, kv_budget=budget, num_threads=1) as model:
        figures = _pages(model) | _times(model, bundle.image) | _questions(model)
    with load(path, kv_budget=budget, num_threads=1, share=False, encoder_cache=0) as alone:
        baseline = _pages(alone) | _times(alone, bundle.image)
    figures |= _digests(bundle.image)
    figures["digest_share"] = figures["digest_ms"] / baseline["first_frame_ms"]
    bounds: dict[str, tuple[str, float]] = {
        "digest_share": ("<=", MAX_DIGEST_SHARE),
        "pages_beyond_prefix_and_tails": ("==", 0),
        **{f"encodes_of_{n}_questions": ("==", 1) for n in NUM_QUESTIONS},
        **{f"frame_pages_copied_by_{n}_questions": ("==", 0) for n in NUM_QUESTIONS},
    }
    console.print(f"{bundle.manifest.name}: {NUM_SESSIONS} sessions, one pool")
    return BenchResult("identity", machine(), figures, dict(baseline), bounds)


def _pages(model: Model) -> dict[str, float]:
    """Pages of ``NUM_SESSIONS`` sessions with the same instructions and a frame each."""
    sessions, prefix, tail = [], 0, 0
    for k in range(NUM_SESSIONS):
        sessions.append(model.session(instructions=_INSTRUCTIONS))
        prefix = prefix or sessions[0].stats().pages_live
        before = sessions[0].stats().pages_live
        sessions[k].push(_picture(k), 0.0)
        tail = sessions[0].stats().pages_live - before
    live = sessions[0].stats().pages_live
    for session in sessions:
        session.close()
    return {
        "pages": float(live),
        "pages_beyond_prefix_and_tails": float(live - prefix - NUM_SESSIONS * tail),
    }


def _times(model: Model, image: ImageSettings) -> dict[str, float]:
    """Opening a session and pushing a frame, first and again, and a picture that comes again."""
    opened: list[list[float]] = [[], []]
    pushed: list[list[float]] = [[], []]
    again: list[float] = []
    for k in range(_REPEATS):
        pictures = [_picture(1000 + 2 * k + n, image.height, image.width) for n in range(2)]
        for turn in range(2):  # the same again, by another session
            began = perf_counter()
            with model.session(instructions=f"{k} {_INSTRUCTIONS}") as session:
                opened[turn].append(perf_counter() - began)
                pushed[turn].append(_timed(lambda: session.push(pictures[0], 0.0)))  # noqa: B023
                if turn == 0:
                    session.push(pictures[1], 1.0)
                    again.append(_timed(lambda: session.push(pictures[0], 2.0)))  # noqa: B023
    return {
        "first_session_ms": 1e3 * median(opened[0]),
        "second_session_ms": 1e3 * median(opened[1]),
        "first_frame_ms": 1e3 * median(pushed[0]),
        "same_frame_ms": 1e3 * median(pushed[1]),
        "picture_again_ms": 1e3 * median(again),
    }


def _questions(model: Model) -> dict[str, float]:
    """Encoder runs and copies of a frame's pages while answers are being drawn about it."""
    figures: dict[str, float] = {}
    question = InputEncoder(model.bundle, None).question_ids(_QUESTION, frames=True)
    options = SamplingOptions(max_new_tokens=2)
    pages_for = model.bundle.geometry.pages_for
    own = pages_for(len(question)) + pages_for(options.max_new_tokens - 1)  # and the answer's room
    for count in NUM_QUESTIONS:
        with model.session() as session:
            before = session.stats()
            session.push(_picture(5000 + count), 0.0)
            live = session.stats().pages_live
            answers = [session.ask_iter(_QUESTION, options) for _ in range(count)]
            drawn = session.stats()
            copied = drawn.pages_live - live - count * own
            encodes = drawn.encoder_cache.misses - before.encoder_cache.misses
            figures[f"encodes_of_{count}_questions"] = float(encodes)
            figures[f"frame_pages_copied_by_{count}_questions"] = float(copied)
            del answers
    return figures


def _digests(image: ImageSettings) -> dict[str, float]:
    """The digest that is taken, beside one of a 1080p picture as it was pushed, which is not."""
    preprocess = Preprocessor(image)
    pushed = _picture(0, 1080, 1920)
    values = preprocess(pushed)
    runs: dict[str, Callable[[], object]] = {
        "digest_ms": lambda: picture_digest(values),
        "digest_of_1080p_pixels_ms": lambda: hashlib.sha256(pushed.data).digest(),
        "resize_1080p_ms": lambda: preprocess(pushed),
    }
    return {
        name: 1e3 * median(_timed(work) for _ in range(_REPEATS)) for name, work in runs.items()
    }


def _timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _picture(k: int, height: int = 64, width: int = 64) -> Pixels:
    """Picture number k: noise of its own."""
    return np.random.default_rng(k).integers(0, 256, (height, width, 3), dtype=np.uint8)
