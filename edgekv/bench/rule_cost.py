"""What each retention rule adds to a frame, timed inside the pushes themselves.

Counted is everything that makes room: finding out that something must leave, what the rule reads
and how it chooses, holding what leaves until the frame is in, dropping it. A context without a
rule, which never has to let anything leave, finds out that it does not: what that takes is measured
too, and taken off.

Timed within ``push``, because between two runs of a model the same lines take several times as long
as in a loop of their own: the model has taken the processor's caches. Processor time of this
thread, which does all of it: on a busy machine a long step waits more often than a short one, and
the share would come out too small. No picture comes twice, for one that did would not be encoded.

Frames that make others leave and frames that do not are two kinds, each counted as often as it
comes; of each, and of ``push``, the tenth percentile, as other work only adds to it. Of several
rounds over all rules the median counts: the machine's speed comes and goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgekv
from edgekv.cache.retention import retention_rules
from edgekv.demo import MAX_FRAMES
from edgekv.demo.needles import needle_streams

_NUM_ROUNDS = 5
_NUM_TIMED = 192  # frames, of a rule in a round
_NUM_WARM = 3 * MAX_FRAMES
_STREAM_FRAMES = 8 * MAX_FRAMES
_NUM_WITHOUT = 4  # contexts without a rule, each watched until it is nearly full
_PER_CONTEXT = MAX_FRAMES - 2  # frames of such a context


class _Clock:
    """Adds up the processor time of what it stands around."""

    def __init__(self) -> None:
        self.spent_ns = 0

    def around(
        self, manager: Callable[..., AbstractContextManager[None]]
    ) -> Callable[..., AbstractContextManager[None]]:
        """``manager``, timed but for its block, which must not fail."""

        @contextmanager
        def timed(*arguments: Any, **options: Any) -> Iterator[None]:
            began = time.thread_time_ns()
            inner = manager(*arguments, **options)
            inner.__enter__()
            self.spent_ns += time.thread_time_ns() - began
            yield
            began = time.thread_time_ns()
            inner.__exit__(None, None, None)
            self.spent_ns += time.thread_time_ns() - began

        return timed


def rule_costs(
    model: edgekv.Model, *, num_timed: int = _NUM_TIMED, num_rounds: int = _NUM_ROUNDS
) -> dict[str, float]:
    """Figures of every rule, medians over rounds of ``num_timed`` frames each, times in
    milliseconds of processor time.

    ``RULE_cost_ms`` a frame, ``RULE_push_ms`` and ``RULE_cost_percent`` of it; what it is made of,
    ``RULE_batch_ms`` and ``RULE_batch_frames``, and ``RULE_without_ms``, which is taken off.
    """
    rules = retention_rules()
    of_a_rule = _NUM_WITHOUT * _PER_CONTEXT + _NUM_WARM + num_timed
    streams = needle_streams(
        -(-num_rounds * len(rules) * of_a_rule // _STREAM_FRAMES), _STREAM_FRAMES
    )
    frames = chain.from_iterable(stream.clip.frames for stream in streams)
    rounds: list[dict[str, float]] = []
    for _ in range(num_rounds):
        rounds.append({})
        for rule in rules:
            figures = _figures(model, rule, frames, num_timed)
            rounds[-1] |= {f"{rule}_{name}": figure for name, figure in figures.items()}
    return {key: median(figures[key] for figures in rounds) for key in rounds[0]}


def _figures(
    model: edgekv.Model, rule: str, frames: Iterator[NDArray[np.uint8]], num_timed: int
) -> dict[str, float]:
    """One round of one rule."""
    half = _NUM_WITHOUT // 2
    # Half before and half after, so that what else runs on the machine weighs on both alike.
    without = [_watch(model, "keep", islice(frames, _PER_CONTEXT)) for _ in range(half)]
    watched = _watch(model, rule, islice(frames, _NUM_WARM + num_timed))[_NUM_WARM:]
    without += [_watch(model, "keep", islice(frames, _PER_CONTEXT)) for _ in range(half)]
    without_ms = float(np.percentile(np.concatenate(without)[:, 1], 10))
    num_gone, spent, push = watched.T
    busy, push_ms = num_gone > 0, float(np.percentile(push, 10))
    batch_ms, idle_ms = (float(np.percentile(spent[kind], 10)) for kind in (busy, ~busy))
    share = float(busy.mean())
    cost_ms = batch_ms * share + idle_ms * (1 - share) - without_ms
    return {
        "cost_ms": cost_ms,
        "without_ms": without_ms,
        "batch_ms": batch_ms,
        "batch_frames": float(num_gone[busy].mean()),
        "push_ms": push_ms,
        "cost_percent": 100 * cost_ms / push_ms,
    }


def _watch(
    model: edgekv.Model, retain: str, frames: Iterator[NDArray[np.uint8]]
) -> NDArray[np.float64]:
    """(n, 3) of each frame: how many left for it, milliseconds that room took, and ``push``."""
    clock, rows = _Clock(), []
    with model.session(retain=retain) as session:
        runner, record = session._live.runner, session._live.record
        sharing = runner.sharing
        sharing.room = clock.around(sharing.room)  # type: ignore[assignment, method-assign]
        try:
            for k, pixels in enumerate(frames):
                clock.spent_ns, num_before = 0, record.num_evicted_frames
                began = time.thread_time_ns()
                session.push(pixels, k / 2)
                push_ns = time.thread_time_ns() - began
                num_gone = record.num_evicted_frames - num_before
                rows.append((num_gone, clock.spent_ns / 1e6, push_ns / 1e6))
        finally:
            del sharing.room
    return np.array(rows)
