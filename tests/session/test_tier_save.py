"""A session that is saved and restored goes on with its tier, or says why not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import edgekv
from edgekv import Frame
from edgekv.demo.needles import NeedleStream
from edgekv.errors import TierError
from edgekv.executors.ort_cpu import OrtDecoder
from edgekv.tier.store import Tier
from tests.session.helpers import QUESTION, Picture, load_pages, push, tier_of

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_a_restored_session_recalls_as_before(
    watched: edgekv.Session, model: edgekv.Model, needle: NeedleStream, tmp_path: Path
) -> None:
    question = needle.about_needle()[0].text
    logits = watched.logits(question, recall="auto")
    num_frames = tier_of(watched).num_frames
    watched.save(tmp_path / "a.session")
    watched.close()
    with model.restore(tmp_path / "a.session") as restored:
        assert tier_of(restored).num_frames == num_frames
        assert (restored.logits(question, recall="auto") == logits).all()
        for k in range(30):
            restored.push(needle.clip.frames[k], 100 + k)
        assert tier_of(restored).num_stored > 0
        assert tier_of(restored).num_frames == num_frames + tier_of(restored).num_stored


def test_times_tell_frames_of_the_same_number_apart(
    watched: edgekv.Session, model: edgekv.Model, needle: NeedleStream, tmp_path: Path
) -> None:
    """A source that begins anew counts its frames from 0 again."""
    watched.save(tmp_path / "a.session")
    watched.close()
    with model.restore(tmp_path / "a.session") as restored:
        for k in range(60):
            restored.push(Frame(needle.clip.frames[k], 100.0 + k, index=k))
        answer = restored.ask(needle.about_needle()[0].text, recall="auto")
    times_s = answer.recalled_times_s
    assert list(times_s) == sorted(set(times_s))
    assert times_s[0] < 100 < times_s[-1]
    for index, time_s in zip(answer.recalled_frames, times_s, strict=True):
        assert time_s == (index / 2 if time_s < 100 else 100 + index)


def test_frames_of_a_lost_hour_never_come_back(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    """A session goes on from a save older than its tier: what it has not seen is not recalled."""
    with model.session(tier=tmp_path / "a.tier", tier_limit="4MiB") as session:
        push(session, picture, 0, 40)
        session.save(tmp_path / "a.session")
        seen = session.stats().num_evicted_frames
        push(session, picture, 40, 60)
        lost = session.logits(QUESTION, recall="auto")
    with model.restore(tmp_path / "a.session") as restored:
        # What has left since the save and was in the context then is known, and still in it.
        assert seen <= tier_of(restored).num_frames <= 40
        push(restored, picture, 200, 60)
        assert tier_of(restored).num_frames == restored.stats().num_evicted_frames
        assert (restored.logits(QUESTION, recall="auto") != lost).any()


@pytest.mark.parametrize("what", ["gone", "another session's", "damaged", "in use"])
def test_without_its_tier_a_restored_session_goes_on(
    watched: edgekv.Session, model: edgekv.Model, picture: Picture, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "a.tier"
    watched.save(tmp_path / "a.session")
    logits = watched.logits(QUESTION)
    if what != "in use":
        watched.close()
    if what == "gone":
        path.unlink()
    elif what == "another session's":
        model.session(tier=path, tier_limit="1MiB").close()
    elif what == "damaged":
        path.write_bytes(b"edgekvti" + bytes(100))
    with model.restore(tmp_path / "a.session") as restored:
        tier = tier_of(restored)
        assert tier.recall_off is not None
        assert str(path) in tier.recall_off
        remedy = {"another session's": "begin anew with a file of its own", "in use": "of its own"}
        assert remedy.get(what, "") in tier.recall_off
        assert tier.num_frames == 0
        assert (restored.logits(QUESTION, recall="auto") == logits).all()
        push(restored, picture, 200, 10)
        assert tier_of(restored).num_stored == 0


def test_a_moved_session_without_a_tier_has_none(
    session: edgekv.Session, model: edgekv.Model, tmp_path: Path
) -> None:
    session.save(tmp_path / "a.session")
    with model.restore(tmp_path / "a.session") as restored:
        assert restored.stats().tier is None


def test_a_copied_tier_is_the_same_tier(
    watched: edgekv.Session, model: edgekv.Model, tmp_path: Path
) -> None:
    """A backup of both files, put back, is a session with all it had."""
    watched.save(tmp_path / "a.session")
    num_frames = tier_of(watched).num_frames
    shutil.copy(tmp_path / "a.tier", tmp_path / "copy")
    watched.close()
    (tmp_path / "copy").replace(tmp_path / "a.tier")
    with model.restore(tmp_path / "a.session") as restored:
        assert tier_of(restored).num_frames == num_frames


@pytest.mark.parametrize("rule", ["window", "novelty"])
def test_no_frame_is_lost_while_others_push_during_a_restore(
    bundle_path: Path,
    picture: Picture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
) -> None:
    with edgekv.load(bundle_path, kv_budget="900KiB", num_threads=1) as model:
        with model.session(tier=tmp_path / "t", tier_limit="1MiB", retain=rule) as session:
            push(session, picture, 0, 40)
            session.save(tmp_path / "saved")
        other, reopen = model.session(priority=5), Tier.reopen

        def no_step(*_: object) -> None:
            raise MemoryError

        def reopen_late(*arguments: Any) -> Tier:
            push(other, picture, 100, 10)
            with monkeypatch.context() as broken:
                broken.setattr(OrtDecoder, "run", no_step)
                with pytest.raises(MemoryError):
                    push(other, picture, 200, 1)
            return reopen(*arguments)

        monkeypatch.setattr(Tier, "reopen", reopen_late)
        with model.restore(tmp_path / "saved") as restored:
            push(other, picture, 300, 10)
            in_context = len(restored.context_frames())
            assert tier_of(restored).num_stored > 0
            assert tier_of(restored).num_frames + in_context == 40


def test_a_session_that_is_being_restored_stands_in_nobodys_way(
    bundle_path: Path, picture: Picture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tier may take long to read. Until it can give frames up it takes no room."""
    with load_pages(bundle_path, 24, share=False) as model:
        with model.session(tier=tmp_path / "t", tier_limit="1MiB", reserve_tokens=64) as session:
            push(session, picture, 0, 11)
            session.save(tmp_path / "saved")
        other, reopen = model.session(reserve_tokens=64), Tier.reopen

        def reopen_late(*arguments: Any) -> Tier:
            push(other, picture, 100, 5)
            other.ask("red " * 150)
            return reopen(*arguments)

        monkeypatch.setattr(Tier, "reopen", reopen_late)
        with model.restore(tmp_path / "saved") as restored:
            assert other.context_frames().size > 0
            other.ask("red " * 150)  # takes frames from it, and they are stored
            assert tier_of(restored).num_frames == restored.stats().num_evicted_frames > 0


