"""What is dropped without ``close`` is given back, as with files: at once what others wait for, and
nothing of it runs in the middle of what Python happens to be doing."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import edgekv
from edgekv.tier.file import TierFile
from tests.session.helpers import load_pages

Picture = Callable[[int], NDArray[np.uint8]]
SHORT = edgekv.SamplingOptions(max_new_tokens=2)


@pytest.fixture
def without_gc() -> Iterator[None]:
    """Nothing is given back because cycles happen to be looked for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def begin(model: edgekv.Model, folder: Path, picture: Picture, num_frames: int) -> edgekv.Session:
    session = model.session(tier=folder / "t", tier_limit="1MiB", reserve_tokens=64)
    for k in range(num_frames):
        session.push(picture(k), float(k))
    return session


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock of a tier."""
    try:
        TierFile.open(path).close()
    except edgekv.EdgeKVError:
        return False
    return True


@pytest.mark.usefixtures("without_gc")
def test_a_dropped_session_lets_its_tier_go_at_once(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    """Though the model is not used again, and another thread holds the pool."""
    session = begin(model, tmp_path, picture, 30)
    session.ask("What do you see?", SHORT, recall="auto")
    with session.fork():
        assert not is_free(tmp_path / "t")
        held, done = threading.Event(), threading.Event()

        def use_the_pool() -> None:
            with model._runner.lock:
                held.set()
                assert done.wait(60), "dropping it waits"

        user = threading.Thread(target=use_the_pool)
        user.start()
        assert held.wait(60)
        with pytest.warns(ResourceWarning, match="unclosed file .*/t'"):
            del session
        assert is_free(tmp_path / "t")
        done.set()
        user.join(60)
    assert model.figures().counts.live == 0


def test_a_dropped_session_in_a_cycle_too(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    cycle: list[object] = [begin(model, tmp_path, picture, 3)]
    cycle.append(cycle)
    del cycle
    with pytest.warns(ResourceWarning, match="unclosed file .*/t'"):
        gc.collect()
    assert is_free(tmp_path / "t")
    assert model.figures().counts.live == 0


@pytest.mark.usefixtures("without_gc")
def test_an_answer_outlives_the_session_it_was_asked_of(
    model: edgekv.Model, picture: Picture, tmp_path: Path
) -> None:
    session = begin(model, tmp_path, picture, 3)
    expected = session.ask("What do you see?", SHORT).text
    pieces = session.ask_iter("What do you see?", SHORT)
    with pytest.warns(ResourceWarning, match="unclosed"):
        del session
    assert "".join(pieces) == expected
    assert model.figures().counts.live == 0


@pytest.mark.usefixtures("without_gc")
def test_others_may_take_frames_of_a_session_the_moment_it_is_dropped(
    bundle_path: Path, picture: Picture, tmp_path: Path
) -> None:
    """In one of two threads it is dropped, in the other its frames leave for somebody else's."""
    with load_pages(bundle_path, 24, share=False) as model:
        dropped = [begin(model, tmp_path, picture, 12)]
        member = model._runner.sharing.members[0]
        with model.session(reserve_tokens=64) as other:
            assert member.on_leaving is not None
            on_leaving = member.on_leaving

            def drop_first(*arguments: object) -> None:
                with pytest.warns(ResourceWarning, match="unclosed"):
                    dropped.clear()
                on_leaving(*arguments)  # type: ignore[arg-type]

            member.on_leaving = drop_first
            for k in range(30):
                other.push(picture(k), float(k))
            assert not dropped
            assert other.context_frames()[-1] == 29
        assert model.figures().counts.live == 0


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("last", ["model", "session"])
def test_a_dropped_model_gives_its_pools_back_with_its_last_session(
    bundle_path: Path, picture: Picture, tmp_path: Path, last: str
) -> None:
    """Collecting cycles may be long in coming: it counts objects, and pools are few."""
    model = edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1)
    pools = weakref.ref(model._runner._decoder)
    session = begin(model, tmp_path, picture, 3)
    if last == "session":
        del model
        session.push(picture(3), 3.0)
        assert pools() is not None
        session.close()
        assert is_free(tmp_path / "t")
        del session
    else:
        session.close()
        del session, model
    assert pools() is None
