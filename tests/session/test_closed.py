"""What is closed says so, in one line, whatever is asked of it and whoever closes it when."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgekv
from edgekv.tier.file import TierFile
from tests.session.helpers import Picture
from tests.waiting import HANG_S

PIXELS = np.zeros((8, 8, 3), np.uint8)

# Every public method, with arguments that are right and with some that are wrong.
OF_A_SESSION: dict[str, list[Callable[[edgekv.Session, Path], object]]] = {
    "push": [lambda s, _: s.push(PIXELS, 9.0), lambda s, _: s.push("picture.png")],  # type: ignore[arg-type]
    "say": [lambda s, _: s.say("text"), lambda s, _: s.say("")],
    "ask": [
        lambda s, _: s.ask("What?"),
        lambda s, _: s.ask("What?", {}),  # type: ignore[arg-type]
        lambda s, _: s.ask("What?", recall="always"),  # type: ignore[arg-type]
    ],
    "ask_iter": [lambda s, _: s.ask_iter("What?"), lambda s, _: s.ask_iter("")],
    "logits": [
        lambda s, _: s.logits("What?"),
        lambda s, _: s.logits("What?", recall="always"),  # type: ignore[arg-type]
    ],
    "fork": [lambda s, _: s.fork()],
    "save": [lambda s, path: s.save(path / "saved"), lambda s, path: s.save(path)],
    "context_frames": [lambda s, _: s.context_frames()],
    "stats": [lambda s, _: s.stats()],
}
STILL_KNOWN = {"retain", "instructions", "tier", "last_time_s"}  # of a closed session
OF_A_MODEL: dict[str, list[Callable[[edgekv.Model, Path], object]]] = {
    "session": [
        lambda m, _: m.session(),
        lambda m, _: m.session(retain="newest"),
        lambda m, _: m.session(priority="high"),  # type: ignore[arg-type]
        lambda m, _: m.session(tier_limit="much", tier="tier"),
    ],
    "restore": [
        lambda m, path: m.restore(path / "saved"),
        lambda m, path: m.restore(path / "none"),
        lambda m, path: m.restore(path / "saved", priority=1.5),  # type: ignore[arg-type]
    ],
    "trace": [
        lambda m, path: m.trace(path / "log"),
        lambda m, path: m.trace(path / "log", limit="much"),
        lambda m, _: m.trace(None),
    ],
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_no_public_method_is_left_out() -> None:
    assert public(edgekv.Session) == OF_A_SESSION.keys() | STILL_KNOWN | {"open", "close"}
    assert public(edgekv.Model) == OF_A_MODEL.keys() | {"figures", "trace_problem", "close"}


@pytest.mark.parametrize("name", OF_A_SESSION)
def test_a_closed_session_says_so(model: edgekv.Model, tmp_path: Path, name: str) -> None:
    session = model.session(instructions="Watch.")
    session.push(PIXELS, 3.0)
    session.close()
    before = model.figures()
    for use in OF_A_SESSION[name]:
        with pytest.raises(edgekv.SessionError, match=r"^this session is closed$"):
            use(session, tmp_path)
    session.close()
    assert (session.retain, session.instructions, session.tier) == ("window", "Watch.", None)
    assert session.last_time_s == 3.0
    assert model.figures().counts == before.counts
    assert not list(tmp_path.iterdir())


def test_a_closed_model_and_its_sessions_say_so(bundle_path: Path, tmp_path: Path) -> None:
    model = edgekv.load(bundle_path, kv_budget="1MiB", num_threads=1)
    session, closed = model.session(tier=tmp_path / "tier", tier_limit="1MiB"), model.session()
    session.push(PIXELS, 0.0)
    session.save(tmp_path / "saved")
    pieces, unheard = session.ask_iter("What?"), session.ask_iter("What?")
    closed.close()
    model.close()
    model.close()
    TierFile.open(tmp_path / "tier").close()  # nobody holds its lock
    assert model.figures().counts.live == 0
    files = sorted(tmp_path.iterdir())
    for uses in OF_A_MODEL.values():
        for of_model in uses:
            with pytest.raises(edgekv.ModelError, match=r"^this model is closed$"):
                of_model(model, tmp_path)
    for uses_of_session in OF_A_SESSION.values():
        for of_session in uses_of_session:
            with pytest.raises(edgekv.ModelError, match=r"^this model is closed$"):
                of_session(session, tmp_path)
            with pytest.raises(edgekv.SessionError, match=r"^this session is closed$"):
                of_session(closed, tmp_path)
    with pytest.raises(edgekv.ModelError, match="closed"):
        list(pieces)
    assert model.trace_problem is None
    assert sorted(tmp_path.iterdir()) == files
    del unheard
    session.close()


@pytest.mark.parametrize("name", ["push", "say", "ask", "save", "fork", "stats"])
def test_closing_while_another_thread_is_at_it_says_so_too(
    model: edgekv.Model, picture: Picture, tmp_path: Path, name: str
) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    said: set[str] = set()
    try:
        for _ in range(15):
            session = model.session()
            session.push(picture(0), 0.0)
            begun = threading.Event()

            def use_on(session: edgekv.Session = session, begun: threading.Event = begun) -> None:
                try:
                    while True:
                        made = OF_A_SESSION[name][0](session, tmp_path)
                        begun.set()
                        if isinstance(made, edgekv.Session):
                            made.close()
                except Exception as error:
                    said.add(f"{type(error).__name__}: {error}")
                finally:
                    begun.set()

            thread = threading.Thread(target=use_on)
            thread.start()
            assert begun.wait(HANG_S)
            session.close()
            thread.join(HANG_S)
    finally:
        sys.setswitchinterval(interval)
    assert said == {"SessionError: this session is closed"}
    with contextlib.closing(model.session()) as session:
        assert session.stats().pages_live == len(session.context_frames()) + 1
