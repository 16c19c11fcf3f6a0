"""A session survives a power cut: what is restored continues as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
import struct
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import edgekv
from edgekv import SamplingOptions
from edgekv.bundle import Bundle
from edgekv.cache.retention import retention_rules
from edgekv.session_file import SessionFile
from tests.session.helpers import QUESTION, Picture, load_pages, push

PAGES = 60  # of the pools here; the demo model's window takes about 33


@pytest.fixture(scope="module")
def twin(bundle_path: Path) -> Iterator[edgekv.Model]:
    """The same model in a pool of its own, of the size of ``origin``'s."""
    with load_pages(bundle_path, PAGES) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def origin(bundle_path: Path) -> Iterator[edgekv.Model]:
    with load_pages(bundle_path, PAGES) as loaded:
        yield loaded


def stream(model: edgekv.Model, picture: Picture, num_frames: int) -> edgekv.Session:
    """A session with instructions, text among its frames, and frames that have moved."""
    session = model.session(instructions="You watch a street.", reserve_tokens=70)
    push(session, picture, 0, num_frames // 2)
    session.say("Is there a red circle?")
    push(session, picture, num_frames // 2, num_frames - num_frames // 2)
    return session


def same_counts(one: edgekv.Session, other: edgekv.Session) -> None:
    for name in (
        "num_frames", "num_context_frames", "num_evicted_frames", "num_questions", "num_tokens",
    ):  # fmt: skip
        assert getattr(one.stats(), name) == getattr(other.stats(), name), name


@pytest.mark.parametrize("num_frames", [0, 6, 45])
def test_what_is_restored_continues_bit_identically(
    origin: edgekv.Model, twin: edgekv.Model, picture: Picture, tmp_path: Path, num_frames: int
) -> None:
    path = tmp_path / "a.session"
    with stream(origin, picture, num_frames) as session:
        session.ask(QUESTION, SamplingOptions(max_new_tokens=2))
        before = session.stats()
        size = session.save(path)
        assert session.stats() == before
        with twin.restore(path) as restored:
            same_counts(session, restored)
            assert (restored.retain, restored.instructions) == ("window", "You watch a street.")
            assert restored.last_time_s == session.last_time_s
            np.testing.assert_array_equal(restored.logits(QUESTION), session.logits(QUESTION))
            # Past the next evictions: same window, same shifts, same decisions.
            push(session, picture, num_frames, 12)
            push(restored, picture, num_frames, 12)
            same_counts(session, restored)
            assert num_frames < 45 or session.stats().num_evicted_frames > 20
            np.testing.assert_array_equal(restored.logits(QUESTION), session.logits(QUESTION))
            assert restored.ask(QUESTION).text == session.ask(QUESTION).text
            with pytest.raises(ValueError, match="backwards"):
                restored.push(picture(0), 0.0)
    assert size == path.stat().st_size


@pytest.mark.parametrize("rule", retention_rules())
def test_a_restored_session_forgets_what_the_saved_one_would_have(
    origin: edgekv.Model, twin: edgekv.Model, picture: Picture, tmp_path: Path, rule: str
) -> None:
    with origin.session(retain=rule) as session:
        push(session, picture, 0, 30)
        session.save(tmp_path / "a.session")
        with twin.restore(tmp_path / "a.session") as restored:
            push(session, picture, 30, 20)
            push(restored, picture, 30, 20)
            np.testing.assert_array_equal(restored.context_frames(), session.context_frames())
            np.testing.assert_array_equal(restored.logits(QUESTION), session.logits(QUESTION))


def test_only_live_pages_are_stored(
    origin: edgekv.Model, bundle_path: Path, picture: Picture, tmp_path: Path
) -> None:
    page_bytes = Bundle.open(bundle_path).geometry.page_bytes
    with origin.session() as session:
        push(session, picture, 0, 5)
        num_pages = session.stats().pages_live
        size = session.save(tmp_path / "a")
        assert 0 < size - num_pages * page_bytes < 8192
        push(session, picture, 5, 45)
        assert session.save(tmp_path / "b") < (PAGES - 10) * page_bytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_holds_nothing_of_other_sessions(
    origin: edgekv.Model, twin: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    """Slots without a token hold what whoever had the page before left there."""
    with origin.session() as other:
        push(other, picture, 100, 50)
    for name, model in (("used", origin), ("fresh", twin)):
        with model.session() as session:
            push(session, picture, 0, 3)
            session.save(tmp_path / name)
    assert (tmp_path / "used").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_saving_disturbs_nothing_while_questions_are_open(
    origin: edgekv.Model, twin: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    with origin.session() as session, twin.session() as quiet:
        push(quiet, picture, 0, 20)
        expected = quiet.ask(QUESTION).text
        push(session, picture, 0, 20)
        pieces = session.ask_iter(QUESTION)
        fork = session.fork()
        session.save(tmp_path / "a")
        push(fork, picture, 20, 30)
        assert "".join(pieces) == expected
        fork.close()
        push(session, picture, 20, 20)
        push(quiet, picture, 20, 20)
        np.testing.assert_array_equal(session.logits(QUESTION), quiet.logits(QUESTION))


def test_a_save_from_another_thread_holds_whole_frames(
    origin: edgekv.Model, twin: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    path, done = tmp_path / "a", threading.Event()
    with origin.session() as session:

        def save_often() -> None:
            while not done.is_set():
                session.save(path)

        saver = threading.Thread(target=save_often)
        saver.start()
        push(session, picture, 0, 40)
        done.set()
        saver.join()
        session.save(tmp_path / "end")
    for saved in (path, tmp_path / "end"):
        with twin.restore(saved) as restored:
            stats = restored.stats()
            assert stats.num_context_frames + stats.num_evicted_frames == stats.num_frames
            assert restored.last_time_s == (stats.num_frames - 1) / 2


def test_a_restored_session_can_be_saved_again_and_forked(
    origin: edgekv.Model, twin: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    with stream(origin, picture, 20) as session:
        session.save(tmp_path / "a")
    with twin.restore(tmp_path / "a") as restored:
        restored.save(tmp_path / "b")
        with restored.fork() as child:
            child.save(tmp_path / "c")
    first = (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes() == first


# -- another pool ---------------------------------------------------------------------------------


def test_a_larger_pool_and_one_that_is_shared_take_it(
    origin: edgekv.Model, model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    with stream(origin, picture, 45) as session, model.session() as neighbour:
        push(neighbour, picture, 0, 3)
        session.save(tmp_path / "a")
        with model.restore(tmp_path / "a") as restored, model.restore(tmp_path / "a") as again:
            for each in (restored, again):
                np.testing.assert_array_equal(each.logits(QUESTION), session.logits(QUESTION))
                push(each, picture, 45, 40)


def test_a_pool_without_room_says_what_would_do_and_is_unchanged(
    origin: edgekv.Model, bundle_path: Path, picture: Picture, tmp_path: Path
) -> None:
    with origin.session(reserve_tokens=32) as session:
        push(session, picture, 0, 12)
        needed = session.stats().pages_live + 3
        session.save(tmp_path / "a")
        for num_pages in (needed - 1, needed):
            with load_pages(bundle_path, num_pages) as small:
                if num_pages == needed:
                    with small.restore(tmp_path / "a") as restored:
                        expected = session.logits(QUESTION)
                        np.testing.assert_array_equal(restored.logits(QUESTION), expected)
                        push(restored, picture, 12, 9)
                else:
                    with pytest.raises(edgekv.BudgetError, match=r"a KV budget of .* would do"):
                        small.restore(tmp_path / "a")
                with small.session(reserve_tokens=32) as empty:
                    assert empty.stats().pages_live == 1


# -- what must be refused -------------------------------------------------------------------------


@pytest.fixture
def saved(origin: edgekv.Model, picture: Picture, tmp_path: Path) -> Path:
    with stream(origin, picture, 6) as session:
        session.save(tmp_path / "a.session")
    return tmp_path / "a.session"


def refused(model: edgekv.Model, path: Path, said: str) -> None:
    with model.session() as probe:
        before = probe.stats()
        with pytest.raises(edgekv.SessionFileError, match=said) as error:
            model.restore(path)
        assert len(str(error.value).splitlines()) == 1
        after = probe.stats()
        assert dataclasses.replace(after, pages_peak=0) == dataclasses.replace(before, pages_peak=0)


def rewrite(path: Path, change: Callable[[dict], object]) -> None:
    """Change the header, with checksums that are right again."""
    data = path.read_bytes()
    magic, version, length, _ = struct.unpack_from("<8sII32s", data)
    fields = json.loads(data[48 : 48 + length])
    change(fields)
    header = json.dumps(fields).encode()
    digest = sha256(header).digest()
    path.write_bytes(
        struct.pack("<8sII32s", magic, version, len(header), digest) + header + data[48 + length :]
    )


@pytest.mark.parametrize("where", [0, 9, 13, 60, -1, 1 / 3, 2 / 3])
def test_a_changed_byte_is_seen(twin: edgekv.Model, saved: Path, where: float) -> None:
    data = bytearray(saved.read_bytes())
    at = where if isinstance(where, int) else int(len(data) * where)
    data[at] ^= 1
    saved.write_bytes(data)
    refused(twin, saved, "a.session: ")


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_refused(twin: edgekv.Model, saved: Path, share: float) -> None:
    saved.write_bytes(saved.read_bytes()[: int(saved.stat().st_size * share)])
    refused(twin, saved, "a.session: ")


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("model", "weights_sha256"), "0" * 64, "saved with the model demo 000000000000, this"),
        (("model", "geometry", "num_layers"), 9, "saved with num_layers 9 of the KV pool"),
        (("model", "geometry", "dtype"), "int8", "saved with dtype int8 of the KV pool"),
        (("model", "operator_version"), 9, "operator version 9"),
        (("session", "retain"), "newest", "retention rule must be one of"),
        (("session", "num_frames"), "many", "expected a whole number, got a text"),
        (("session", "num_frames"), -1, "num_frames must be a whole number from 0"),
        (("session", "reserve_tokens"), 0, "reserve_tokens must be a whole number from 2"),
        (("session", "mood"), "good", "unknown key 'mood'"),
    ],
)
def test_other_models_and_wrong_values_are_refused(
    twin: edgekv.Model, saved: Path, keys: tuple[str, ...], value: object, said: str
) -> None:
    def change(fields: dict) -> None:
        inner = fields["meta"]
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value

    rewrite(saved, change)
    refused(twin, saved, said)


def test_a_context_that_contradicts_itself_is_refused(twin: edgekv.Model, saved: Path) -> None:
    with SessionFile(saved) as file:
        valid = file.array("page.valid").copy()
    data = saved.read_bytes()
    at = data.index(valid.tobytes())
    valid[0] += 1
    saved.write_bytes(data[:at] + valid.tobytes() + data[at + valid.nbytes :])
    digest = sha256(valid.tobytes()).hexdigest()
    rewrite(saved, lambda fields: fields["blocks"]["page.valid"].update(sha256=digest))
    refused(twin, saved, "the saved context contradicts itself")


def test_another_kv_dtype_is_another_model(bundle_path: Path, saved: Path) -> None:
    with load_pages(bundle_path, 200, kv_dtype="float32") as other:
        said = r"this model has float32; load it with kv_dtype='float16' \(--kv-dtype float16\)$"
        refused(other, saved, f"saved with dtype float16 of the KV pool, {said}")


def test_a_missing_file_is_refused(twin: edgekv.Model, tmp_path: Path) -> None:
    refused(twin, tmp_path / "missing", "missing: cannot be read")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_save_that_could_not_be_restored_leaves_the_one_before(
    origin: edgekv.Model, twin: edgekv.Model, picture: Picture, saved: Path, number: float
) -> None:
    before = saved.read_bytes()
    with origin.session() as session:
        push(session, picture, 0, 3)
        pages = session._live.sequence.table.page_ids[-1:]
        contents = origin._runner.read_pages(pages).copy()
        contents[..., 0] = number
        origin._runner.write_pages(pages, contents)
        with pytest.raises(edgekv.SessionFileError, match="are infinite or no numbers"):
            session.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
    twin.restore(saved).close()


def test_what_cannot_be_written_says_so(
    origin: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    session = origin.session()
    push(session, picture, 0, 2)
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "no" / "where", tmp_path / "folder"):
        with pytest.raises(edgekv.SessionFileError, match="cannot be saved"):
            session.save(path)
    push(session, picture, 2, 2)
    session.close()
    with pytest.raises(edgekv.SessionError, match="closed"):
        session.save(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
