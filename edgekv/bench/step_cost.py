"""What the host does around the steps of a model, timed inside pushes and answers.

Timed there, because between two runs of a model the same lines take several times as long as in a
loop of their own (``frame_life``): the model has taken the processor's caches. Processor time of
this thread, which does all of it; the calls are timed from outside, so that what they are made of
may change.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import edgekv
from edgekv.cache import PageCache, Sequence, Step
from edgekv.demo.needles import needle_streams

_CALLS = {"append": (Sequence, "append"), "begin": (PageCache, "begin_step")}
_CALLS |= {"commit": (Step, "commit")}
_QUESTION, _ASKED_EVERY = "What is happening?", 4  # frames
_NUM_FRAMES = 150


def step_costs(model: edgekv.Model, *, num_frames: int = _NUM_FRAMES) -> dict[str, float]:
    """Medians over ``num_frames`` pushes, and the pieces of the answers between them, without the
    first quarter of each: microseconds that appends, the beginning of steps and their commits took
    in each, and all together, ``push_append_us``, …, ``piece_total_us``."""
    times: dict[str, list[Counter[str]]] = {"push": [], "piece": []}
    (stream,) = needle_streams(1, num_frames)
    with model.session() as session, _timed() as spent:
        for k, pixels in enumerate(stream.clip.frames):
            with _noted(spent, times["push"]):
                session.push(pixels, k / 2)
            if (k + 1) % _ASKED_EVERY:
                continue
            answer = session.ask_iter(_QUESTION)
            next(answer, None)  # the question itself
            more = True
            while more:
                with _noted(spent, times["piece"]):
                    more = next(answer, None) is not None
    figures = {}
    for what, rows in times.items():
        for name in (*_CALLS, "total"):
            warm = [row[name] for row in rows[len(rows) // 4 :]]
            figures[f"{what}_{name}_us"] = float(np.median(warm)) / 1e3
    return figures


@contextmanager
def _noted(spent: Counter[str], rows: list[Counter[str]]) -> Iterator[None]:
    """A row of what was spent in the block, by call, if any was."""
    spent.clear()
    began = time.thread_time_ns()
    yield
    total = time.thread_time_ns() - began
    if spent:
        row = Counter(spent)
        row["total"] = total
        rows.append(row)


@contextmanager
def _timed() -> Iterator[Counter[str]]:
    """Nanoseconds spent in each of the calls, while in the block."""
    spent: Counter[str] = Counter()
    real = {name: getattr(*call) for name, call in _CALLS.items()}

    def timed(name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time_ns()
            result = real[name](*arguments, **options)
            spent[name] += time.thread_time_ns() - began
            return result

        return call

    for name, (owner, method) in _CALLS.items():
        setattr(owner, method, timed(name))
    try:
        yield spent
    finally:
        for name, (owner, method) in _CALLS.items():
            setattr(owner, method, real[name])
