"""What a session promises: a bounded context, questions that disturb nothing, forks."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv import SamplingOptions
from edgekv.cache.retention import retention_rules
from tests.session.helpers import QUESTION, SHORT, Picture, load_pages, push


def fill(session: edgekv.Session, picture: Picture) -> int:
    """Push until the first frame has left; how many the context held at most."""
    most = 0
    for k in range(200):
        session.push(picture(k), k / 2)
        stats = session.stats()
        most = max(most, stats.num_context_frames)
        if stats.num_evicted_frames:
            return most
    raise AssertionError("the window never filled")


def test_a_stream_stays_bounded_and_its_counts_add_up(
    session: edgekv.Session, picture: Picture
) -> None:
    window = fill(session, picture)
    for k in range(200, 300):
        session.push(picture(k), float(k))
        stats = session.stats()
        assert stats.num_context_frames <= window
        assert stats.num_context_frames + stats.num_evicted_frames == stats.num_frames
        in_use = stats.pages_live + stats.pages_cached + stats.pages_in_flight
        assert in_use + stats.pages_free == stats.num_pages
        assert stats.utilisation >= 0.9
    assert stats.utilisation >= 0.95 or stats.num_context_frames < window


@pytest.mark.parametrize("rule", retention_rules())
def test_every_rule_keeps_the_newest_and_forgets_nothing_for_a_fork(
    model: edgekv.Model, picture: Picture, rule: str
) -> None:
    def own(k: int) -> NDArray[np.uint8]:  # that no other session has warmed
        return picture(40_000 + k)

    with model.session(retain=rule) as session:
        push(session, own, 0, 40)
        with session.fork() as child:
            before, kept = child.logits(QUESTION), child.context_frames()
            push(session, own, 40, 40)
            np.testing.assert_array_equal(child.context_frames(), kept)
            np.testing.assert_array_equal(child.logits(QUESTION), before)
        frames = session.context_frames()
        assert len(frames) == session.stats().num_context_frames
        assert frames[-3:].tolist() == [77, 78, 79]
        if rule in ("window", "uniform", "least-attended"):
            assert (frames[0] == 0) == (rule == "uniform")


def test_a_hundred_questions_leave_the_next_logits_bit_identical(
    model: edgekv.Model, picture: Picture
) -> None:
    with model.session() as asked, model.session() as quiet:
        push(asked, picture, 0, 30)
        push(quiet, picture, 0, 30)
        free = asked.stats().pages_available
        for k in range(100):
            asked.ask(f"{QUESTION} {k}", SHORT)
        assert asked.stats().pages_available == free
        push(asked, picture, 30, 5)
        push(quiet, picture, 30, 5)
        np.testing.assert_array_equal(asked.logits(QUESTION), quiet.logits(QUESTION))


def test_the_context_matters(model: edgekv.Model, picture: Picture) -> None:
    with model.session() as one, model.session() as other:
        push(one, picture, 0, 3)
        push(other, picture, 3, 3)
        assert np.abs(one.logits(QUESTION) - other.logits(QUESTION)).max() > 1e-3


def test_pieces_of_an_answer_join_to_the_answer(session: edgekv.Session, picture: Picture) -> None:
    push(session, picture, 0, 3)
    answer = session.ask(QUESTION)
    assert "".join(session.ask_iter(QUESTION)) == answer.text
    assert answer.ttft_s > 0
    assert answer.finish_reason in ("stop", "length")


def test_frames_pushed_while_an_answer_is_drawn_are_not_in_it(
    session: edgekv.Session, picture: Picture
) -> None:
    push(session, picture, 0, 3)
    expected = session.ask(QUESTION).text
    pieces = session.ask_iter(QUESTION)
    push(session, picture, 3, 30)
    assert "".join(pieces) == expected


def test_an_answer_that_is_never_read_gives_its_pages_back(
    session: edgekv.Session, picture: Picture
) -> None:
    push(session, picture, 0, 3)
    free = session.stats().pages_available
    pieces = session.ask_iter(QUESTION)
    del pieces
    assert session.stats().pages_available == free


def test_the_same_seed_draws_the_same_answer(session: edgekv.Session, picture: Picture) -> None:
    push(session, picture, 0, 3)
    options = SamplingOptions(max_new_tokens=8, temperature=2.0, seed=3)
    assert session.ask(QUESTION, options).token_ids == session.ask(QUESTION, options).token_ids


def test_a_fork_goes_its_own_way(session: edgekv.Session, picture: Picture) -> None:
    push(session, picture, 0, 4)
    before = session.logits(QUESTION)
    with session.fork() as child:
        np.testing.assert_array_equal(child.logits(QUESTION), before)
        push(child, picture, 50, 40)  # evicts every shared frame on the child's side
        assert child.stats().num_evicted_frames > 4
        np.testing.assert_array_equal(session.logits(QUESTION), before)
    np.testing.assert_array_equal(session.logits(QUESTION), before)


def test_forked_and_fresh_give_the_same_logits(model: edgekv.Model, picture: Picture) -> None:
    with model.session() as parent:
        push(parent, picture, 0, 4)
        with parent.fork() as child, model.session() as fresh:
            push(child, picture, 4, 3)
            push(fresh, picture, 0, 7)
            np.testing.assert_array_equal(child.logits(QUESTION), fresh.logits(QUESTION))


def test_sessions_over_one_pool_do_not_see_each_other(
    model: edgekv.Model, picture: Picture
) -> None:
    with model.session() as alone:
        push(alone, picture, 0, 30)
        expected = alone.logits(QUESTION)
    with model.session() as one, model.session() as other:
        for k in range(30):
            one.push(picture(k), k / 2)
            other.push(picture(k + 500), k / 2)
        np.testing.assert_array_equal(one.logits(QUESTION), expected)


def test_text_that_is_said_changes_the_context_and_leaves_again(
    session: edgekv.Session, picture: Picture
) -> None:
    push(session, picture, 0, 2)
    before, num_before = session.logits(QUESTION), session.stats().num_tokens
    session.say("Is there a red circle?")
    assert not np.array_equal(session.logits(QUESTION), before)
    num_said = session.stats().num_tokens - num_before
    assert num_said > 0
    push(session, picture, 2, 60)
    stats = session.stats()
    pinned = num_before - 2 * 16
    assert stats.num_tokens == pinned + 16 * stats.num_context_frames


def test_instructions_are_pinned(model: edgekv.Model, picture: Picture) -> None:
    with model.session() as plain, model.session(instructions="You watch a street.") as told:
        push(plain, picture, 0, 60)
        push(told, picture, 0, 60)
        num_pinned = told.stats().num_tokens - 16 * told.stats().num_context_frames
        assert num_pinned > plain.stats().num_tokens - 16 * plain.stats().num_context_frames
        assert not np.array_equal(told.logits(QUESTION), plain.logits(QUESTION))


def test_a_tiny_pool_works_and_a_smaller_one_is_refused_with_what_would_do(
    bundle_path: Path, picture: Picture
) -> None:
    with load_pages(bundle_path, 12) as small:
        with small.session(reserve_tokens=64) as session:
            push(session, picture, 0, 20)
            assert session.stats().num_context_frames >= 1
            assert session.ask(QUESTION, SHORT).token_ids
        with pytest.raises(edgekv.BudgetError, match=r"a KV budget of .* would do"):
            small.session(reserve_tokens=400)
    with pytest.raises(edgekv.BudgetError, match="one page takes"):
        edgekv.load(bundle_path, kv_budget="1KiB")
    with pytest.raises(edgekv.BudgetError, match="would fit"):
        edgekv.load(bundle_path, kv_budget="4096GiB")


def test_a_pool_that_takes_most_of_the_machine_says_so_in_one_line(
    bundle_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As settings of a larger device do."""
    monkeypatch.setattr("edgekv.estimate.available_bytes", lambda: 100 * 2**20)
    edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1, encoder_cache=0).close()
    (line,) = caplog.messages
    assert re.fullmatch(
        r"demo takes 7\d\.\d MiB \(\d\d\.\d MiB model and workspace, 1020\.0 KiB KV pool\), "
        r"7\d % of the 100\.0 MiB available here: a smaller kv_budget \(--kv-budget\) takes less",
        line,
    )
    caplog.clear()
    monkeypatch.setattr("edgekv.estimate.available_bytes", lambda: 200 * 2**20)
    edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1, encoder_cache=0).close()
    assert caplog.messages == []


def test_a_budget_that_would_fit_does_a_moment_later(
    bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a little of what was available is gone."""
    available = 200 * 2**20 + 12_345
    monkeypatch.setattr("edgekv.estimate.available_bytes", lambda: available)
    with pytest.raises(edgekv.BudgetError, match="5 % to spare") as refused:
        edgekv.load(bundle_path, kv_budget="512GiB")
    (advice,) = re.findall(r"a KV budget of (.*) would fit", str(refused.value))
    available -= 5 * 2**20
    with edgekv.load(bundle_path, kv_budget=advice, num_threads=1) as model:
        assert model.figures().counts.num_pages > 5000


def test_a_long_prompt_lets_the_fork_forget_and_not_the_stream(
    session: edgekv.Session, picture: Picture
) -> None:
    push(session, picture, 0, 24)
    frames = session.stats().num_context_frames
    answer = session.ask("What do you see? " * 30, SHORT)
    assert answer.finish_reason in ("stop", "length")
    assert session.stats().num_context_frames == frames
    with pytest.raises(edgekv.ContextError, match=r"prompt of \d+ tokens does not fit"):
        session.ask("What do you see? " * 300, SHORT)
    assert session.stats().num_context_frames == frames
