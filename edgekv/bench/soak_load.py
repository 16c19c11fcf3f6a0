"""The life of a model that never rests: what ``edgekv bench soak`` repeats for every frame.

Owns: a live session that stays open, two guests that come and go under every retention rule, and
    when questions, forks, saves and answers nobody reads happen among them.
Guarantees: the same seed plays the same life; the cache's page states are checked, page by page,
    whenever a step begins or ends.
Does not know: how long a soak lasts, what is measured around it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from edgekv.bench.drawn_model import DrawnPictures
from edgekv.cache import Append, CacheObserver, PageCache, Step
from edgekv.cache.invariants import check, check_states
from edgekv.cache.retention import retention_rules
from edgekv.errors import BudgetError, ContextError, OutOfPagesError
from edgekv.latency import LatencyRecord
from edgekv.model import Model
from edgekv.sampling import SamplingOptions
from edgekv.session import Session

FULL_CHECK_EVERY = 50  # frames; page states are checked at every step
_QUESTIONS = ("What do you see?", "Is there a red circle?", "How many squares are there?")
_SHORT = SamplingOptions(max_new_tokens=6)


class PageAudit(CacheObserver):
    """Checks every page's state at each step, and notes how long pages took to get."""

    def __init__(self, cache: PageCache) -> None:
        self._cache = cache
        self.num_checks = 0
        self.allocation = LatencyRecord()
        cache.observe(self)

    def planned(self, append: Append, allocation_ns: int) -> None:  # noqa: ARG002
        self.allocation.add(allocation_ns / 1e9)

    def stepped(self, step: Step) -> None:  # noqa: ARG002
        check_states(self._cache.allocator.snapshot())
        self.num_checks += 1


class SoakLoad:
    """``frame`` pushes one into the live session and lets the rest of the world happen."""

    def __init__(self, model: Model, cache: PageCache, folder: Path, *, seed: int = 0) -> None:
        self._model, self._cache, self._folder = model, cache, folder
        self._random = random.Random(seed)  # noqa: S311 - to be repeatable, not secret
        self._pictures = DrawnPictures(seed=seed)
        self._live = model.session(instructions="You watch a street.")
        self._guests: list[Session | None] = [None, None]
        self._num_guests = 0
        self.num_live_frames = 0
        self.num_frames = 0  # of all sessions and forks together
        self.done: Counter[str] = Counter()
        self.audit = PageAudit(cache)
        # How often each happens, as a share of the frames.
        self._life: list[tuple[float, Callable[[], None]]] = [
            (0.60, self._guest_frame),
            (0.05, self._ask),
            (0.01, self._leave_an_answer_unread),
            (0.01, self._say),
            (0.01, self._fork),
            (0.008, self._guest_comes_or_goes),
            (0.001, self._save_and_restore),
        ]

    def frame(self) -> float:
        """Seconds that the live session took for one more frame; everything else comes after."""
        picture = self._pictures.next()
        began = perf_counter()
        self._live.push(picture, self.num_live_frames / 2)
        took_s = perf_counter() - began
        self.num_frames += 1
        self.num_live_frames += 1
        for share, happen in self._life:
            if self._random.random() < share:
                self._try(happen)
        if self.num_live_frames % FULL_CHECK_EVERY == 0:
            check(self._cache.snapshot())
        return took_s

    def close(self) -> None:
        """Everybody leaves."""
        for session in (self._live, *self._guests):
            if session is not None:
                session.close()
        self._guests = [None, None]
        self._cache.observe(None)

    def _try(self, happen: Callable[[], None]) -> None:
        """A pool that is full may refuse, and says so; anything else is a fault."""
        name = happen.__name__.lstrip("_")
        try:
            happen()
        except (BudgetError, OutOfPagesError, ContextError):
            self.done[f"{name}_refused"] += 1
        else:
            self.done[name] += 1

    def _anybody(self) -> Session:
        here = [guest for guest in self._guests if guest is not None]
        return self._random.choice([self._live, *here])

    def _push(self, session: Session) -> None:
        session.push(self._pictures.next(), max(session.last_time_s, 0.0) + 0.5)
        self.num_frames += 1

    def _guest_frame(self) -> None:
        guest = self._random.choice(self._guests)
        if guest is not None:
            self._push(guest)

    def _ask(self) -> None:
        self._anybody().ask(self._random.choice(_QUESTIONS), _SHORT)

    def _leave_an_answer_unread(self) -> None:
        next(iter(self._anybody().ask_iter(self._random.choice(_QUESTIONS), _SHORT)), None)

    def _say(self) -> None:
        self._anybody().say("It is " + "very " * self._random.randrange(20) + "quiet.")

    def _fork(self) -> None:
        with self._anybody().fork() as fork:
            for _ in range(self._random.randrange(4)):
                self._push(fork)
            fork.ask(self._random.choice(_QUESTIONS), _SHORT)

    def _guest_comes_or_goes(self) -> None:
        place = self._random.randrange(len(self._guests))
        guest = self._guests[place]
        if guest is not None:
            guest.close()
            self._guests[place] = None
            return
        rules = retention_rules()
        self._guests[place] = self._model.session(retain=rules[self._num_guests % len(rules)])
        self._num_guests += 1

    def _save_and_restore(self) -> None:
        session, path = self._anybody(), self._folder / "soak.session"
        # Before: in a full pool, what comes back takes frames from others, this session among them.
        logits = session.logits(_QUESTIONS[0])
        session.save(path)
        with self._model.restore(path) as twin:
            if not np.array_equal(twin.logits(_QUESTIONS[0]), logits):
                raise AssertionError("a restored session answers otherwise than the saved one")
