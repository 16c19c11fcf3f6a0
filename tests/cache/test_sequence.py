import numpy as np
import pytest

from edgekv.cache import check
from edgekv.errors import CacheError, ContextError, OutOfPagesError
from tests.cache.compare import assert_same
from tests.cache.helpers import PAGE_SIZE, add, frames, make_cache, shifts, valid

# -- segments and pages


def test_a_new_segment_starts_a_new_page() -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    add(cache, sequence, "text", 2)
    assert valid(sequence) == [3, 4, 2, 4, 2, 2]
    assert [(s.kind, s.num_pages, s.num_tokens, s.index) for s in sequence.segments] == [
        ("system", 1, 3, -1),
        ("frame", 2, 6, 0),
        ("frame", 2, 6, 1),
        ("text", 1, 2, -1),
    ]
    assert [s.position for s in sequence.segments] == [(0,), (3,), (9,), (15,)]
    assert sequence.segments[2].time_s == 0.5


def test_extending_fills_the_last_page_first() -> None:
    cache = make_cache()
    sequence = frames(cache, 0)
    add(cache, sequence, "answer", 1)
    for _ in range(4):
        add(cache, sequence, "answer", 1, extend=True)
    assert valid(sequence) == [3, 4, 1]
    assert sequence.num_segments == 2


def test_a_frame_in_chunks_is_one_segment_and_two_frames_never_are() -> None:
    cache = make_cache()
    sequence = frames(cache, 1)
    add(cache, sequence, "frame", 3, extend=True, index=0)
    assert valid(sequence) == [3, 4, 4, 1]
    with pytest.raises(ValueError, match="cannot extend frame 0 with tokens of frame 1"):
        sequence.append("frame", 1, extend=True, index=1)
    with pytest.raises(ValueError, match="cannot extend a frame segment with text tokens"):
        sequence.append("text", 1, extend=True)


def test_a_page_that_has_moved_takes_no_new_token() -> None:
    """A key written there now would stand at its position plus the page's old shift."""
    cache = make_cache()
    sequence = frames(cache, 1)
    add(cache, sequence, "text", 1)
    sequence.drop([1])
    add(cache, sequence, "text", 1, extend=True)
    assert valid(sequence) == [3, 1, 1]
    assert shifts(sequence) == [0, -6, 0]
    check(cache.snapshot())


@pytest.mark.parametrize(
    ("num_tokens", "pages"), [(PAGE_SIZE - 1, 1), (PAGE_SIZE, 1), (PAGE_SIZE + 1, 2)]
)
def test_page_boundaries(num_tokens: int, pages: int) -> None:
    cache = make_cache()
    sequence = cache.open()
    assert sequence.pages_needed("frame", num_tokens) == pages
    add(cache, sequence, "frame", num_tokens)
    assert sequence.num_pages == pages


# -- the limits: one below, at, one above


@pytest.mark.parametrize("num_tokens", [8 * PAGE_SIZE - 1, 8 * PAGE_SIZE, 8 * PAGE_SIZE + 1])
@pytest.mark.parametrize("limit", ["pool", "table", "positions"])
def test_the_longest_context(limit: str, num_tokens: int) -> None:
    cache = {
        "pool": make_cache(8),
        "table": make_cache(16, max_pages=8),
        "positions": make_cache(16, max_positions=8 * PAGE_SIZE),
    }[limit]
    sequence = cache.open()
    if num_tokens <= 8 * PAGE_SIZE:
        add(cache, sequence, "text", num_tokens)
        assert sequence.num_tokens == num_tokens
        return
    error = OutOfPagesError if limit == "pool" else ContextError
    before = cache.snapshot()
    with pytest.raises(error):
        sequence.append("text", num_tokens)
    assert_same(before, cache.snapshot())


def test_one_token_at_a_time_up_to_the_limit() -> None:
    cache = make_cache(16, max_pages=2)
    sequence = cache.open()
    for i in range(2 * PAGE_SIZE):
        add(cache, sequence, "text", 1, extend=i > 0)
    with pytest.raises(ContextError, match="need 1 more pages, the sequence holds 2 of at most 2"):
        sequence.append("text", 1, extend=True)


def test_positions_are_limited_not_tokens() -> None:
    cache = make_cache(num_axes=3, max_positions=10)
    sequence = cache.open()
    add(cache, sequence, "frame", 16, positions=np.zeros((3, 16), np.int64))
    assert sequence.next_position.tolist() == [1, 1, 1]
    with pytest.raises(ContextError, match="need position 10, the model's last is 9"):
        sequence.append("text", 10)


def test_out_of_pages_says_what_it_needs() -> None:
    cache = make_cache(3)
    sequence = frames(cache, 1, num_tokens=4)
    with pytest.raises(OutOfPagesError, match="need 2 pages, 1 free"):
        sequence.append("frame", 5)


# -- positions


def test_given_positions_are_relative_and_the_largest_axis_leads_on() -> None:
    cache = make_cache(num_axes=3)
    sequence = cache.open()
    add(cache, sequence, "text", 2)
    grid = np.array([[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]])
    step = add(cache, sequence, "frame", 6, positions=grid)
    assert step.tables.position_ids.tolist() == (grid + 2).tolist()
    assert sequence.next_position.tolist() == [5, 5, 5]
    assert sequence.num_tokens == 8


