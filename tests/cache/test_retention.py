"""Every retention rule against one list of demands; a new rule joins with one line in RULES."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.cache import SegmentTable, check
from edgekv.cache.retention import (
    Novelty,
    RetentionRule,
    Watermarks,
    Window,
    retention_rule,
    retention_rules,
)
from edgekv.cache.segments import KIND_CODES, segment_dtype
from edgekv.errors import ContextError
from tests.cache.helpers import add, frames, make_cache, make_room

RULES = ["window", "uniform", "novelty", "least-attended"]

PAGES = st.lists(st.integers(0, 6), min_size=1, max_size=40).filter(any)


def table(num_pages: list[int], **columns: np.ndarray) -> SegmentTable:
    n = len(num_pages)
    rows = np.zeros(n, segment_dtype(1))
    rows["id"], rows["index"], rows["time_s"] = (
        np.arange(10, 10 + n),
        np.arange(n),
        np.arange(n) / 2,
    )
    rows["kind"], rows["num_pages"] = KIND_CODES["frame"], num_pages
    rows["num_tokens"] = rows["num_pages"] * 4
    return SegmentTable.of(rows, **{"heat": np.zeros(n), **columns})


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> RetentionRule:
    return retention_rule(request.param)


def test_every_rule_is_tested() -> None:
    assert set(RULES) == set(retention_rules())


@pytest.mark.parametrize("name", RULES)
@given(num_pages=PAGES, data=st.data())
def test_a_choice_is_enough_distinct_and_in_order(
    name: str, num_pages: list[int], data: st.DataObject
) -> None:
    segments = table(num_pages)
    wanted = data.draw(st.integers(1, sum(num_pages)))
    chosen = retention_rule(name).choose(segments, wanted)
    assert segments.num_pages[chosen].sum() >= wanted
    assert chosen.min() >= 0
    assert chosen.max() < len(segments)
    assert (np.diff(chosen) > 0).all()


@pytest.mark.parametrize("name", RULES)
@given(num_pages=st.lists(st.integers(1, 6), min_size=2, max_size=40), data=st.data())
def test_the_newest_stays_while_the_others_are_enough(
    name: str, num_pages: list[int], data: st.DataObject
) -> None:
    wanted = data.draw(st.integers(1, sum(num_pages[:-1])))
    chosen = retention_rule(name).choose(table(num_pages), wanted)
    assert len(num_pages) - 1 not in chosen


def test_the_same_segments_give_the_same_choice(rule: RetentionRule) -> None:
    segments = table(
        [2] * 30,
        summaries=np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32),
    )
    chosen = rule.choose(segments, 11)
    assert len(chosen) == 6
    np.testing.assert_array_equal(rule.choose(segments, 11), chosen)


def test_nothing_wanted_nothing_chosen(rule: RetentionRule) -> None:
    assert len(rule.choose(table([1, 2, 3]), 0)) == 0


def test_a_stream_within_its_marks(rule: RetentionRule) -> None:
    """Frames for ten windows: never above the high mark, the pinned start and the newest stay."""
    cache = make_cache(32)
    sequence = frames(cache, 1)
    marks = Watermarks(high=20, low=12)
    for index in range(1, 100):
        make_room(sequence, 2, rule=rule, marks=marks, num_free=cache.counts.free)
        add(cache, sequence, "frame", 6, index=index)
        assert sequence.num_pages <= marks.high
        assert sequence.segments[0].kind == "system"
        assert [s.index for s in sequence.segments[-2:]] == [index - 1, index]
        check(cache.snapshot())


# -- window


def test_window_drops_the_shortest_oldest_prefix() -> None:
    segments = table([3, 1, 2])
    assert [Window().choose(segments, n).tolist() for n in (1, 3, 4, 5, 6)] == [
        [0],
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2],
    ]


# -- uniform


def kept_after(name: str, num_frames: int, marks: Watermarks) -> list[int]:
    """Numbers of the frames, of one page each, that are left of a stream."""
    cache = make_cache(marks.high + 1)
    sequence, rule = cache.open(), retention_rule(name)
    cache.summaries.keep()
    for index in range(num_frames):
        make_room(sequence, 1, rule=rule, marks=marks, num_free=cache.counts.free)
        add(cache, sequence, "frame", 4, index=index)
    return [segment.index for segment in sequence.segments]


@pytest.mark.parametrize("low", [21, 23, 24])
@pytest.mark.parametrize("num_frames", [100, 192, 480, 1000])
def test_no_gap_of_uniform_is_more_than_twice_the_mean_of_two_neighbouring_ones(
    num_frames: int, low: int
) -> None:
    kept = kept_after("uniform", num_frames, Watermarks(24, low))
    assert kept[0] == 0
    assert kept[-5:] == list(range(num_frames - 5, num_frames))
    # What has left the newest quarter since the last batch has not been thinned out yet.
    past = np.array([index for index in kept if index < num_frames - 6 - 2 * (24 - low + 1)])
    gaps = np.diff(past)[:-2]
    assert len(gaps) > 8
    assert gaps.max() <= (gaps[1:] + gaps[:-1]).min()


# -- novelty


def pictures(shown: list[int], *, known: bool = True) -> SegmentTable:
    """Frames of one page that show one of a few pictures each, a little noise on all of them."""
    rng = np.random.default_rng(0)
    looks = rng.standard_normal((max(shown) + 1, 16))
    summaries = looks[shown] + 1e-3 * rng.standard_normal((len(shown), 16))
    summaries = summaries.astype(np.float32) if known else np.full_like(summaries, np.nan)
    return table([1] * len(shown), summaries=summaries)


@pytest.mark.parametrize("place", [0, 1, 7, 11])
def test_novelty_keeps_the_odd_frame_among_alike_ones(place: int) -> None:
    shown = [0] * 16
    shown[place] = 1
    for num_pages in (1, 5, 10):
        assert place not in Novelty().choose(pictures(shown), num_pages)


def test_novelty_keeps_one_of_each_picture_however_often_they_take_turns() -> None:
    shown = [0, 1, 2] * 6 + [3] * 6
    gone = Novelty().choose(pictures(shown), 15)
    assert {shown[i] for i in range(24) if i not in gone} == {0, 1, 2, 3}


def test_novelty_prefers_loud_values() -> None:
    segments = pictures([0, 1, 2, 3, 4, 5, 6, 7])
    segments.summaries[2] *= 0.01
    assert Novelty().choose(segments, 1).tolist() == [2]


def test_novelty_of_frames_that_nobody_summed_up_is_their_age() -> None:
    segments = pictures([0, 1, 2, 3, 4, 5, 6, 7], known=False)
    assert Novelty().choose(segments, 3).tolist() == [0, 1, 2]


def test_text_leaves_when_it_is_no_longer_among_the_newest() -> None:
    segments = pictures([0] * 8)
    segments.summaries[[3, 7]] = np.nan
    assert Novelty().choose(segments, 1).tolist() == [3]


# -- names


def test_an_unknown_rule_names_the_choices() -> None:
    choices = ", ".join([*RULES, "keep"])
    with pytest.raises(ValueError, match=f"one of {choices}, got 'windw'"):
        retention_rule("windw")


# -- the example in docs/retention.md


def test_the_rule_that_the_docs_show_meets_the_demands_and_keeps_one_of_ten_seconds() -> None:
    text = (Path(__file__).parents[2] / "docs" / "retention.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    defined: dict[str, Any] = {}
    exec(code, defined)  # noqa: S102 - our own words
    rule: RetentionRule = defined["Tens"]()
    test_the_same_segments_give_the_same_choice(rule)
    test_nothing_wanted_nothing_chosen(rule)
    test_a_stream_within_its_marks(rule)
    segments = table([1] * 40)  # two a second: 0 and 20 begin ten seconds, the newest ten stay
    assert rule.choose(segments, 5).tolist() == [1, 2, 3, 4, 5]
    assert sorted(set(range(30)) - set(rule.choose(segments, 28).tolist())) == [0, 20]


# -- models whose positions cannot be shifted


@pytest.mark.parametrize("name", RULES)
def test_rules_that_move_pages_are_refused_where_pages_cannot_move(name: str) -> None:
    with pytest.raises(ValueError, match=rf"cannot be shifted.*must be 'keep', got '{name}'"):
        retention_rule(name, shiftable=False)


def test_keep_lets_nothing_leave_and_says_so() -> None:
    rule = retention_rule("keep", shiftable=False)
    assert len(rule.choose(table([1, 2, 3]), 0)) == 0
    said = "the context is full, and .*none of its 3 segments may leave"
    with pytest.raises(ContextError, match=said):
        rule.choose(table([1, 2, 3]), 2)
