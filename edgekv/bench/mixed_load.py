"""Sessions that come, watch, are asked and leave: one load, lived through in pages and in runs.

Owns: the load, and what each way of keeping contexts takes for it and how long taking it takes.
Guarantees: both ways get the same events in the same order; what is timed is the allocator's own
    call; only calls that take something count.
Does not know: figures, machines.

In pages, a context takes pages as it grows and a question shares those of the context it is about.
In runs, a context is one contiguous stretch of slots, as long as it may become, and a question
needs one of its own, with the context in it: so do runtimes that keep a cache per request.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Collection
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from edgekv.bench.rivals import FirstFit
from edgekv.cache import Append, CacheObserver, PageCache, Sequence
from edgekv.config import KVGeometry
from edgekv.types import SegmentKind

PAGE_SIZE = 16
SYSTEM_TOKENS, FRAME_TOKENS = 45, 77
_WINDOW = 32  # frames
_MOST_SESSIONS = 12
_PROMPT_TOKENS, _ANSWER_TOKENS, _TEXT_TOKENS = (8, 60), (2, 40), (4, 200)
_MOST_TOKENS = SYSTEM_TOKENS + _WINDOW * FRAME_TOKENS + _TEXT_TOKENS[1]  # in a context


@dataclass(slots=True, eq=False)
class Context:
    """One session's context, by the events so far."""

    num_frames: int = 0
    extra_tokens: int = 0  # of text

    @property
    def num_tokens(self) -> int:
        return SYSTEM_TOKENS + self.num_frames * FRAME_TOKENS + self.extra_tokens


