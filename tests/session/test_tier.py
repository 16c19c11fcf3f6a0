"""A session whose frames go to disk: what is stored, what comes back, and what goes wrong."""

from __future__ import annotations

import logging
import math
import os
import resource
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import edgekv
from edgekv import SamplingOptions
from edgekv.cache.retention import retention_rules
from edgekv.cache.summaries import FrameSummaries
from edgekv.demo.needles import NeedleStream
from edgekv.errors import TierError
from edgekv.tier.file import HEADER_BYTES, TierFile
from edgekv.tier.store import Tier
from tests.session.helpers import QUESTION, Picture, load_pages, push, tier_of

pytestmark = pytest.mark.usefixtures("quick_disk")
OPTIONS = SamplingOptions(max_new_tokens=8)


def test_what_left_is_found_again(watched: edgekv.Session, needle: NeedleStream) -> None:
    about_needle, about_stranger = needle.about_needle()
    assert not np.isin(needle.sightings, watched.context_frames()).any()
    without = watched.ask(about_needle.text, OPTIONS)
    assert (without.text.strip(), without.recalled_frames) == ("no", ())
    assert tier_of(watched).num_recalled == 0
    answer = watched.ask(about_needle.text, OPTIONS, recall="auto")
    assert answer.text.strip() == "yes"
    assert tier_of(watched).num_recalled == len(answer.recalled_frames) > 0
    assert set(answer.recalled_frames) & set(needle.sightings)
    assert list(answer.recalled_frames) == sorted(set(answer.recalled_frames))
    assert answer.recalled_times_s == tuple(k / 2 for k in answer.recalled_frames)
    assert not np.isin(answer.recalled_frames, watched.context_frames()).any()
    assert watched.ask(about_stranger.text, OPTIONS, recall="auto").text.strip() == "no"
    pieces = "".join(watched.ask_iter(about_needle.text, OPTIONS, recall="auto"))
    assert pieces.strip() == "yes"


def test_recalling_leaves_the_live_context_as_it_was(
    watched: edgekv.Session, needle: NeedleStream
) -> None:
    before, logits = watched.stats(), watched.logits(QUESTION)
    frames = watched.context_frames()
    for _ in range(3):
        watched.ask(needle.about_needle()[0].text, OPTIONS, recall="auto")
    after = watched.stats()
    assert (watched.logits(QUESTION) == logits).all()
    assert (watched.context_frames() == frames).all()
    for name in ("num_tokens", "pages_live", "pages_available", "num_evicted_frames", "num_frames"):
        assert getattr(after, name) == getattr(before, name), name


