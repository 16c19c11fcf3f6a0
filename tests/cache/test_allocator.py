import numpy as np
import pytest

from edgekv.cache import PageAllocator
from edgekv.errors import CacheError, OutOfPagesError


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, np.int32)


def states(allocator: PageAllocator) -> tuple[int, int, int, int]:
    c = allocator.counts
    assert c.free + c.live + c.cached + c.in_flight == c.num_pages
    return c.free, c.live, c.cached, c.in_flight


def test_pages_are_distinct_and_int32() -> None:
    pages = PageAllocator(8).allocate(5)
    assert pages.dtype == np.int32
    assert len(set(pages.tolist())) == 5


@pytest.mark.parametrize("wanted", [7, 8])
def test_up_to_the_last_page(wanted: int) -> None:
    allocator = PageAllocator(8)
    allocator.allocate(wanted)
    assert states(allocator) == (8 - wanted, wanted, 0, 0)


def test_one_page_too_many_changes_nothing() -> None:
    allocator = PageAllocator(8)
    allocator.allocate(5)
    with pytest.raises(OutOfPagesError, match=r"^need 4 pages, 3 free$") as caught:
        allocator.allocate(4)
    assert (caught.value.needed, caught.value.free) == (4, 3)
    assert states(allocator) == (3, 5, 0, 0)


def test_no_pages_is_a_batch_too() -> None:
    allocator = PageAllocator(2)
    none = allocator.allocate(0)
    assert none.shape == (0,)
    allocator.retain(none)
    allocator.release(none)
    allocator.end_step(allocator.begin_step([none]))
    assert states(allocator) == (2, 0, 0, 0)


def test_the_last_holder_frees_a_page() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    allocator.retain(pages)
    allocator.release(pages)
    assert states(allocator) == (2, 2, 0, 0)
    allocator.release(pages[:1])
    assert states(allocator) == (3, 1, 0, 0)


def test_a_double_release_is_an_error_and_changes_nothing() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(3)
    allocator.release(pages[1:2])
    with pytest.raises(CacheError, match=f"page {pages[1]} is held by nobody"):
        allocator.release(pages)
    assert states(allocator) == (2, 2, 0, 0)


def test_a_free_page_cannot_be_held_or_used() -> None:
    allocator = PageAllocator(4)
    for operation in (allocator.retain, allocator.release, lambda p: allocator.begin_step([p])):
        with pytest.raises(CacheError, match="page 3 is held by nobody"):
            operation(ids(3))
    assert states(allocator) == (4, 0, 0, 0)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        (ids(4), "page ids must be 0 to 3, got 4 to 4"),
        (ids(-1), "page ids must be 0 to 3, got -1 to -1"),
        (ids(0, 0), "distinct"),
        (ids(0, 1, 2, 3, 0), "5 ids of a pool of 4 pages cannot be distinct"),
        (np.array([0]), r"pages must be int32 \(n,\), got int64 \(1,\)"),
        (np.zeros((1, 1), np.int32), r"pages must be int32 \(n,\), got int32 \(1, 1\)"),
    ],
)
def test_bad_page_ids_are_refused(pages: np.ndarray, message: str) -> None:
    allocator = PageAllocator(4)
    allocator.allocate(4)
    for operation in (allocator.retain, allocator.release, lambda p: allocator.begin_step([p])):
        with pytest.raises(ValueError, match=message):
            operation(pages)
    assert states(allocator) == (0, 4, 0, 0)


def test_a_page_of_a_step_in_flight_is_not_reused() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(3)
    step = allocator.begin_step([pages[:2]])
    allocator.release(pages)
    assert states(allocator) == (2, 0, 0, 2)
    assert not set(allocator.allocate(2).tolist()) & set(pages[:2].tolist())
    with pytest.raises(OutOfPagesError):
        allocator.allocate(1)
    allocator.end_step(step)
    assert states(allocator) == (2, 2, 0, 0)


def test_a_page_waits_for_the_last_of_its_steps() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    first, second = allocator.begin_step([pages, pages]), allocator.begin_step([pages[:1]])
    allocator.release(pages)
    allocator.end_step(first)
    assert states(allocator) == (3, 0, 0, 1)
    allocator.end_step(second)
    assert states(allocator) == (4, 0, 0, 0)


def test_a_step_ends_once() -> None:
    allocator = PageAllocator(1)
    step = allocator.begin_step([allocator.allocate(1)])
    allocator.end_step(step)
    with pytest.raises(CacheError, match="step 0 is not in flight"):
        allocator.end_step(step)


def test_the_peak_counts_everything_that_was_not_free() -> None:
    allocator = PageAllocator(8)
    pages = allocator.allocate(3)
    step = allocator.begin_step([pages])
    allocator.release(pages)
    allocator.allocate(2)
    allocator.end_step(step)
    allocator.allocate(1)
    assert allocator.counts.peak == 5


@pytest.mark.parametrize("num_pages", [0, -1])
def test_a_pool_has_pages(num_pages: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 page, got {num_pages}"):
        PageAllocator(num_pages)


def test_a_negative_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        PageAllocator(1).allocate(-1)


def test_a_kept_page_is_cached_when_nobody_holds_it_and_free_when_it_is_forgotten() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(3)
    allocator.keep(pages[:2])
    assert allocator.is_kept(pages).tolist() == [True, True, False]
    allocator.release(pages)
    assert states(allocator) == (2, 0, 2, 0)
    assert sorted(allocator.cached_pages().tolist()) == sorted(pages[:2].tolist())
    assert not set(allocator.allocate(2).tolist()) & set(pages[:2].tolist())
    with pytest.raises(OutOfPagesError, match="need 1 pages, 0 free"):
        allocator.allocate(1)
    allocator.forget(pages[:2])
    assert states(allocator) == (2, 2, 0, 0)
    assert set(allocator.allocate(2).tolist()) == set(pages[:2].tolist())


def test_a_cached_page_is_held_again() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    allocator.keep(pages)
    allocator.hold(pages[:1])
    allocator.release(pages)
    assert states(allocator) == (2, 1, 1, 0)
    allocator.hold(pages)
    assert states(allocator) == (2, 2, 0, 0)
    assert allocator.ref_counts(pages).tolist() == [2, 1]
    allocator.forget(pages)
    assert states(allocator) == (2, 2, 0, 0)


def test_a_kept_page_of_a_step_in_flight_is_held_again_or_cached_afterwards() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(3)
    allocator.keep(pages)
    step = allocator.begin_step([pages])
    allocator.release(pages)
    assert states(allocator) == (1, 0, 0, 3)
    allocator.hold(pages[:1])
    allocator.forget(pages[2:])
    assert states(allocator) == (1, 1, 0, 2)
    allocator.end_step(step)
    assert states(allocator) == (2, 1, 1, 0)


def test_what_is_not_kept_or_not_held_is_refused_and_changes_nothing() -> None:
    allocator = PageAllocator(4)
    pages = allocator.allocate(2)
    allocator.keep(pages[:1])
    for operation in (allocator.hold, allocator.forget):
        with pytest.raises(CacheError, match=f"page {pages[1]} is not kept"):
            operation(pages)
    allocator.release(pages)
    with pytest.raises(CacheError, match="held by nobody"):
        allocator.keep(pages[1:])
    assert states(allocator) == (3, 0, 1, 0)


def test_the_peak_does_not_count_what_is_cached() -> None:
    allocator = PageAllocator(8)
    pages = allocator.allocate(4)
    allocator.keep(pages)
    allocator.release(pages)
    allocator.allocate(3)
    assert allocator.counts.peak == 4
    allocator.hold(pages)
    assert allocator.counts.peak == 7