class _Timed(CacheObserver):
    """Hears what each allocation of pages took."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []

    def planned(self, append: Append, allocation_ns: int) -> None:
        if append.taken.size:
            self.times_ns.append(allocation_ns)


class InPages:
    """Contexts over a page cache."""

    def __init__(self, num_slots: int) -> None:
        self.cache = PageCache(KVGeometry(1, 1, 1, PAGE_SIZE, "float32"), num_slots // PAGE_SIZE)
        self._timed = _Timed()
        self.cache.observe(self._timed)
        self._live: dict[Context, Sequence] = {}
        self.num_refused = 0  # a pool without room raises

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """(n,) nanoseconds each allocation took."""
        return np.array(self._timed.times_ns, np.int64)

    @property
    def used_share(self) -> float:
        """Slots that hold a token, of those taken."""
        return self.cache.utilisation()

    def open(self, context: Context) -> None:
        self._live[context] = self.cache.open()
        self._add(self._live[context], "system", SYSTEM_TOKENS)

    def push(self, context: Context, num_dropped: int) -> None:
        sequence = self._live[context]
        if num_dropped:
            table = sequence.segment_table()
            frames = np.flatnonzero(table.kinds == 1)[:num_dropped]
            sequence.drop(table.ids[frames])
        self._add(sequence, "frame", FRAME_TOKENS)

    def say(self, context: Context, num_tokens: int) -> None:
        sequence = self._live[context]
        table = sequence.segment_table()
        sequence.drop(table.ids[table.kinds == 2])
        self._add(sequence, "text", num_tokens)

    def ask(self, context: Context, num_prompt: int, num_answer: int) -> Callable[[], None]:
        """The question stays open until the returned call."""
        fork = self._live[context].fork()
        self._add(fork, "text", num_prompt)
        for k in range(num_answer):
            self._add(fork, "answer", 1, extend=k > 0)
        return fork.close

    def close(self, context: Context) -> None:
        self._live.pop(context).close()

    def _add(
        self, sequence: Sequence, kind: SegmentKind, num_tokens: int, *, extend: bool = False
    ) -> None:
        sequence.commit(sequence.append(kind, num_tokens, extend=extend))


class InRuns:
    """Contexts in contiguous runs of slots, the first that fits."""

    def __init__(self, num_slots: int) -> None:
        self._slots = FirstFit(num_slots)
        self._live: dict[Context, tuple[int, int]] = {}  # start, size
        self._times_ns: list[int] = []
        self._held: dict[int, tuple[int, int]] = {}  # by start: size, tokens of a question
        self.num_refused = 0

    @property
    def times_ns(self) -> NDArray[np.int64]:
        """(n,) nanoseconds each allocation took."""
        return np.array(self._times_ns, np.int64)

    @property
    def used_share(self) -> float:
        """Slots that hold a token, of those taken."""
        taken = sum(size for _, size in self._live.values())
        used = sum(context.num_tokens for context in self._live)
        taken += sum(size for size, _ in self._held.values())
        used += sum(tokens for _, tokens in self._held.values())
        return used / taken if taken else 1.0

    def open(self, context: Context) -> None:
        start = self._take(_MOST_TOKENS)
        if start is not None:
            self._live[context] = (start, _MOST_TOKENS)

    def push(self, context: Context, num_dropped: int) -> None:
        """Overwrites in place; nothing is allocated."""

    def say(self, context: Context, num_tokens: int) -> None:
        """Its room was taken when the context was opened."""

    def ask(self, context: Context, num_prompt: int, num_answer: int) -> Callable[[], None]:
        """The question stays open until the returned call."""
        size = context.num_tokens + num_prompt + _ANSWER_TOKENS[1]
        start = self._take(size) if context in self._live else None
        if start is None:
            return lambda: None
        self._held[start] = size, context.num_tokens + num_prompt + num_answer

        def done() -> None:
            del self._held[start]
            self._slots.release(start, size)

        return done

    def close(self, context: Context) -> None:
        if context in self._live:
            self._slots.release(*self._live.pop(context))

    def _take(self, size: int) -> int | None:
        began = perf_counter_ns()
        start = self._slots.allocate(size)
        self._times_ns.append(perf_counter_ns() - began)
        self.num_refused += start is None
        return start


class MixedLoad:
    """Random events, the same for all ``ways``."""

    def __init__(self, ways: Collection[InPages | InRuns], seed: int = 0) -> None:
        self._ways = ways
        self._random = random.Random(seed)  # noqa: S311 - to be repeatable, not secret
        self._contexts: list[Context] = []
        self._open_questions: list[tuple[Callable[[], None], ...]] = []

    def live(self, num_events: int) -> list[float]:
        """``num_events`` more; by way, slots that hold a token then, of those taken."""
        for _ in range(num_events):
            self._event()
        return [way.used_share for way in self._ways]

    def _event(self) -> None:
        draw = self._random.random()
        contexts = self._contexts
        if not contexts or (draw < 0.02 and len(contexts) < _MOST_SESSIONS):
            context = Context()
            contexts.append(context)
            for way in self._ways:
                way.open(context)
        elif draw < 0.04:
            context = contexts.pop(self._random.randrange(len(contexts)))
            for way in self._ways:
                way.close(context)
        elif draw < 0.07:
            context = self._random.choice(contexts)
            context.extra_tokens = self._random.randint(*_TEXT_TOKENS)
            for way in self._ways:
                way.say(context, context.extra_tokens)
        elif draw < 0.17:
            self._question()
        else:
            self._frame(self._random.choice(contexts))

    def _frame(self, context: Context) -> None:
        num_dropped = _WINDOW // 8 if context.num_frames == _WINDOW else 0
        for way in self._ways:
            way.push(context, num_dropped)
        context.num_frames += 1 - num_dropped

    def _question(self) -> None:
        """One comes; up to three are open at a time, the oldest ends."""
        context = self._random.choice(self._contexts)
        sizes = self._random.randint(*_PROMPT_TOKENS), self._random.randint(*_ANSWER_TOKENS)
        self._open_questions.append(tuple(way.ask(context, *sizes) for way in self._ways))
        if len(self._open_questions) > 3:
            for done in self._open_questions.pop(0):
                done()
