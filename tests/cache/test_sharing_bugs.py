"""Does the machine find bugs in sharing? Each of these puts one in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from edgekv.cache import Entry, PageAllocator, Sequence, identity
from edgekv.cache.identity import SegmentIndex
from edgekv.cache.planning import Planner
from tests.cache.driver import play
from tests.cache.test_machine import WORLDS, plan_as_if, pretended
from tests.cache.world import World

Patch = Callable[[pytest.MonkeyPatch], None]


def kept_pages_are_written(patch: pytest.MonkeyPatch) -> None:
    def pretend(planner: Planner) -> AbstractContextManager[None]:
        last = planner._layout.table.page_ids[-1:].copy()
        return pretended(planner._pool.allocator.ledger.kept, last, False)

    plan_as_if(pretend, patch)


def the_key_alone_decides(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(identity, "_is", lambda *_: True)


def what_stands_in_front_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    def same(entry: Entry, _: Entry, kind: int, content: bytes) -> bool:
        return (entry.kind, entry.content) == (kind, content)

    patch.setattr(identity, "_is", same)


def what_was_given_up_is_still_found(patch: pytest.MonkeyPatch) -> None:
    def forget(self: SegmentIndex, entry: Entry, gone: list[np.ndarray]) -> None:
        self._allocator.forget(entry.pages)
        gone.append(entry.pages)

    patch.setattr(SegmentIndex, "_forget", forget)


def what_is_behind_a_given_up_segment_stays(patch: pytest.MonkeyPatch) -> None:
    real = SegmentIndex._forget

    def forget(self: SegmentIndex, entry: Entry, gone: list[np.ndarray]) -> None:
        entry.children = []
        real(self, entry, gone)

    patch.setattr(SegmentIndex, "_forget", forget)


def come_back_as_free(operation: str) -> Patch:
    """What ``operation`` leaves cached is free, though the index still knows it."""

    def patched(patch: pytest.MonkeyPatch) -> None:
        real = getattr(PageAllocator, operation)

        def forgetful(self: PageAllocator, what: object) -> None:
            before = self.cached_pages()
            real(self, what)
            self.forget(np.setdiff1d(self.cached_pages(), before))

        patch.setattr(PageAllocator, operation, forgetful)

    patched.__name__ = f"cached_pages_are_free_after_{operation}"
    return patched


def taking_counts_no_reference(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageAllocator, "hold", lambda *_: None)


def stays_findable(name: str) -> Patch:
    """``name`` forgets that the context is not what its contents tell any more."""

    def patched(patch: pytest.MonkeyPatch) -> None:
        real = getattr(Sequence, name)

        def forgetful(self: Sequence, *arguments: Any, **options: Any) -> object:
            before = self._lineage.entry
            result = real(self, *arguments, **options)
            self._lineage.entry = before
            return result

        patch.setattr(Sequence, name, forgetful)

    patched.__name__ = f"findable_after_{name}"
    return patched


BUGS: list[Patch] = [
    kept_pages_are_written,
    the_key_alone_decides,
    what_stands_in_front_is_not_compared,
    what_was_given_up_is_still_found,
    what_is_behind_a_given_up_segment_stays,
    come_back_as_free("release"),
    come_back_as_free("end_step"),
    taking_counts_no_reference,
    stays_findable("drop"),
    stays_findable("truncate"),
    stays_findable("commit"),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_machine_finds_a_bug_in_sharing(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_games() -> None:
        for seed in range(12):
            for world in ("colliding digests", "rope"):
                play(World(**WORLDS[world]), seed, 250)

    bug(monkeypatch)
    with pytest.raises(AssertionError):
        all_games()
