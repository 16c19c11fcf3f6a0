"""Several sessions on one pool, proven on the cache alone: no model, no graph."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.cache import check
from edgekv.config import parse_bytes
from edgekv.errors import BudgetError, OutOfPagesError
from edgekv.members import Member, fair_shares
from tests.unit.sharing_pool import FRAME, GEOMETRY, Pool, Record


def test_equals_end_up_with_equal_shares_whoever_came_first() -> None:
    pool = Pool(25)
    first = pool.open()
    pool.push(first, 40)
    assert pool.pages(first)[0] >= 20  # all but the room for a question and one batch
    second = pool.open()
    for _ in range(60):
        pool.push(second)
        pool.push(first)
        assert pool.cache.counts.free >= pool.sharing.reserve_pages == 3
    assert all(8 <= pages <= 14 for pages in pool.pages(first, second))
    assert first.record.num_evicted_frames + first.sequence.num_frames == 100
    second.sequence.close()
    pool.push(first, 20)
    assert pool.pages(first)[0] >= 19, "what the other had is not used again"


@pytest.mark.parametrize("num_pages", [16, 17, 20, 23])
@pytest.mark.parametrize("frame", [16, 64])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0, 1, 1, 0, 0, 0, 1)])
def test_what_does_not_go_round_goes_from_one_to_the_other(
    num_pages: int, frame: int, order: tuple[int, ...]
) -> None:
    """Where there is room for one frame more, neither of two equals has it for good."""
    pool = Pool(num_pages)
    members = [pool.open(frame=frame), pool.open(frame=frame)]
    seen: list[tuple[int, ...]] = []
    for turn in range(24 * len(order)):
        pool.push(members[order[turn % len(order)]])
        if turn >= 12 * len(order):
            seen.append(tuple(member.sequence.num_frames for member in members))
    most = [max(frames[k] for frames in seen) for k in (0, 1)]
    least = [min(frames[k] for frames in seen) for k in (0, 1)]
    assert (most[0], least[0]) == (most[1], least[1])


def test_a_start_that_all_share_is_counted_once() -> None:
    pool = Pool(34)
    first = pool.open()
    members = [first]
    for _ in range(9):
        members.append(replace(first, sequence=first.sequence.fork(), record=Record()))
        pool.sharing.join(members[-1])
    for _ in range(8):
        for member in members:
            pool.push(member)
    assert {member.sequence.num_frames for member in members} == {3}  # 34 - 3 - 1, among 10


def test_the_higher_priority_takes_all_but_the_floor_and_keeps_it() -> None:
    pool = Pool(20)
    low, high = pool.open(0), pool.open(1)
    pool.push(low, 30)
    pool.push(high, 30)
    assert pool.pages(low) == [2]  # its pinned start and one frame
    held = pool.pages(high)[0]
    pool.push(low, 5)
    assert pool.pages(low, high) == [2, held]
    high.sequence.close()
    pool.push(low, 30)
    assert pool.pages(low)[0] >= 15


def test_a_low_priority_may_use_what_a_higher_one_has_not_asked_for() -> None:
    pool = Pool(20)
    low, high = pool.open(0), pool.open(1)
    pool.push(high, 2)
    pool.push(low, 30)
    assert pool.pages(high) == [3]
    assert pool.pages(low)[0] >= 11


def test_only_as_many_are_let_in_as_have_room_and_the_error_says_what_would_do() -> None:
    pool = Pool(3 + 2 * 3)
    members = [pool.open() for _ in range(3)]
    for member in members:
        pool.push(member, 3)
    before = pool.cache.counts
    with pytest.raises(BudgetError, match="3 of 9 pages can be had") as refused:
        pool.open(priority=5)
    assert pool.cache.counts == before
    budget = re.search(r"a KV budget of (.*) would do", str(refused.value))
    assert budget is not None
    larger = Pool(parse_bytes(budget[1].replace(" ", "")) // GEOMETRY.page_bytes)
    for _ in range(4):
        larger.push(larger.open(), 3)
    with pytest.raises(BudgetError):
        larger.open()


def test_one_room_for_a_question_is_kept_for_all_the_largest() -> None:
    pool = Pool(20)
    small, large = pool.open(reserve=16), pool.open(reserve=64)
    assert pool.sharing.reserve_pages == 5
    for _ in range(30):
        pool.push(small)
        pool.push(large)
    assert pool.cache.counts.free >= 5
    large.sequence.close()
    assert pool.sharing.reserve_pages == 2
    pool.push(small, 30)
    assert 2 <= pool.cache.counts.free < 5


def test_a_newcomer_whose_questions_are_larger_gets_their_room_too() -> None:
    pool = Pool(20)
    pool.push(pool.open(reserve=16), 30)
    assert pool.cache.counts.free < 6
    pool.open(reserve=64)
    assert pool.cache.counts.free >= 5


def test_a_push_that_fails_gives_the_others_their_frames_back() -> None:
    pool = Pool(20)
    low, high = pool.open(0), pool.open(1)
    pool.push(low, 30)
    pool.push(high, 1)
    for _ in range(6):
        before = [(m.sequence.export_state().segments.tobytes(), m.record) for m in (low, high)]
        pages, free = pool.pages(low, high), pool.cache.counts.free
        evicted = low.record.num_evicted_frames
        with pytest.raises(ZeroDivisionError):
            pool.append(high, "frame", FRAME, fails=True)
        after = [(m.sequence.export_state().segments.tobytes(), m.record) for m in (low, high)]
        assert after == before
        assert pool.pages(low, high) == pages
        assert (pool.cache.counts.free, low.record.num_evicted_frames) == (free, evicted)
        check(pool.cache.snapshot())
        pool.push(high)
    assert low.record.num_evicted_frames > evicted


def test_what_two_hold_comes_free_when_both_let_it_go() -> None:
    pool = Pool(20)
    one = pool.open()
    pool.push(one, 15)
    other = Member(one.sequence.fork(), one.rule, one.limits, one.priority, Record())
    pool.sharing.join(other)
    assert int(one.sequence.private_pages().sum()) == 0
    third = pool.open()
    pool.push(third, 8)
    assert third.sequence.num_frames >= 4, "its share, of what the others gave together"
    frames = [member.sequence.num_frames for member in (one, other)]
    assert max(frames) < 15
    assert min(frames) >= 1
    for member in (one, other, third):
        pool.push(member, 10)
    check(pool.cache.snapshot())
    shares = pool.sharing.shares()
    assert all(member.sequence.num_frames >= 3 for member in shares)


def test_a_rule_that_lets_nothing_leave_is_not_asked() -> None:
    pool = Pool(20)
    kept, other = pool.open(0, retain="keep"), pool.open(5)
    pool.push(kept, 10)
    pool.push(other, 30)
    assert kept.sequence.num_frames == 10
    assert pool.pages(other) == [6]


def test_answers_hold_frames_that_then_free_nothing_and_the_stream_goes_on() -> None:
    pool = Pool(20)
    one, other = pool.open(), pool.open()
    for _ in range(20):
        pool.push(one)
        pool.push(other)
    forks = [member.sequence.fork() for member in (one, other)]
    for _ in range(10):
        pool.push(one)
        pool.push(other)
        check(pool.cache.snapshot())
    for fork in forks:
        fork.close()
    pool.push(one)
    assert pool.cache.counts.free >= pool.sharing.reserve_pages


def test_a_question_gets_its_promised_room_from_lower_priorities_only() -> None:
    pool = Pool(20)
    low, high = pool.open(0), pool.open(1)
    pool.push(low, 30)
    pool.push(high, 3)
    with pool.cache.open() as answer:  # one that holds what was kept
        step = pool.cache.begin_step([answer.append("text", 16 * pool.cache.counts.free)])
        step.commit()
        before = pool.pages(high)
        with pytest.raises(OutOfPagesError):
            pool.sharing.room_for_question(low, 16, 16)
        assert pool.sharing.room_for_question(high, 16, 32) == 32
        assert pool.cache.counts.free >= 3
        assert pool.pages(high) == before


counts = st.integers(0, 20)


@given(st.integers(0, 200), st.lists(st.tuples(counts, counts, st.integers(0, 2)), max_size=6))
def test_shares(num_pages: int, wants: list[tuple[int, int, int]]) -> None:
    floors = [floor for floor, _, _ in wants]
    most = [floor + extra for floor, extra, _ in wants]
    priorities = [priority for _, _, priority in wants]
    shares = fair_shares(num_pages, floors=floors, most=most, priorities=priorities)
    assert all(a <= b <= c for a, b, c in zip(floors, shares, most, strict=True))
    assert sum(shares) <= max(num_pages, sum(floors))
    extras = [share - floor for share, floor in zip(shares, floors, strict=True)]
    wanting = [
        rank for share, top, rank in zip(shares, most, priorities, strict=True) if share < top
    ]
    for mine, share, top, priority in zip(extras, shares, most, priorities, strict=True):
        if share < top:  # it wants more: nobody lower has any, no equal has more
            left = max(num_pages, sum(floors)) - sum(shares)
            assert 0 <= left < wanting.count(max(wanting)), "it would go round once more"
            for other, rank in zip(extras, priorities, strict=True):
                assert not (rank < priority and other)
                assert rank != priority or other <= mine
