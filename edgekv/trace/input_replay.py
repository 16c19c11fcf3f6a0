"""The cross cache's part of a replay: inputs are written, found, let go and given up again.

Owns: a fresh cross cache.
Guarantees: what is compared are the pages that each input takes, and which inputs leave for it, in
    which order. Each has a content of its own, since the log does not say what inputs are.
Does not know: sequences, pictures.
"""

from __future__ import annotations

from edgekv.cache import CrossCache, CrossInput, InputChange
from edgekv.config import KVGeometry
from edgekv.trace.compare import Difference, same
from edgekv.trace.events import Changed


class InputReplay:
    """Plays what became of inputs."""

    def __init__(self, geometry: KVGeometry, num_pages: int) -> None:
        self.num_changes = 0
        self._cache = CrossCache(geometry, num_pages)
        self._cache.observe(self)
        self._inputs: dict[int, CrossInput] = {}  # by first page
        self._logged: list[int] = []  # first pages of inputs that left, by the log
        self._given_up: list[int] = []  # the same, here

    def input_changed(self, how: InputChange, source: CrossInput) -> None:
        """Note which inputs leave here."""
        if how == "given up":
            self._given_up.append(int(source.pages[0]))

    def play(self, event: Changed) -> None:
        """Do what the event says. Raises Difference, or what the cache raises."""
        how, first = event.how, event.pages[0]
        self.num_changes += 1
        if how == "reserved":
            self._reserve(event)
        elif how == "given up":
            self._logged.append(first)
        elif first not in self._inputs:
            raise Difference(f"no input begins with page {first}")
        elif how == "published":
            self._cache.publish(self._inputs[first])
        elif how == "found":
            self._find(self._inputs[first])
        else:
            self._let_go(self._inputs[first], event)

    def _reserve(self, event: Changed) -> None:
        source = self._cache.reserve(str(self.num_changes).encode(), event.num_states)
        same("inputs given up", self._logged, self._given_up)
        for first in self._logged:
            del self._inputs[first]
        self._logged, self._given_up = [], []
        same("pages of an input", event.pages, tuple(source.pages.tolist()))
        self._inputs[event.pages[0]] = source

    def _find(self, source: CrossInput) -> None:
        """Found is what it was, and held once here, however many hold it there."""
        was_held = source.num_holders > 0
        same("the input found", True, self._cache.find(source.key) is source)
        if was_held:
            source.release()

    def _let_go(self, source: CrossInput, event: Changed) -> None:
        source.release()
        if event.how == "withdrawn":
            del self._inputs[event.pages[0]]
