"""Who holds which page of a pool, and what each page has shown since when.

Owns: references, tokens and the open stretch of every page, steps in flight, cached pages.
Guarantees: a page that several hold is counted once and shown until the last one lets go; one that
    is taken twice or given back twice is a ValueError. Does not know: sequences, events, pictures.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgekv.trace.lives import CACHED, Lives, Spans


class Holders:
    """The pages of one pool, from all free on."""

    def __init__(self, num_pages: int, page_size: int, lives: Lives) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.spans = Spans()
        self.num_free = num_pages
        self.num_in_flight = 0
        self.num_tokens = 0  # in pages that are held
        self._lives = lives
        self._refs = [0] * num_pages
        self._valid = [0] * num_pages
        self._span = [-1] * num_pages  # the page's open span
        self._steps: dict[int, list[int]] = {}  # pages, by step
        self._waiting: set[int] = set()  # pages in flight
        self._kept: set[int] = set()  # pages that can be found
        self._cached: set[int] = set()  # those that nobody holds
        self._cached_life = -1  # the one life of all cached pages, made when there is the first

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Pages held or in flight."""
        return self.num_pages - self.num_free - len(self._cached)

    def is_held(self, page: int) -> bool:
        """Whether somebody holds it."""
        return self._refs[page] > 0

    def is_shown(self, page: int) -> bool:
        """Whether what it holds has not left: it is held, or in flight."""
        return self._refs[page] > 0 or page in self._waiting

    def life(self, page: int) -> int:
        """The segment that a page shows; -1 = none was ever shown."""
        span = self._span[page]
        return self.spans.life[span] if span >= 0 else -1

    def tokens(self, page: int) -> int:
        """Tokens in a page."""
        return self._valid[page]

    def take(self, page: int, life: int, now: int) -> None:
        """Somebody holds a free page, which shows ``life`` from now on."""
        self._take(page)
        self.show(page, life, now)

    def reserve(self, pages: Iterable[int]) -> None:
        """Somebody holds free pages, which show nothing yet."""
        for page in pages:
            self._take(page)
            self._span[page] = -1

    def show(self, page: int, life: int, now: int) -> None:
        """A page that is held shows ``life`` from now on."""
        self._span[page] = self.spans.begin(page, life, now)

    def hide(self, page: int, now: int) -> None:
        """A page that is held shows nothing any more."""
        self.spans.to_us[self._span[page]], self._span[page] = now, -1

    def share(self, page: int) -> None:
        """One more holder of a page that is held."""
        self._refs[page] += 1

    def revive(self, page: int, life: int, now: int) -> None:
        """Somebody holds a page again that nobody held."""
        self._refs[page] = 1
        if page in self._waiting:
            self._waiting.discard(page)
            self.num_in_flight -= 1
        elif page in self._cached:
            self._cached.discard(page)
            self.spans.to_us[self._span[page]] = now
            self.show(page, life, now)
        else:
            raise ValueError(f"page {page} is found, but it is free")

    def fill(self, page: int, num_tokens: int) -> None:
        """So many more tokens are in a page; fewer for a negative number."""
        self._valid[page] += num_tokens
        self.num_tokens += num_tokens

    def release(self, pages: Iterable[int], now: int) -> None:
        """One holder less of each page."""
        for page in pages:
            self._refs[page] -= 1
            if self._refs[page] > 0:
                continue
            if self._refs[page] < 0:
                raise ValueError(f"page {page} is given back twice")
            self.num_tokens -= self._valid[page]
            self._valid[page] = 0
            if self._steps and any(page in used for used in self._steps.values()):
                self._waiting.add(page)
                self.num_in_flight += 1
            else:
                self._free(page, now)

    def keep(self, pages: Iterable[int], now: int) -> None:
        """Pages can be found from now on. Those that nobody holds were there before the log."""
        for page in pages:
            self._kept.add(page)
            if not self._refs[page] and page not in self._cached:
                self.num_free -= 1
                self._cache(page, now)

    def give_up(self, pages: Iterable[int], now: int) -> None:
        """Pages cannot be found any more; those that nobody holds are free."""
        for page in pages:
            self._kept.discard(page)
            if page in self._cached:
                self._cached.discard(page)
                self.spans.to_us[self._span[page]] = now
                self.num_free += 1

    def begin_step(self, step: int, pages: list[int]) -> None:
        """A step uses pages: whoever lets go of them, they are not free before it ends."""
        self._steps[step] = pages

    def end_step(self, step: int, now: int) -> None:
        """The step does not use its pages any more."""
        pages = self._steps.pop(step)
        for page in self._waiting.intersection(pages):
            if not any(page in others for others in self._steps.values()):
                self._waiting.discard(page)
                self.num_in_flight -= 1
                self._free(page, now)

    def finish(self, now: int) -> None:
        """Close what is still open at the end of the log."""
        for page, span in enumerate(self._span):
            if span >= 0 and (self.is_shown(page) or page in self._cached):
                self.spans.to_us[span] = now

    def _take(self, page: int) -> None:
        if self._refs[page] or page in self._cached:
            raise ValueError(f"page {page} is taken twice")
        self._refs[page] = 1
        self.num_free -= 1

    def _free(self, page: int, now: int) -> None:
        if self._span[page] >= 0:  # one that was reserved and never drawn shows nothing
            self.spans.to_us[self._span[page]] = now
        if page in self._kept:
            self._cache(page, now)
        else:
            self.num_free += 1

    def _cache(self, page: int, now: int) -> None:
        if self._cached_life < 0:
            self._cached_life = self._lives.add(CACHED, -1, -1, float("nan"), now)
        self._cached.add(page)
        self.show(page, self._cached_life, now)
