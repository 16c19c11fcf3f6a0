"""The arithmetic of room, proven on the cache alone: no model, no graph."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekv.cache import PageCache, Sequence
from edgekv.cache.retention import RetentionRule, retention_rule
from edgekv.cache.segments import SegmentTable
from edgekv.config import KVGeometry, format_bytes
from edgekv.errors import BudgetError, ContextError, OutOfPagesError
from edgekv.limits import Limits, fit_question, plan_limits, segments_to_drop

GEOMETRY = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=8, page_size=16, dtype="float32")
RULE = retention_rule("window")
START, FRAME = 5, 16


def append(cache: PageCache, sequence: Sequence, kind: str, num_tokens: int) -> None:
    with cache.begin_step([sequence.append(kind, num_tokens)]) as step:  # type: ignore[arg-type]
        step.commit()


def stream(
    num_pages: int = 100, max_context_tokens: int = 200, reserve: int | None = 32
) -> tuple[PageCache, Sequence, Limits]:
    cache = PageCache(GEOMETRY, num_pages)
    limits = plan_limits(
        cache,
        num_start=START,
        num_frame=FRAME,
        max_context_tokens=max_context_tokens,
        reserve_tokens=reserve,
    )
    sequence = cache.open()
    append(cache, sequence, "system", START)
    return cache, sequence, limits


def leaving(
    sequence: Sequence,
    rule: RetentionRule,
    limits: Limits,
    num_tokens: int,
    *,
    spare_newest: bool = False,
) -> NDArray[np.int64]:
    num_free = limits.cache.counts.num_pages  # the pool is not what is short
    return segments_to_drop(
        sequence, rule, limits, num_tokens, num_free=num_free, spare_newest=spare_newest
    )


def push(cache: PageCache, sequence: Sequence, limits: Limits) -> None:
    sequence.drop(leaving(sequence, RULE, limits, FRAME))
    append(cache, sequence, "frame", FRAME)


def test_frames_and_the_reserve_never_exceed_the_window() -> None:
    cache, sequence, limits = stream()
    most = 0
    for _ in range(500):
        push(cache, sequence, limits)
        assert sequence.num_tokens + 32 <= 200
        most = max(most, sequence.num_frames)
    assert most == (200 - START - 32) // FRAME


def test_text_that_fills_its_pages_leaves_room_for_frames_that_do_not() -> None:
    """Frames of 17 tokens take two pages of 16: a window counted in pages would hold 32."""
    cache = PageCache(GEOMETRY, 200, max_positions=400)
    limits = plan_limits(
        cache, num_start=START, num_frame=17, max_context_tokens=400, reserve_tokens=32
    )
    sequence = cache.open()
    append(cache, sequence, "system", START)
    for k in range(200):
        num_tokens, kind = (17, "frame") if k % 40 == 39 else (32, "text")
        sequence.drop(leaving(sequence, RULE, limits, num_tokens))
        append(cache, sequence, kind, num_tokens)
        assert sequence.num_tokens + 32 <= 400
    with pytest.raises(ContextError, match="need 364 tokens beside the 32 kept for a question"):
        sequence.drop(leaving(sequence, RULE, limits, 364))
    append(cache, sequence, "frame", 17)


def test_the_budget_that_would_do_counts_what_others_hold() -> None:
    cache, sequence, _ = stream(num_pages=20)
    append(cache, sequence, "frame", 17 * 16)
    needed = format_bytes((18 + 1 + 1 + 3) * GEOMETRY.page_bytes, rounded="up")
    with pytest.raises(BudgetError, match=f"a KV budget of {needed} would do"):
        plan_limits(
            cache, num_start=START, num_frame=FRAME, max_context_tokens=200, reserve_tokens=32
        )


def test_a_small_pool_keeps_pages_for_a_question() -> None:
    cache, sequence, limits = stream(num_pages=10)
    for _ in range(50):
        push(cache, sequence, limits)
        assert cache.counts.free >= limits.reserve_pages == 3


def test_an_eighth_of_the_window_leaves_at_once_and_one_for_the_frame_that_comes() -> None:
    cache, sequence, limits = stream(max_context_tokens=START + 32 + 16 * FRAME)
    sizes = []
    for _ in range(200):
        before = sequence.num_frames
        push(cache, sequence, limits)
        if sequence.num_frames <= before:
            sizes.append(before + 1 - sequence.num_frames)
    assert limits.fitting_frames == 16
    assert set(sizes) == {limits.leaving_frames} == {16 // 8 + 1}


@pytest.mark.parametrize("num_pages", [100, 14])
def test_text_that_joins_never_costs_the_newest_frame(num_pages: int) -> None:
    """Neither where pages are short nor where tokens are."""
    cache, sequence, limits = stream(num_pages)
    for _ in range(20):
        push(cache, sequence, limits)
    newest = sequence.segment_table().ids[-1]
    most = min(limits.marks.high - limits.floor_pages, 9) * 16  # 200 - 32 - 5 - 16 tokens: 9 pages
    for num_tokens in range(1, most + 1):
        ids = leaving(sequence, RULE, limits, num_tokens, spare_newest=True)
        assert newest not in ids
    assert ids.size == sequence.num_frames - 1
    for num_tokens in (most + 16, 1000):
        with pytest.raises(ContextError, match=r"newest frame's|cannot leave"):
            leaving(sequence, RULE, limits, num_tokens, spare_newest=True)
    assert newest in leaving(sequence, RULE, limits, most + 16)


def test_a_question_never_costs_the_newest_frame() -> None:
    cache, sequence, limits = stream()
    for _ in range(20):
        push(cache, sequence, limits)
    longest = 200 - START - FRAME - 1
    fork = sequence.fork()
    assert fit_question(fork, RULE, limits, longest, 5) == 1
    assert fork.segment_table().ids[1:] == sequence.segment_table().ids[-1:]
    with pytest.raises(ContextError, match=f"{START + FRAME} of them cannot leave"):
        fit_question(sequence.fork(), RULE, limits, longest + 1, 5)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_longest_prompt_that_fits(over: int) -> None:
    """max - 1, max and max + 1 tokens of prompt, with one token of answer."""
    _, sequence, limits = stream()
    num_prompt = 200 - START - 1 + over
    if over <= 0:
        assert fit_question(sequence.fork(), RULE, limits, num_prompt, 5) == 1 - over
    else:
        with pytest.raises(ContextError, match=f"prompt of {num_prompt} tokens does not fit"):
            fit_question(sequence.fork(), RULE, limits, num_prompt, 5)


def test_a_long_prompt_makes_the_fork_forget_and_not_its_parent() -> None:
    cache, sequence, limits = stream()
    for _ in range(10):
        push(cache, sequence, limits)
    kept = sequence.num_frames
    fork = sequence.fork()
    assert fit_question(fork, RULE, limits, 100, 50) == 50
    assert fork.num_frames < sequence.num_frames == kept
    assert fork.num_tokens + 150 <= 200


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_pages": 4}, "a KV budget of .* would do"),
        ({"max_context_tokens": 50}, "do not fit"),
    ],
)
def test_what_cannot_hold_one_frame_is_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(BudgetError, match=said):
        stream(**wrong)
    with pytest.raises(ValueError, match="reserve_tokens"):
        stream(reserve=1)


def test_the_smallest_pool_that_is_accepted_runs() -> None:
    cache, sequence, limits = stream(num_pages=1 + 1 + 3)
    for _ in range(20):
        push(cache, sequence, limits)
        assert sequence.num_frames == 1


def test_when_nothing_may_leave_the_error_says_what_is_missing() -> None:
    cache, sequence, limits = stream(num_pages=6)
    with cache.open() as other:
        append(cache, other, "frame", 5 * 16)
        with pytest.raises(OutOfPagesError, match="need 1 pages, 0 free"):
            push(cache, sequence, limits)
    push(cache, sequence, limits)


def test_a_stream_goes_on_while_others_hold_the_room_of_questions() -> None:
    cache, sequence, limits = stream(num_pages=10)
    for _ in range(20):
        push(cache, sequence, limits)
    with sequence.fork() as answer:  # shares every frame: dropping one frees nothing
        append(cache, answer, "text", 16)
        push(cache, sequence, limits)
        assert cache.counts.free == 1
    push(cache, sequence, limits)
    assert cache.counts.free >= limits.reserve_pages


class _Spy:
    """Chooses as ``window`` and notes how many numbers each summary has."""

    name = "spy"
    needs_summaries = True
    needs_heat = False

    def __init__(self) -> None:
        self.widths: set[int] = set()

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        self.widths.add(segments.summaries.shape[1])
        return RULE.choose(segments, num_pages)


def test_a_rule_is_given_its_summaries_wherever_it_is_asked() -> None:
    cache, sequence, limits = stream(max_context_tokens=120)
    cache.summaries.keep()
    spy = _Spy()
    for _ in range(20):
        sequence.drop(leaving(sequence, spy, limits, FRAME))
        append(cache, sequence, "frame", FRAME)
    for _ in range(3):  # text that fills its pages: tokens run out before pages
        sequence.drop(leaving(sequence, spy, limits, 30))
        append(cache, sequence, "text", 30)
    fit_question(sequence.fork(), spy, limits, 90, 5)
    assert spy.widths == {GEOMETRY.num_kv_heads * GEOMETRY.head_dim}


def test_a_context_that_keeps_everything_ends_when_it_is_full() -> None:
    cache, sequence, limits = stream()
    rule = retention_rule("keep")
    for _ in range((200 - START - 32) // FRAME):
        assert not leaving(sequence, rule, limits, FRAME).size
        append(cache, sequence, "frame", FRAME)
    with pytest.raises(ContextError, match="the context is full"):
        leaving(sequence, rule, limits, FRAME)
    before = sequence.snapshot()
    room = 200 - sequence.num_tokens
    assert fit_question(sequence, rule, limits, room - 3, 8) == 3  # a shorter answer
    with pytest.raises(ContextError, match="does not fit"):
        fit_question(sequence, rule, limits, room, 8)
    np.testing.assert_array_equal(before.page_table, sequence.snapshot().page_table)
