"""When a question falls due, on any times that a stream may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.schedule import Due, Question


def test_times_that_passed_are_counted_once() -> None:
    due = Due(Question("?", every_s=2.0))
    assert [due.take(now_s) for now_s in (0.0, 1.9, 2.0, 2.0, 3.9, 9.0, 9.9, 10.0)] == [
        0, 0, 1, 0, 0, 3, 0, 1,
    ]  # fmt: skip
    once = Due(Question("?", at_s=3.0))
    assert [once.take(now_s) for now_s in (2.9, 5.0, 6.0)] == [0, 1, 0]


@given(
    st.floats(min_value=5e-324, max_value=1e308),
    st.lists(st.floats(min_value=0, max_value=1e308), max_size=8),
)
def test_no_time_is_too_short_or_too_long(every_s: float, times_s: list[float]) -> None:
    due = Due(Question("?", every_s=every_s))
    for now_s in sorted(times_s):
        num_due = due.take(now_s)
        assert num_due >= 0
        assert not num_due or now_s >= every_s


@pytest.mark.parametrize("every_s", [5e-324, 1e-300])
def test_a_time_shorter_than_any_step_is_due_each_time(every_s: float) -> None:
    due = Due(Question("?", every_s=every_s))
    assert all(due.take(now_s) > 0 for now_s in (0.5, 1.0, 1e9, 1e300))
