"""What became of each input of cross-attention: the timeline of the cross pools.

Guarantees: an input that is let go and found again has one life, and its pages show when somebody
    held it. Does not know: sequences, pictures.
"""

from __future__ import annotations

from edgekv.config import KVGeometry
from edgekv.trace.events import Changed
from edgekv.trace.holders import Holders
from edgekv.trace.lives import ABORTED, DROPPED, INPUT, Lives, Lookups

_HOLDER = 0  # the log does not say which session looks at an input


class InputLives:
    """Feed it every change of an input, then read its columns."""

    def __init__(self, geometry: KVGeometry, num_pages: int) -> None:
        self.page_bytes = geometry.page_bytes
        self.lives = Lives()
        self.holders = Holders(num_pages, geometry.page_size, self.lives)
        self.num_given_up = 0
        self.lookups = Lookups()
        self._inputs: dict[int, tuple[tuple[int, ...], int]] = {}  # pages and life, by first page

    def feed(self, event: Changed) -> None:
        """Take in the next change. ValueError, KeyError or IndexError when it cannot be."""
        if event.how == "reserved" or event.how.startswith("carried"):
            self._come(event)
            return
        (pages, life), now = self._inputs[event.pages[0]], event.at_us
        if event.how == "published":
            self.lookups.note(now, found=False)
            self.holders.keep(pages, now)
        elif event.how == "found":
            self.lookups.note(now, found=True)
            if not self.holders.is_held(pages[0]):
                for page in pages:
                    self.holders.revive(page, life, _HOLDER, now)
        elif event.how == "given up":
            self.num_given_up += 1
            self.holders.give_up(pages, now)
            self._end(event, DROPPED)
        else:
            self.holders.release(pages, _HOLDER, now)
            if event.how == "withdrawn":
                self._end(event, ABORTED)

    def _come(self, event: Changed) -> None:
        now, pages = event.at_us, event.pages
        life = self.lives.add(INPUT, -1, -1, float("nan"), now)
        self.lives.num_tokens[life], self.lives.num_pages[life] = event.num_states, len(pages)
        self._inputs[pages[0]] = pages, life
        for page in pages:
            self.holders.take(page, life, _HOLDER, now)
        if event.how == "reserved":
            return
        self.holders.keep(pages, now)
        if event.how == "carried cached":
            self.holders.release(pages, _HOLDER, now)

    def _end(self, event: Changed, end: int) -> None:
        _, life = self._inputs.pop(event.pages[0])
        self.lives.leave(life, event.at_us, end)