def test_an_axis_may_move_alone() -> None:
    cache = make_cache(num_axes=3)
    sequence = cache.open()
    for _ in range(3):
        add(cache, sequence, "frame", 2, positions=np.zeros((3, 2), np.int64), advance=(1, 0, 0))
    add(cache, sequence, "text", 1)
    assert sequence.next_position.tolist() == [4, 1, 1]
    sequence.drop([0, 1])
    assert sequence.next_position.tolist() == [2, 1, 1]
    assert sequence.table.rows[:, 2:5].tolist() == [[-2, 0, 0], [-2, 0, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": np.zeros((1, 3), np.int64)}, r"positions must be integers \(1, 2\), got"),
        ({"positions": np.zeros((1, 2))}, r"positions must be integers \(1, 2\), got float64"),
        ({"positions": np.array([[-1, 0]])}, "not negative, got -1"),
        ({"advance": -1}, "advance must not be negative, got -1"),
        ({"advance": 1.5}, r"advance must be one integer or one for each of 1 axes, got 1\.5"),
        ({"advance": (1, 2)}, "advance must be one integer"),
        ({"bidirectional": [(0, 3)]}, "bidirectional run must lie in 0 to 2, got 0 to 3"),
        ({"bidirectional": [(1, 1)]}, "bidirectional run must lie in 0 to 2, got 1 to 1"),
        ({"extend": True}, "cannot extend a text segment, the sequence is empty"),
    ],
)
def test_bad_appends_are_refused_and_change_nothing(options: dict, message: str) -> None:
    cache = make_cache()
    sequence = cache.open()
    before = cache.snapshot()
    with pytest.raises(ValueError, match=message):
        sequence.append("text", 2, **options)
    assert_same(before, cache.snapshot())


def test_bad_kinds_and_counts_are_refused() -> None:
    sequence = make_cache().open()
    with pytest.raises(ValueError, match="one of system, frame, text, answer, got 'image'"):
        sequence.append("image", 1)
    with pytest.raises(ValueError, match="at least 1 token, got 0"):
        sequence.append("text", 0)


# -- forks


def test_a_fork_shares_every_page() -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    live = cache.counts.live
    with sequence.fork() as fork:
        assert cache.counts.live == live
        assert fork.table.page_ids.tolist() == sequence.table.page_ids.tolist()
        assert sequence.private_pages().tolist() == [0, 0, 0]
    assert cache.counts.live == live
    assert sequence.private_pages().tolist() == [1, 2, 2]


def test_only_a_shared_and_partly_filled_tail_is_copied() -> None:
    cache = make_cache()
    sequence = frames(cache, 0)
    add(cache, sequence, "text", 2)
    fork = sequence.fork()
    step = add(cache, fork, "text", 1, extend=True)
    assert step.copies.tolist() == [[sequence.table.page_ids[-1], fork.table.page_ids[-1]]]
    assert len(add(cache, sequence, "text", 1, extend=True).copies) == 0, "shared no longer"
    add(cache, sequence, "text", 1, extend=True)
    full = sequence.fork()
    assert len(add(cache, full, "text", 1, extend=True).copies) == 0, "no free slot to fight for"


def test_a_fork_keeps_its_own_view_of_what_its_parent_drops() -> None:
    cache = make_cache()
    sequence = frames(cache, 3)
    fork = sequence.fork()
    sequence.drop([1, 2])
    assert [s.id for s in fork.segments] == [0, 1, 2, 3]
    assert shifts(fork) == [0] * 7
    assert shifts(sequence) == [0, -12, -12]
    fork.drop([3])
    assert [s.id for s in sequence.segments] == [0, 3]
    check(cache.snapshot())


def test_a_hundred_questions_leave_no_trace() -> None:
    cache = make_cache(64)
    sequence = frames(cache, 3)
    add(cache, sequence, "text", 2)
    before = sequence.snapshot()
    for _ in range(100):
        with sequence.fork() as fork:
            add(cache, fork, "text", 5, extend=True)
            for i in range(6):
                add(cache, fork, "answer", 1, extend=i > 0)
    after = sequence.snapshot()
    assert after.page_table.tobytes() == before.page_table.tobytes()
    assert cache.counts.live == sequence.num_pages


# -- closing


def test_a_closed_sequence_gives_everything_back_and_refuses_the_rest() -> None:
    cache = make_cache()
    sequence = frames(cache, 2)
    append = sequence.append("text", 3)
    sequence.close()
    sequence.close()
    assert cache.counts.free == cache.counts.num_pages
    assert (append.state, sequence.closed, cache.sequences) == ("aborted", True, ())
    for operation in (
        sequence.fork,
        lambda: sequence.append("text", 1),
        lambda: sequence.drop([1]),
        lambda: sequence.truncate(0),
    ):
        with pytest.raises(CacheError, match="sequence 0 is closed"):
            operation()


def test_one_append_at_a_time() -> None:
    cache = make_cache()
    sequence = frames(cache, 1)
    append = sequence.append("text", 3)
    before = cache.snapshot()
    for operation in (
        lambda: sequence.append("text", 1),
        lambda: sequence.drop([1]),
        lambda: sequence.truncate(0),
    ):
        with pytest.raises(CacheError, match="has an append pending"):
            operation()
    assert_same(before, cache.snapshot())
    append.abort()
    with pytest.raises(CacheError, match="the append is aborted"):
        append.abort()


def test_utilisation_counts_shared_pages_once() -> None:
    cache = make_cache()
    assert cache.utilisation() == 1.0
    sequence = frames(cache, 2)
    assert cache.utilisation() == 15 / 20
    fork = sequence.fork()
    assert cache.utilisation() == 15 / 20
    add(cache, fork, "text", 1)
    assert cache.utilisation() == 16 / 24
