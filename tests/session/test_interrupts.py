"""Signals at any moment of any operation: nothing is lost, nothing is half changed."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

import edgekv
from edgekv import SamplingOptions
from edgekv.tier.store import Tier
from tests.session.helpers import QUESTION, Picture, load_pages
from tests.waiting import in_another_thread

SHORT = SamplingOptions(max_new_tokens=3)
NUM_FRAMES = 10  # more than the pool holds beside a question
NUM_MOMENTS = 16  # of each operation
NUMBERS = count(10_000)  # of as many tokens each
PACKAGE = str(Path(edgekv.__file__).parent)


@pytest.fixture(scope="module")
def small(bundle_path: Path) -> Iterator[edgekv.Model]:
    """A pool for eight frames and a question."""
    with load_pages(bundle_path, 14) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    """As in a program that a shell runs; one that it runs in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def with_signal_at(moment: int, operation: Callable[[], object]) -> int:
    """Run ``operation`` and raise SIGINT at the so many-th place where Python, in this package,
    looks for signals; how many such places it came to."""
    seen = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            seen += 1
            if seen == moment:
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(count)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return seen


def moments(num_places: int) -> list[int]:
    return sorted({1 + k * num_places // NUM_MOMENTS for k in range(NUM_MOMENTS)} | {num_places})


class Stream:
    """A session, and whatever an operation on it makes."""

    def __init__(self, model: edgekv.Model, picture: Picture, path: Path) -> None:
        self.model = model
        self.path = path
        self.pictures = [picture(k) for k in range(NUM_FRAMES + 1)]
        self.made: list[edgekv.Session] = []
        self.pieces: Iterator[str] | None = None
        with pytest.MonkeyPatch.context() as patch:  # its disk is measured when it is restored
            patch.setattr(Tier, "time_reading", lambda *_: 1e-9)
            self.session = model.session(
                reserve_tokens=64, tier=path / "tier", tier_limit="1MiB", tier_format="exact"
            )
        for k in range(NUM_FRAMES):
            self.session.push(self.pictures[k], float(k))

    def __enter__(self) -> Stream:
        return self

    def push(self) -> None:
        self.session.push(self.pictures[-1], 100.0)

    def say(self) -> None:
        self.session.say("It is night.")

    def ask(self) -> None:
        self.session.ask(QUESTION, SHORT)

    def recall(self) -> None:
        self.session.ask(QUESTION, SHORT, recall="auto")

    def ask_iter(self) -> None:
        self.pieces = self.session.ask_iter(QUESTION, SHORT)
        next(self.pieces)

    def logits(self) -> None:
        self.session.logits(QUESTION)

    def fork(self) -> None:
        self.made.append(self.session.fork())

    def forget(self) -> None:
        self.session.fork()

    def save(self) -> None:
        self.session.save(self.path / "saved")

    def restore(self) -> None:
        self.session.save(self.path / "to_restore")
        self.session.close()
        self.made.append(self.model.restore(self.path / "to_restore"))

    def open(self) -> None:
        text = f"Watch {next(NUMBERS)}."  # found nowhere
        self.made.append(self.model.session(instructions=text, reserve_tokens=64))

    def trace(self) -> None:
        self.model.trace(self.path / "log")
        self.model.trace(None)

    def look(self) -> None:
        self.session.stats()
        self.session.context_frames()
        self.model.figures()

    def close(self) -> None:
        self.session.close()

    def __exit__(self, *_: object) -> None:
        self.pieces = None  # forgotten
        for opened in (self.session, *self.made):
            opened.close()
        assert self.model.figures().counts.live == 0


OPERATIONS = [name for name in vars(Stream) if not name.startswith("_")]


def state(session: edgekv.Session) -> tuple[object, ...] | None:
    """All that a user can see of a session's context, None when it is closed."""
    try:
        stats, frames = session.stats(), session.context_frames().tolist()
    except edgekv.SessionError:
        return None
    logits = session.logits(QUESTION).tobytes()
    return stats.num_frames, stats.num_evicted_frames, frames, session.last_time_s, logits


# What an operation has made is dropped with its tier when a handler raises in place of giving it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_interrupted_operation_has_been_done_or_has_not(
    small: edgekv.Model, picture: Picture, tmp_path: Path, name: str
) -> None:
    with Stream(small, picture, tmp_path) as stream:
        before = state(stream.session)
        num_places = with_signal_at(-1, getattr(stream, name))
        after = state(stream.session)
    num_interrupted = 0
    for moment in moments(num_places):
        with Stream(small, picture, tmp_path) as stream:
            try:
                with_signal_at(moment, getattr(stream, name))
            except KeyboardInterrupt:
                num_interrupted += 1
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert in_another_thread(partial(state, stream.session)) in (before, after)
            counts = small.figures().counts
            assert counts.free + counts.live + counts.cached == counts.num_pages
            assert not list(tmp_path.glob(".*.tmp"))
    assert num_interrupted > NUM_MOMENTS // 2


@pytest.mark.parametrize("kind", [edgekv.Session, edgekv.Model])
def test_every_public_method_is_indivisible(kind: type) -> None:
    methods = {name: use for name, use in vars(kind).items() if inspect.isfunction(use)}
    public = {name: use for name, use in methods.items() if not name.startswith("_")}
    assert public
    assert [name for name, use in public.items() if inspect.unwrap(use) is use] == []
