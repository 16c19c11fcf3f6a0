"""Who holds which page of a pool, and what each page has shown since when.

Owns: references, tokens and the open stretch of every page, steps in flight, cached pages.
Guarantees: a page that several hold is counted once and shown until the last one lets go; one that
    is taken twice or given back twice is a ValueError. A holder is a number, and may hold a page
    several times, as a session does whose questions share it.
Does not know: sequences, events, pictures.
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
        self.sets: list[tuple[int, ...]] = [()]  # of holders, by the number that a span has
        self.num_free = num_pages
        self.num_in_flight = 0
        self.num_tokens = 0  # in pages that are held
        self._lives = lives
        self._set_numbers: dict[tuple[int, ...], int] = {(): 0}
        self._held: dict[int, dict[int, int]] = {}  # how often, by holder, by page
        self._valid = [0] * num_pages
        self._span = [-1] * num_pages  # the page's last span
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

    def holding(self, page: int) -> tuple[int, ...]:
        """Those who hold it."""
        return tuple(self._held.get(page, ()))

    def is_held(self, page: int) -> bool:
        """Whether somebody holds it."""
        return page in self._held

    def is_shown(self, page: int) -> bool:
        """Whether what it holds has not left: it is held, or in flight."""
        return page in self._held or page in self._waiting

    def life(self, page: int) -> int:
        """The segment that a page shows; -1 = none was ever shown."""
        span = self._span[page]
        return self.spans.life[span] if span >= 0 else -1

    def tokens(self, page: int) -> int:
        """Tokens in a page."""
        return self._valid[page]

    def take(self, page: int, life: int, holder: int, now: int) -> None:
        """Somebody holds a free page, which shows ``life`` from now on."""
        if page in self._held or page in self._cached:
            raise ValueError(f"page {page} is taken twice")
        self._held[page] = {holder: 1}
        self.num_free -= 1
        self.show(page, life, now)

    def show(self, page: int, life: int, now: int) -> None:
        """A page shows ``life`` from now on, for those who hold it."""
        number, last = self._set_number(page), self._span[page]
        if last >= 0 and self.spans.to_us[last] < 0:
            if self.spans.from_us[last] == now and self.spans.life[last] == life:
                self.spans.holders[last] = number
                return
            self.spans.to_us[last] = now
        self._span[page] = self.spans.begin(page, life, number, now)

    def share(self, page: int, holder: int, now: int) -> None:
        """A page that is held is held once more."""
        holders = self._held[page]
        holders[holder] = holders.get(holder, 0) + 1
        if holders[holder] == 1:
            self.show(page, self.life(page), now)

    def revive(self, page: int, life: int, holder: int, now: int) -> None:
        """Somebody holds a page again that nobody held."""
        if page in self._waiting:
            self._waiting.discard(page)
            self.num_in_flight -= 1
        elif page in self._cached:
            self._cached.discard(page)
        else:
            raise ValueError(f"page {page} is found, but it is free")
        self._held[page] = {holder: 1}
        self.show(page, life, now)

    def fill(self, page: int, num_tokens: int) -> None:
        """So many more tokens are in a page; fewer for a negative number."""
        self._valid[page] += num_tokens
        self.num_tokens += num_tokens

    def release(self, pages: Iterable[int], holder: int, now: int) -> None:
        """Each page is held once less."""
        for page in pages:
            holders = self._held.get(page, {})
            if holder not in holders:
                raise ValueError(f"page {page} is given back twice")
            holders[holder] -= 1
            if holders[holder]:
                continue
            del holders[holder]
            if holders:
                self.show(page, self.life(page), now)
            else:
                self._let_go(page, now)

    def keep(self, pages: Iterable[int], now: int) -> None:
        """Pages can be found from now on. Those that nobody holds were there before the log."""
        for page in pages:
            self._kept.add(page)
            if page not in self._held and page not in self._cached:
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

    def _set_number(self, page: int) -> int:
        """The number of the set of those who hold a page."""
        held = tuple(sorted(self._held.get(page, ())))
        number = self._set_numbers.setdefault(held, len(self.sets))
        if number == len(self.sets):
            self.sets.append(held)
        return number

    def _let_go(self, page: int, now: int) -> None:
        del self._held[page]
        self.num_tokens -= self._valid[page]
        self._valid[page] = 0
        if any(page in used for used in self._steps.values()):
            self._waiting.add(page)
            self.num_in_flight += 1
            self.show(page, self.life(page), now)
        else:
            self._free(page, now)

    def _free(self, page: int, now: int) -> None:
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
