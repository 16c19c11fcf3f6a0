"""What holds memory by its address, or pages that are counted, is never there twice."""

from __future__ import annotations

import copy
import ctypes
import importlib
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

import edgekv
from edgekv import native
from edgekv.cache import PageCache
from edgekv.cache.allocator import PageAllocator
from edgekv.cache.cross import CrossCache
from edgekv.cache.layout import Layout
from edgekv.config import KVGeometry
from edgekv.executors.host_pools import HostPools
from edgekv.native.ledger import Ledger
from edgekv.native.pages import PageCopier

GEOMETRY = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=8, page_size=16, dtype="float32")
WAYS = pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
KINDS: dict[str, Callable[[], object]] = {
    "PageCache": lambda: PageCache(GEOMETRY, 4),
    "Sequence": lambda: PageCache(GEOMETRY, 4).open(),
    "CrossCache": lambda: CrossCache(GEOMETRY, 4),
    "PageAllocator": lambda: PageAllocator(4),
    "Layout": lambda: Layout(4, 1),
    "Ledger": lambda: Ledger(4),
    "PageCopier": lambda: PageCopier([np.zeros((4, 2), np.float32)]),
    "HostPools": lambda: HostPools(GEOMETRY, 4),
}


def check_refused(way: Callable[[object], object], name: str, thing: object) -> None:
    with pytest.raises(TypeError, match=rf"^a {name} is neither copied nor pickled: .+$") as said:
        way(thing)
    assert len(str(said.value).splitlines()) == 1


@WAYS
@pytest.mark.parametrize("name", KINDS)
def test_it_is_refused_in_one_line(way: Callable[[object], object], name: str) -> None:
    check_refused(way, name, KINDS[name]())


def test_so_is_whatever_native_calls_work_on() -> None:
    found = set[str]()
    for path in Path(native.__file__).parent.glob("[a-z]*.py"):
        module = importlib.import_module(f"{native.__name__}.{path.stem}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            is_data = issubclass(kind, tuple | ctypes.Structure | Exception)
            is_made = not (is_data or Protocol in kind.__bases__)
            if kind.__module__ == module.__name__ and is_made:
                check_refused(copy.copy, name, kind.__new__(kind))
                found.add(name)
    assert found >= {"Ledger", "LayoutDropper", "PageCopier"}


@WAYS
def test_a_model_and_all_that_is_of_it_is_refused(
    way: Callable[[object], object], model: edgekv.Model, session: edgekv.Session
) -> None:
    check_refused(way, "Model", model)
    check_refused(way, "Session", session)
    assert session.stats().num_frames == 0


@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps])
def test_what_holds_a_model_or_a_session_is_refused_for_it(
    way: Callable[[object], object], model: edgekv.Model, session: edgekv.Session
) -> None:
    answer = session.ask_iter("What do you see?")
    for name, thing in (("Model", {"model": model}), ("Session", [session])):
        check_refused(way, name, thing)
    check_refused(way, "PageCache", answer)
    assert "".join(answer)


def test_a_session_is_not_sent_to_another_process(session: edgekv.Session) -> None:
    context = multiprocessing.get_context("spawn")
    with pytest.raises(TypeError, match="a Session is neither copied nor pickled: use its fork"):
        context.Process(target=print, args=(session,)).start()


@WAYS
def test_a_video_is_opened_once_more(way: Callable[[object], object], small_clip: Path) -> None:
    with edgekv.open_video(small_clip, fps=5) as video:
        with pytest.raises(TypeError, match="is neither copied nor pickled: open it once more"):
            way(video)
        assert len(list(video)) == 10


@WAYS
def test_what_is_told_of_them_is_copied(
    way: Callable[[object], object], model: edgekv.Model, session: edgekv.Session
) -> None:
    for told in (session.stats(), session.context_frames(), model.figures(), model.bundle):
        copied = way(told)
        if isinstance(copied, bytes):
            copied = pickle.loads(copied)  # noqa: S301 - of our own
        assert type(copied) is type(told)