@pytest.mark.parametrize("num_saved", [3, 8], ids=["room for both", "not for both"])
def test_a_restore_that_fails_leaves_frames_in_tiers_and_in_other_sessions(
    bundle_path: Path,
    picture: Picture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_saved: int,
) -> None:
    with load_pages(bundle_path, 24, share=False) as model:
        with model.session(tier=tmp_path / "t", tier_limit="1MiB", reserve_tokens=64) as session:
            push(session, picture, 0, num_saved)
            session.save(tmp_path / "saved")
            push(session, picture, num_saved, 40)
        stored = (tmp_path / "t").read_bytes()
        with model.session(reserve_tokens=64) as other:
            push(other, picture, 100, 30)
            frames, logits = other.context_frames(), other.logits(QUESTION)
            data = bytearray((tmp_path / "saved").read_bytes())
            data[len(data) // 2] ^= 1
            (tmp_path / "damaged").write_bytes(data)

            def check_untouched() -> None:
                assert len(model.figures().sessions) == 1
                assert (tmp_path / "t").read_bytes() == stored
                assert (other.context_frames() == frames).all()
                assert (other.logits(QUESTION) == logits).all()

            with pytest.raises(edgekv.SessionFileError, match="SHA-256 differs"):
                model.restore(tmp_path / "damaged")
            check_untouched()

            def breaks(*_: object) -> None:
                raise RuntimeError("no disk today")

            # Where there is no room for both, what the others gave is gone once it is taken.
            late = [(OrtDecoder, "write_pages"), (Tier, "erase_unseen")] if num_saved == 3 else []
            for owner, name in [(Tier, "time_reading"), *late]:
                with monkeypatch.context() as broken:
                    broken.setattr(owner, name, breaks)
                    with pytest.raises(RuntimeError, match="no disk today"):
                        model.restore(tmp_path / "saved")
                check_untouched()
            with model.restore(tmp_path / "saved") as restored:
                assert tier_of(restored).recall_off is None
            assert (tmp_path / "t").read_bytes() != stored
            assert other.context_frames().size < frames.size, "nobody had to give room"


@pytest.mark.parametrize("failing", ["no file", "measuring"])
def test_a_session_whose_tier_cannot_be_had_takes_nothing_from_others(
    bundle_path: Path,
    picture: Picture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
) -> None:
    def breaks(*_: object) -> None:
        raise TierError("no disk today") if failing == "no file" else RuntimeError("no disk today")

    broken = (Tier, "create") if failing == "no file" else (Tier, "time_reading")
    with (
        load_pages(bundle_path, 24, share=False) as model,
        model.session(reserve_tokens=64) as other,
    ):
        push(other, picture, 100, 30)
        while model.figures().counts.free > 5:  # as full as it gets
            push(other, picture, 200, 1)
        frames, logits = other.context_frames(), other.logits(QUESTION)

        def opened() -> edgekv.Session:
            return model.session(
                tier=tmp_path / "t", tier_limit="1MiB", instructions="red " * 40, priority=1
            )

        with monkeypatch.context() as patched:
            patched.setattr(*broken, breaks)
            with pytest.raises((TierError, RuntimeError), match="no disk today"):
                opened()
        assert (other.context_frames() == frames).all()
        assert (other.logits(QUESTION) == logits).all()
        assert len(model.figures().sessions) == 1
        opened().close()
        assert other.context_frames().size < frames.size, "there was room for both"


def test_a_restore_whose_tier_breaks_takes_nothing(
    model: edgekv.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.session(tier=tmp_path / "t", tier_limit="1MiB") as session:
        session.save(tmp_path / "saved")
    before = model.figures().counts

    def breaks(*_: object) -> None:
        raise OSError("no disk today")

    monkeypatch.setattr(model, "_reopen", breaks)
    with pytest.raises(OSError, match="no disk today"):
        model.restore(tmp_path / "saved")
    after = model.figures()
    assert (after.counts.live, after.sessions) == (before.live, ())
