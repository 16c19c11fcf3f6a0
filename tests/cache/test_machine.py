"""Random operations on the whole cache, against a naive model, everything checked after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgekv.cache import Append, PageAllocator, Sequence
from edgekv.cache import step as step_module
from edgekv.cache.layout import Layout
from edgekv.cache.planning import Planner
from edgekv.cache.reserve import Reserve
from edgekv.cache.retention import Window
from edgekv.cache.segments import SegmentTable
from edgekv.cache.table import ID, SHIFT, PageTable
from edgekv.types import StepTables
from tests.cache.driver import OPERATIONS, play
from tests.cache.world import World

WORLDS: dict[str, dict[str, int]] = {
    "rope": {"num_axes": 1},
    "m-rope": {"num_axes": 3},
    "no rotation": {"num_axes": 0},
    "one token a page": {"num_axes": 1, "page_size": 1, "num_pages": 40, "max_pages": 30},
    "tiny pool": {"num_axes": 1, "num_pages": 5, "max_pages": 5},
    "colliding digests": {"num_axes": 1, "digest_bits": 3},
}
NUM_GAMES, NUM_OPERATIONS = 8, 500  # for each of the six worlds: 24,000 operations


@pytest.mark.parametrize("world", WORLDS)
def test_the_cache_agrees_with_the_naive_model(world: str) -> None:
    done, num_found, num_given_up = Counter[str](), 0, 0
    for seed in range(NUM_GAMES):
        played = World(**WORLDS[world])
        done += play(played, seed, NUM_OPERATIONS)
        num_found += played.num_found
        num_given_up += played.cache.index.counts.given_up
    assert done.total() == NUM_GAMES * NUM_OPERATIONS
    assert min(num_found, num_given_up) >= 20, "segments must be found, and given up"
    rarest = min(OPERATIONS, key=lambda name: done[name])
    assert done[rarest] >= 20, f"{rarest} was hardly played: {done}"


WORD = st.integers(0, 2**16 - 1)


class Machine(RuleBasedStateMachine):
    """The same world, played by Hypothesis, which shrinks what it finds."""

    @initialize(
        num_axes=st.sampled_from([0, 1, 3]),
        page_size=st.sampled_from([1, 2, 4]),
        digest_bits=st.sampled_from([2, 256]),
    )
    def start(self, num_axes: int, page_size: int, digest_bits: int) -> None:
        self.world = World(
            num_pages=12,
            max_pages=10,
            num_axes=num_axes,
            page_size=page_size,
            digest_bits=digest_bits,
        )

    @rule(name=st.sampled_from(sorted(OPERATIONS)), arguments=st.tuples(WORD, WORD, WORD, WORD))
    def operate(self, name: str, arguments: tuple[int, int, int, int]) -> None:
        getattr(self.world, name)(*arguments)

    @invariant()
    def everything_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


# -- does the machine find bugs? Each of these puts one in. ----------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def leak_on_abort(patch: pytest.MonkeyPatch) -> None:
    def abort(self: Sequence, append: Append) -> None:
        append.state = "aborted"
        self._pending = None

    patch.setattr(Sequence, "abort", abort)


def fork_holds_no_pages(patch: pytest.MonkeyPatch) -> None:
    """Closing the fork then frees its parent's pages, and closing the parent frees them again."""
    patch.setattr(PageAllocator, "retain", lambda *_: None)


def copy_the_wrong_page(patch: pytest.MonkeyPatch) -> None:
    def copies(self: Append) -> np.ndarray:
        first = self.sequence.table.page_ids[0]
        return np.array([[first, self.copy_page]] * (self.copy_page >= 0), np.int32).reshape(-1, 2)

    patch.setattr(Append, "copies", property(copies))


Pretend = Callable[[Planner], AbstractContextManager[None]]


def plan_as_if(pretend: Pretend, patch: pytest.MonkeyPatch) -> None:
    """Appends are planned, and their pages counted, while something is pretended."""
    for name in ("plan", "pages_needed"):
        real = getattr(Planner, name)

        def planned(self: Planner, *arguments: Any, real: Any = real, **options: Any) -> Any:
            with pretend(self):
                return real(self, *arguments, **options)

        patch.setattr(Planner, name, planned)


@contextmanager
def pretended(array: np.ndarray, where: Any, value: Any) -> Iterator[None]:
    before = array[where].copy()
    array[where] = value
    try:
        yield
    finally:
        array[where] = before


