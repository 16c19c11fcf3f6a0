"""What rules saw of pages is in the log, so that a replay asks them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.cache import PageCache, Sequence
from edgekv.cache.retention import (
    LeastAttended,
    Novelty,
    RetentionRule,
    Watermarks,
    Window,
    choose,
    offered,
    retention_rule,
)
from edgekv.cache.segments import SYSTEM_CODE
from edgekv.errors import TraceError
from edgekv.trace import TraceLog, TraceWriter, read_log
from edgekv.trace.events import Chosen, Dropped, Event, Shown
from edgekv.trace.evidence import HEAT, SUMMARY
from edgekv.trace.observed import held
from edgekv.trace.replay import ReplayResult, replay
from edgekv.trace.states import state_of
from tests.cache.helpers import add, make_room
from tests.trace.streams import FRAME_PAGES, MARKS, make_cache

Picture = Callable[[int], NDArray[np.uint8]]
LOOKING = ("novelty", "least-attended")


def look(cache: PageCache) -> None:
    """Values for summaries: random, but alike for pages whose numbers end alike."""
    shape = (cache.geometry.num_kv_heads, cache.geometry.page_size, cache.geometry.head_dim)
    scenes = np.random.default_rng(1).standard_normal((7, *shape)).astype(np.float16)
    noise = np.random.default_rng(2)

    def read(pages: NDArray[np.int32]) -> NDArray[np.generic]:
        return scenes[pages % 7] + noise.normal(0, 0.1, (pages.size, *shape)).astype(np.float16)

    cache.summaries.keep()
    cache.summaries.read_from(read)


def ask(cache: PageCache, sequence: Sequence, rule: RetentionRule, seed: int) -> None:
    """A question over a fork that lets frames go of its own; what it looks at is heated."""
    with sequence.fork() as fork:
        room = Watermarks(sequence.num_pages, sequence.num_pages - 2 * FRAME_PAGES)
        make_room(fork, 4, rule=rule, marks=room, num_free=cache.counts.free)
        add(cache, fork, "text", 25)
        pages = fork.table.page_ids.copy()
        mass = np.random.default_rng(seed).random(pages.size).astype(np.float32)
        cache.heat.add(pages, mass)


def watch(cache: PageCache, name: str, num_frames: int, *, ask_every: int = 5) -> Sequence:
    """Frames of 77 tokens into a new context that is kept within its marks."""
    sequence, rule = cache.open(), retention_rule(name)
    add(cache, sequence, "system", 40)
    for k in range(num_frames):
        make_room(sequence, FRAME_PAGES, rule=rule, marks=MARKS, num_free=cache.counts.free)
        add(cache, sequence, "frame", 77, index=k, time_s=k / 2)
        if ask_every and k % ask_every == ask_every - 1:
            ask(cache, sequence, rule, k)
    return sequence


def logged(path: Path, name: str, num_frames: int = 60, **options: int) -> TraceLog:
    cache = make_cache(256)
    look(cache)
    log = TraceWriter(cache, path)
    watch(cache, name, num_frames, **options)
    log.close()
    return read_log(path)


class Altered(TraceLog):
    """A log in which some events say something else."""

    def __init__(self, log: TraceLog, change: Callable[[Event], Event]) -> None:
        super().__init__(log.path, list(log.parts))
        self._change = change

    def events(self) -> Iterator[Event]:
        return map(self._change, super().events())


def all_decided(result: ReplayResult, at_least: int) -> None:
    assert result.difference is None
    assert result.num_drops_as_logged == 0
    assert result.num_drops >= at_least


@pytest.mark.parametrize("name", ["window", "uniform", *LOOKING])
def test_every_drop_is_decided_again(tmp_path: Path, name: str) -> None:
    """Those of forks too, which let go other frames than the stream does."""
    log = logged(tmp_path / "t", name)
    all_decided(replay(log), 20)
    shown = {event.column for event in log.events() if isinstance(event, Shown)}
    assert shown == {"novelty": {SUMMARY}, "least-attended": {HEAT}}.get(name, set())


@pytest.mark.parametrize(
    ("name", "kind"), [("novelty", Novelty), ("least-attended", LeastAttended)]
)
def test_a_rule_that_has_changed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[RetentionRule]
) -> None:
    log = logged(tmp_path / "t", name)
    monkeypatch.setattr(kind, "choose", lambda _, table, wanted: Window().choose(table, wanted))
    assert f"segments that {name} chooses: the log says" in str(replay(log).difference)


@pytest.mark.parametrize("name", LOOKING)
def test_values_that_are_not_those_the_rule_saw_are_found(tmp_path: Path, name: str) -> None:
    log = logged(tmp_path / "t", name)

    def turn(event: Event) -> Event:
        return event._replace(values=event.values[::-1]) if isinstance(event, Shown) else event

    assert f"segments that {name} chooses" in str(replay(Altered(log, turn)).difference)


@pytest.mark.parametrize("name", LOOKING)
def test_a_damaged_value_is_refused(tmp_path: Path, name: str) -> None:
    log = logged(tmp_path / "t", name)
    shown = next(event for event in log.events() if isinstance(event, Shown))
    data = bytearray(log.path.read_bytes())
    data[data.index(shown.values[-1]) + 3] ^= 1
    log.path.write_bytes(data)
    with pytest.raises(TraceError, match="the check sum is wrong"):
        replay(read_log(log.path))


def test_a_value_is_told_once(tmp_path: Path) -> None:
    """A summary a frame; heat when somebody has asked since."""
    log = logged(tmp_path / "t", "novelty")
    told = [i for e in log.events() if isinstance(e, Shown) for i in e.pages]
    assert FRAME_PAGES < len(told) <= 60
    log = logged(tmp_path / "t", "least-attended", 200, ask_every=0)
    assert not any(isinstance(event, Shown) for event in log.events()), "nobody asked: all is cold"


@pytest.mark.parametrize(("name", "most"), [("least-attended", 90), ("novelty", 40 + 256 + 12)])
def test_what_rules_see_takes_few_bytes_a_frame(tmp_path: Path, name: str, most: int) -> None:
    """A summary here has 64 numbers of 4 bytes; a question in five frames changes all heat."""
    assert logged(tmp_path / "t", name, 200).num_bytes < 200 * most


def test_a_choice_among_some_by_what_comes_free_is_asked_again(tmp_path: Path) -> None:
    """As between sessions: the newest is spared, and only pages that nobody else holds count."""
    cache, rule = make_cache(), retention_rule("novelty")
    look(cache)
    log = TraceWriter(cache, tmp_path / "t")
    sequence = watch(cache, "novelty", 12, ask_every=0)
    other = sequence.fork()
    other.drop(other.segment_table().ids[3:9])
    table = offered(sequence, rule)
    able = (table.kinds != SYSTEM_CODE) & (np.arange(len(table)) < len(table) - 1)
    offer = table.take(able).having(num_pages=sequence.private_pages()[able])
    ids = choose(sequence, rule, offer, 2 * FRAME_PAGES)
    sequence.drop(ids, rule="reclaim")
    log.close()
    read = read_log(tmp_path / "t")
    (event,) = [event for event in read.events() if isinstance(event, Chosen)]
    assert event.withheld == (12,)
    assert sorted(set(event.pages)) == [0, FRAME_PAGES]
    assert event.segments == tuple(ids.tolist())
    result = replay(read)
    assert result.difference is None
    assert (result.num_drops, result.num_drops_as_logged) == (2, 1), "a caller dropped the first"


def test_frames_that_come_back_are_shown_again(tmp_path: Path) -> None:
    """An inserted frame has its old id and, in new pages, another summary."""
    cache, rule = make_cache(), retention_rule("novelty")
    look(cache)
    log = TraceWriter(cache, tmp_path / "t")
    sequence = watch(cache, "novelty", 12, ask_every=0)
    for _ in range(2):
        before = held(sequence, 0, restored=False)
        dropped = make_room(
            sequence, 1, rule=rule, marks=Watermarks(60, 50), num_free=cache.counts.free
        )
        back = tuple(segment for segment in before.segments if segment.id in dropped)
        assert back
        sequence.insert(state_of(back, before.next_segment, 1))
    log.close()
    all_decided(replay(read_log(tmp_path / "t")), 2)


def test_a_rule_that_is_not_known_is_done_as_logged(tmp_path: Path) -> None:
    class Mine(Novelty):
        name = "mine"

    cache, rule = make_cache(), Mine()
    log = TraceWriter(cache, tmp_path / "t")
    sequence = watch(cache, "novelty", 12, ask_every=0)
    make_room(sequence, 1, rule=rule, marks=Watermarks(60, 50), num_free=cache.counts.free)
    log.close()
    (drop,) = [e for e in read_log(tmp_path / "t").events() if isinstance(e, Dropped)]
    assert drop.rule == "mine"
    result = replay(read_log(tmp_path / "t"))
    assert result.difference is None
    assert result.num_drops_as_logged == 1


def test_what_rules_see_stays_within_the_limit(tmp_path: Path) -> None:
    limit, cache = 64 * 2**10, make_cache(256)
    look(cache)
    log = TraceWriter(cache, tmp_path / "t", max_bytes=limit)
    for _ in range(6):
        watch(cache, "novelty", 100).close()
        assert sum(part.stat().st_size for part in tmp_path.iterdir()) <= limit
    log.close()
    assert log.problem is None
    assert not read_log(tmp_path / "t").from_start
    list(read_log(tmp_path / "t").events())


@pytest.mark.parametrize("name", LOOKING)
def test_sessions_replay_whatever_they_give_up_for_each_other(
    bundle_path: Path, picture: Picture, tmp_path: Path, name: str
) -> None:
    path, options = tmp_path / "t", edgekv.SamplingOptions(max_new_tokens=2)
    with edgekv.load(bundle_path, kv_budget="640KiB", num_threads=1, trace=path) as model:
        with (
            model.session(instructions="You watch.", retain=name, reserve_tokens=64) as one,
            model.session(instructions="You watch.", retain=name, reserve_tokens=64) as other,
        ):
            for k in range(30):
                one.push(picture(k), k / 4)
                other.push(picture(k if k < 12 else 100 + k), k / 4)
                if k % 10 == 9:
                    one.ask("What do you see?", options)
        assert model.trace_problem is None
    log = read_log(path)
    drops = {event.rule for event in log.events() if isinstance(event, Dropped)}
    assert "reclaim" in drops
    all_decided(replay(log), 5)
