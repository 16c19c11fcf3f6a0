"""What is said beforehand about a session is what the session then does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.bundle import Bundle
from edgekv.capacity import session_capacity
from edgekv.config import KVDtype
from edgekv.errors import BudgetError
from edgekv.estimate import check_memory, estimate
from tests.session.cross_bundle import save_cross_bundle

Picture = Callable[[int], NDArray[np.uint8]]


@pytest.mark.parametrize(
    ("kv_budget", "kv_dtype", "instructions", "fitting", "leaving"),
    [
        ("1MiB", None, None, 24, 4),
        ("1MiB", None, "Watch the street. " * 20, 18, 3),
        ("400KiB", None, None, 10, 2),
        ("400KiB", None, "Watch the street. " * 20, 4, 2),
        ("200KiB", "int8", None, 7, 2),
        ("220KiB", None, None, 1, 1),
    ],
)
def test_a_session_holds_and_lets_go_what_was_said(
    bundle_path: Path,
    picture: Picture,
    kv_budget: str,
    kv_dtype: KVDtype | None,
    instructions: str | None,
    fitting: int,
    leaving: int,
) -> None:
    bundle = Bundle.open(bundle_path)
    num_pages = estimate(bundle, kv_budget, kv_dtype).num_pages
    said = session_capacity(bundle, num_pages, kv_dtype, instructions=instructions)
    assert said is not None
    assert (said.limits.fitting_frames, said.limits.leaving_frames) == (fitting, leaving)
    held, left = [], []
    with (
        edgekv.load(bundle_path, kv_budget=kv_budget, kv_dtype=kv_dtype, num_threads=1) as model,
        model.session(instructions=instructions) as session,
    ):
        assert session.stats().num_tokens == said.start_tokens
        for k in range(40):
            before = session.stats()
            session.push(picture(k % 5), k / 2)
            after = session.stats()
            held.append(after.num_context_frames)
            left.append(after.num_evicted_frames - before.num_evicted_frames)
            assert after.num_tokens == said.start_tokens + held[-1] * said.frame_tokens
    assert max(held) == fitting
    assert set(left) == {0, leaving} if fitting > 1 else {0, 1}


def test_what_no_session_can_be_opened_in_is_refused_alike(bundle_path: Path) -> None:
    bundle = Bundle.open(bundle_path)
    with pytest.raises(BudgetError) as said:
        session_capacity(bundle, estimate(bundle, "200KiB").num_pages)
    with (
        edgekv.load(bundle_path, kv_budget="200KiB", num_threads=1) as model,
        pytest.raises(BudgetError) as done,
    ):
        model.session()
    assert str(said.value) == str(done.value)


def test_a_context_without_frames_has_no_number_of_them(tmp_path: Path) -> None:
    assert (
        session_capacity(Bundle.open(save_cross_bundle(tmp_path / "bundle", "sounds")), 100) is None
    )


def test_what_is_refused_by_a_byte_is_not_said_to_be_enough(
    bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes are rounded for people, never so that what is there looks like what is needed."""
    bundle = Bundle.open(bundle_path)
    need = estimate(bundle, "1MiB")
    page_bytes = bundle.geometry.page_bytes
    with pytest.raises(edgekv.BudgetError, match=r"of 19\.9 KiB .*: one page takes 20\.0 KiB"):
        estimate(bundle, page_bytes - 1)
    with (
        edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1) as model,
        pytest.raises(ValueError, match=r"at least 64\.0 KiB, got 63\.9 KiB"),
    ):
        model.trace(tmp_path / "t", limit=64 * 2**10 - 1)
    for available in range(need.total_bytes - 1, need.total_bytes - 200_000, -10_000):
        monkeypatch.setattr("edgekv.estimate.available_bytes", lambda size=available: size)
        with pytest.raises(edgekv.BudgetError) as refused:
            check_memory(bundle, need)
        said = re.match(
            r"demo needs (\S+) MiB \(.*\), (\S+) MiB available here", str(refused.value)
        )
        assert said is not None
        assert float(said[1]) > float(said[2])