def write_into_a_shared_page(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def pretend(planner: Planner) -> Iterator[None]:
        ledger, last = planner._pool.allocator.ledger, planner._layout.table.page_ids[-1:].copy()
        alone = ((ledger.refs, 1), (ledger.fences, 0), (ledger.kept, False))
        with ExitStack() as stack:
            for array, value in alone:
                stack.enter_context(pretended(array, last, value))
            yield

    plan_as_if(pretend, patch)


def copied_page_is_not_released(patch: pytest.MonkeyPatch) -> None:
    real = Sequence.commit

    def commit(self: Sequence, append: Append) -> None:
        if append.copy_page >= 0:
            self._pool.allocator.retain(self.table.page_ids[-1:])
        real(self, append)

    patch.setattr(Sequence, "commit", commit)


def drop_moves(how_many: Callable[[np.ndarray], np.ndarray], patch: pytest.MonkeyPatch) -> None:
    """Of the pages whose shift a drop lowers, only those that ``how_many`` leaves in are."""
    real = Layout.drop

    def drop(self: Layout, ids: np.ndarray) -> np.ndarray:
        before = {row[ID]: row.copy() for row in self.table.rows}
        released = real(self, ids)
        moved = [k for k, row in enumerate(self.table.rows) if (row != before[row[ID]]).any()]
        for k in set(moved) - set(how_many(np.array(moved)).tolist()):
            self.table.rows[k] = before[self.table.rows[k, ID]]
        return released

    patch.setattr(Layout, "drop", drop)


def later_pages_keep_their_shift(patch: pytest.MonkeyPatch) -> None:
    drop_moves(lambda moved: moved[:0], patch)


def only_the_next_page_moves(patch: pytest.MonkeyPatch) -> None:
    drop_moves(lambda moved: moved[:1], patch)


def extend_a_page_that_has_moved(patch: pytest.MonkeyPatch) -> None:
    def pretend(planner: Planner) -> AbstractContextManager[None]:
        table = planner._layout.table
        shifts = (table.num_pages - 1, slice(SHIFT, SHIFT + table.num_axes))
        return pretended(table.memory, shifts, 0)

    plan_as_if(pretend, patch)


def reuse_pages_in_flight(patch: pytest.MonkeyPatch) -> None:
    real = PageAllocator.release

    def release(self: PageAllocator, pages: np.ndarray) -> None:
        fences = self.ledger.fences
        before = fences.copy()
        fences[:] = 0
        real(self, pages)
        fences[:] = before

    patch.setattr(PageAllocator, "release", release)


def evict_the_newest(patch: pytest.MonkeyPatch) -> None:
    def choose(_: Window, segments: SegmentTable, num_pages: int) -> np.ndarray:
        given_back = np.cumsum(segments.num_pages[::-1])
        count = int(np.searchsorted(given_back, num_pages)) + 1
        return np.arange(len(segments) - count, len(segments))

    patch.setattr(Window, "choose", choose)


def tables_share_one_buffer(patch: pytest.MonkeyPatch) -> None:
    """The next step's tables overwrite those of a step that has not run yet."""
    real, buffer = step_module.build_tables, np.zeros(4096, np.int32)

    def build(*arguments: Any) -> StepTables:
        tables = real(*arguments)
        slots = buffer[: tables.slot_mapping.size]
        slots[:] = tables.slot_mapping
        return replace(tables, slot_mapping=slots)

    patch.setattr(step_module, "build_tables", build)


def truncate_forgets_the_valid_count(patch: pytest.MonkeyPatch) -> None:
    real = Layout.truncate

    def truncate(self: Layout, num_tokens: int) -> np.ndarray:
        valid = self.table.valid.copy()
        released = real(self, num_tokens)
        self.table.valid[:] = valid[: self.table.num_pages]
        return released

    patch.setattr(Layout, "truncate", truncate)


def what_comes_back_moves_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PageTable, "place", lambda *_: None)


def abort_forgets_the_reserve(patch: pytest.MonkeyPatch) -> None:
    real = Sequence.abort

    def abort(self: Sequence, append: Append) -> None:
        append.num_reserved = 0
        real(self, append)

    patch.setattr(Sequence, "abort", abort)


def draw_what_a_step_still_uses(patch: pytest.MonkeyPatch) -> None:
    def pretend(planner: Planner) -> AbstractContextManager[None]:
        return pretended(planner._pool.allocator.ledger.fences, planner._reserve.pages, 0)

    plan_as_if(pretend, patch)


def reserve_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reserve, "empty", lambda self: self.pages[:0])


def reserve_is_drawn_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reserve, "draw", lambda *_: None)


BUGS: list[Patch] = [
    leak_on_abort,
    fork_holds_no_pages,
    copy_the_wrong_page,
    write_into_a_shared_page,
    copied_page_is_not_released,
    later_pages_keep_their_shift,
    only_the_next_page_moves,
    extend_a_page_that_has_moved,
    reuse_pages_in_flight,
    evict_the_newest,
    tables_share_one_buffer,
    truncate_forgets_the_valid_count,
    what_comes_back_moves_nothing,
    abort_forgets_the_reserve,
    draw_what_a_step_still_uses,
    reserve_is_not_given_back,
    reserve_is_drawn_twice,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_machine_finds_a_seeded_bug(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_games() -> None:
        for seed in range(NUM_GAMES):
            play(World(**WORLDS["rope"]), seed, NUM_OPERATIONS)

    bug(monkeypatch)
    with pytest.raises(AssertionError):
        all_games()