def test_recall_changes_the_answer_in_no_other_way(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    """Before anything has left there is nothing to recall: the same logits."""
    with model.session(tier=tmp_path / "a.tier", tier_limit="1MiB") as session:
        push(session, picture, 0, 5)
        assert (session.logits(QUESTION, recall="auto") == session.logits(QUESTION)).all()
        assert session.ask(QUESTION, OPTIONS, recall="auto").recalled_frames == ()


@pytest.mark.parametrize("rule", retention_rules())
def test_every_frame_that_leaves_is_stored(
    model: edgekv.Model, picture: Picture, tmp_path: Path, rule: str
) -> None:
    path = tmp_path / "a.tier"
    with model.session(retain=rule, tier=path, tier_limit="1MiB") as session:
        push(session, picture, 0, 20)
        session.say("A red circle came.")
        push(session, picture, 20, 25)
        stats, tier = session.stats(), tier_of(session)
        assert tier.num_stored == tier.num_frames == stats.num_evicted_frames > 0
        assert tier.num_skipped == 0
        assert stats.num_frames == tier.num_frames + stats.num_context_frames
        session.ask(QUESTION, OPTIONS, recall="auto")
        assert tier_of(session).num_recalled > 0
    assert path.stat().st_size <= 1 << 20
    TierFile.open(path).close()  # nobody holds its lock


def test_the_byte_limit_holds_and_the_oldest_leave(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    path = tmp_path / "a.tier"
    with model.session(tier=path, tier_limit="128KiB") as session:
        most = tier_of(session).max_frames
        push(session, picture, 0, most + 40)
        tier = tier_of(session)
        assert tier.num_stored > most
        assert tier.num_frames == most
        assert tier.num_bytes <= path.stat().st_size <= 128 << 10


def test_a_full_disk_ends_storing_and_nothing_else(
    model: edgekv.Model, picture: Picture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with model.session(tier=tmp_path / "a.tier", tier_limit="1MiB") as session:
        resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES + 60_000, hard))
        try:
            with caplog.at_level(logging.WARNING, "edgekv"):
                push(session, picture, 0, 50)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        stats, tier = session.stats(), tier_of(session)
        assert stats.num_frames == 50
        assert tier.problem is not None
        assert "cannot be written (File too large)" in tier.problem
        assert sum("no longer stored" in r.getMessage() for r in caplog.records) == 1
        assert 0 < tier.num_frames == tier.num_stored < stats.num_evicted_frames
        session.ask(QUESTION, OPTIONS, recall="auto")
        assert tier_of(session).num_recalled > 0


def test_a_tier_that_no_saved_session_could_name_is_refused(
    model: edgekv.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / os.fsdecode(b"a\xff")
    odd.mkdir()
    monkeypatch.chdir(odd)
    for path in (tmp_path / os.fsdecode(b"t\xff"), "t"):
        with pytest.raises(ValueError, match="tier must be a path in Unicode, as saved sessions"):
            model.session(tier=path, tier_limit="1MiB")
    assert not list(odd.iterdir())
    assert list(tmp_path.iterdir()) == [odd]


@pytest.mark.parametrize("at", ["a push", "a question", "looking", "closing"])
def test_a_tier_that_is_removed_stores_no_more_and_says_so(
    model: edgekv.Model,
    picture: Picture,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    at: str,
) -> None:
    path = tmp_path / "folder" / "a.tier"
    path.parent.mkdir()
    said = f"{path}: it was removed, renamed or replaced meanwhile"
    with (
        caplog.at_level(logging.WARNING, "edgekv"),
        model.session(tier=path, tier_limit="1MiB") as session,
    ):
        push(session, picture, 0, 40)
        stored = tier_of(session).num_stored
        logits = session.logits(QUESTION, recall="auto")
        shutil.rmtree(path.parent)
        if at == "a push":
            push(session, picture, 40, 30)
        elif at == "a question":
            assert (session.logits(QUESTION, recall="auto") == logits).all(), "it can be read still"
        elif at == "looking":
            assert tier_of(session).problem == said
        if at != "closing":
            assert caplog.text.count(said) == 1
            tier = tier_of(session)
            assert (tier.problem, tier.num_stored, tier.recall_off) == (said, stored, None)
            assert session.ask(QUESTION, OPTIONS, recall="auto").recalled_frames
    assert caplog.text.count(said) == 1
    assert not path.parent.exists()


def test_a_tier_that_somebody_wrote_over_gives_nothing_out(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    """Whose records are as whole as its own, and have its numbers."""
    for name, first in (("other", 500), ("mine", 0)):
        session = model.session(tier=tmp_path / name, tier_limit="1MiB")
        push(session, picture, first, 40)
        if name == "other":
            session.close()
    with session:
        (tmp_path / "mine").write_bytes((tmp_path / "other").read_bytes())
        before = session.logits(QUESTION)
        assert (session.logits(QUESTION, recall="auto") == before).all()
        tier = tier_of(session)
        assert tier.problem == f"{tmp_path / 'mine'}: it was overwritten meanwhile"
        assert (tier.num_frames, tier.num_recalled) == (0, 0)
        push(session, picture, 40, 30)
        assert tier_of(session).num_stored == tier.num_stored
    assert (tmp_path / "mine").read_bytes() == (tmp_path / "other").read_bytes()


def test_damaged_frames_are_left_out(watched: edgekv.Session, tmp_path: Path) -> None:
    path = tmp_path / "a.tier"
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES:] = bytes(byte ^ 1 for byte in data[HEADER_BYTES:])
    with path.open("r+b") as file:
        file.write(data)
    plain = watched.ask(QUESTION, OPTIONS)
    tier = tier_of(watched)
    assert watched.ask(QUESTION, OPTIONS, recall="auto").text is not None
    after = tier_of(watched)
    assert after.num_recalled == tier.num_recalled
    assert after.num_damaged > 0
    assert after.num_frames == tier.num_frames - after.num_damaged
    assert watched.ask(QUESTION, OPTIONS).token_ids == plain.token_ids


def test_a_question_recalls_where_there_can_be_no_more_threads(
    watched: edgekv.Session, needle: NeedleStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    expected = watched.ask(needle.about_needle()[0].text, OPTIONS, recall="auto").text
    before = tier_of(watched).num_recalled
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert watched.ask(needle.about_needle()[0].text, OPTIONS, recall="auto").text == expected
    assert tier_of(watched).num_recalled == 2 * before


def test_where_reading_is_slower_it_says_so_and_stays_off(
    model: edgekv.Model,
    picture: Picture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Tier, "time_reading", lambda *_: 3600.0)
    with (
        caplog.at_level(logging.WARNING, "edgekv"),
        model.session(tier=tmp_path / "a.tier", tier_limit="1MiB") as session,
    ):
        push(session, picture, 0, 40)
        tier = tier_of(session)
        assert tier.recall_off is not None
        assert tier.recall_off.startswith("reading a frame back takes 3600000.0 ms here, encoding")
        assert tier.recall_off in caplog.text
        assert tier.reading_ms > tier.encoding_ms > 0
        assert (session.logits(QUESTION, recall="auto") == session.logits(QUESTION)).all()
        assert tier_of(session).num_recalled == 0
        assert tier_of(session).num_stored > 0, "another machine may read it"


def test_measuring_leaves_nothing_behind(model: edgekv.Model, tmp_path: Path) -> None:
    with model.session() as session:
        plain, logits = session.stats(), session.logits(QUESTION)
    with model.session(tier=tmp_path / "a.tier", tier_limit="1MiB") as session:
        tier = tier_of(session)
        assert 0 < tier.reading_ms < math.inf
        assert 0 < tier.encoding_ms < math.inf
        assert session.stats().pages_live == plain.pages_live
        assert (session.logits(QUESTION) == logits).all()
    assert [path.name for path in tmp_path.iterdir()] == ["a.tier"]


def test_reading_is_measured_later_where_the_pool_is_full(
    bundle_path: Path, picture: Picture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "edgekv"),
        load_pages(bundle_path, 40) as small,
        small.session() as other,
    ):
        push(other, picture, 0, 40)
        answer = other.ask_iter(QUESTION, SamplingOptions(max_new_tokens=10_000))
        next(answer)
        assert other.stats().pages_available == 0
        with small.session(tier=tmp_path / "a.tier", tier_limit="1MiB") as session:
            reason = tier_of(session).recall_off
            assert reason is not None
            assert reason.startswith("reading is measured when a question finds room for it (need ")
            assert math.isnan(tier_of(session).reading_ms)
            del answer  # its pages are free again
            push(session, picture, 40, 40)
            assert tier_of(session).recall_off == reason
            assert session.ask(QUESTION, OPTIONS, recall="auto").recalled_frames
            assert tier_of(session).recall_off is None
            assert tier_of(session).reading_ms < math.inf
    assert caplog.text.count("no frames will be recalled") == 1


def test_a_bundle_without_queries_stores_and_says_that_it_cannot_recall(
    model: edgekv.Model, picture: Picture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = replace(model.bundle.manifest, queries=None)
    monkeypatch.setattr(model, "bundle", replace(model.bundle, manifest=older))
    with model.session(tier=tmp_path / "a.tier", tier_limit="1MiB") as session:
        push(session, picture, 0, 40)
        assert "shows no queries" in str(tier_of(session).recall_off)
        assert tier_of(session).num_stored > 0
        session.ask(QUESTION, OPTIONS, recall="auto")
        assert tier_of(session).num_recalled == 0


@pytest.mark.parametrize("num_pages", [22, 26, 32, 40, 50])
def test_a_small_pool_keeps_room_for_what_comes_back(
    bundle_path: Path, picture: Picture, tmp_path: Path, num_pages: int
) -> None:
    with (
        load_pages(bundle_path, num_pages) as small,
        small.session(tier=tmp_path / "a.tier", tier_limit="1MiB") as session,
    ):
        push(session, picture, 0, 40)
        for _ in range(3):
            session.ask(QUESTION, OPTIONS, recall="auto")
            push(session, picture, 40, 1)
        assert tier_of(session).num_recalled >= 3
        assert session.stats().pages_peak <= num_pages


def test_a_long_answer_leaves_no_room_for_recalling_but_is_given(
    watched: edgekv.Session,
) -> None:
    answer = watched.ask(QUESTION, SamplingOptions(max_new_tokens=100_000), recall="auto")
    assert answer.text


def test_a_fork_has_no_tier(watched: edgekv.Session, picture: Picture) -> None:
    num_stored = tier_of(watched).num_stored
    with watched.fork() as fork:
        assert fork.stats().tier is None
        push(fork, picture, 200, 20)
        assert fork.ask(QUESTION, OPTIONS, recall="auto").text is not None
        fork.close()
    assert tier_of(watched).num_stored == num_stored
    watched.ask(QUESTION, OPTIONS, recall="auto")


# -- misuse ---------------------------------------------------------------------------------------
def test_wrong_arguments(model: edgekv.Model, session: edgekv.Session, tmp_path: Path) -> None:
    free = session.stats().pages_available
    with pytest.raises(ValueError, match="recall must be 'off' or 'auto', got 'yes'"):
        session.ask(QUESTION, recall="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tier format must be one of"):
        model.session(tier=tmp_path / "t", tier_format="int2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="retain='keep' lets no frame leave, so a tier would stay"):
        model.session(tier=tmp_path / "t", retain="keep")
    assert not (tmp_path / "t").exists()
    with pytest.raises(TierError, match="holds no frame"):
        model.session(tier=tmp_path / "t", tier_limit="5KiB")
    with pytest.raises(TierError, match="cannot be made"):
        model.session(tier=tmp_path / "no" / "t")
    (tmp_path / "t").write_bytes(b"edgekvti: what an earlier session left")
    for limit in (2**63 - 1, "4096TiB"):
        with pytest.raises(TierError, match=r"find \d+ frames again takes .* would do"):
            model.session(tier=tmp_path / "t", tier_limit=limit)
    assert (tmp_path / "t").read_bytes() == b"edgekvti: what an earlier session left"
    with (
        model.session(tier=tmp_path / "t", tier_limit="1MiB"),
        pytest.raises(TierError, match="another session writes to it"),
    ):
        model.session(tier=tmp_path / "t", tier_limit="1MiB")
    assert session.stats().pages_available == free, "nothing was taken"


def test_a_session_that_cannot_be_opened_leaves_an_older_tier(
    model: edgekv.Model, picture: Picture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.session(tier=tmp_path / "t", tier_limit="1MiB") as session:
        push(session, picture, 0, 40)
    before, counts = (tmp_path / "t").read_bytes(), model.figures().counts

    def no_memory(_: FrameSummaries) -> None:
        raise MemoryError

    monkeypatch.setattr(FrameSummaries, "keep", no_memory)
    with pytest.raises(MemoryError):
        model.session(tier=tmp_path / "t", tier_limit="1MiB", retain="novelty")
    assert (tmp_path / "t").read_bytes() == before
    assert model.figures().counts.live == counts.live


def test_models_that_cannot_recall_are_refused(
    model: edgekv.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = replace(model.bundle.manifest, shiftable=False)
    monkeypatch.setattr(model, "bundle", replace(model.bundle, manifest=fixed))
    with pytest.raises(ValueError, match="positions cannot be shifted"):
        model.session(tier=tmp_path / "t")
