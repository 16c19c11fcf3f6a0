"""Signals amid an operation, where other threads, children, event loops or C have a say in them."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from edgekv.interrupts import checkpoint, indivisible
from tests.unit.signals import interrupted

pytestmark = pytest.mark.usefixtures("handlers_as_before")
Handler = Callable[[int, FrameType | None], object]


def test_a_handler_in_c_beside_one_in_python_is_called_as_before(tmp_path: Path) -> None:
    said: list[str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: said.append("SIGUSR1"))
    try:
        with (tmp_path / "stacks").open("w") as file:
            faulthandler.register(signal.SIGUSR1, file=file, all_threads=False, chain=True)
            for count in (1, 2):
                interrupted(signal.SIGUSR1, said=said)
                assert said == ["done", "SIGUSR1"] * count
                assert (tmp_path / "stacks").read_text().count("in interrupted") == count
            faulthandler.unregister(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_no_handler_of_python_s_is_left_alone(action: signal.Handlers) -> None:
    signal.signal(signal.SIGTERM, action)
    seen = indivisible(lambda: signal.getsignal(signal.SIGTERM))()
    assert seen is action is signal.getsignal(signal.SIGTERM)


def test_other_threads_leave_handlers_alone_and_do_not_wait_for_them() -> None:
    said: list[str] = []
    signal.signal(signal.SIGINT, lambda *_: said.append("SIGINT"))

    @indivisible
    def operation() -> None:
        thread = threading.Thread(target=lambda: interrupted(signal.SIGINT, said=said))
        thread.start()
        thread.join()
        checkpoint()
        said.append("outer done")

    operation()
    assert said == ["done", "SIGINT", "outer done"]


def test_where_python_s_main_thread_is_another_operations_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a program that starts Python in one thread and uses it in another."""
    said: list[str] = []

    def use() -> None:
        monkeypatch.setattr(threading, "main_thread", threading.current_thread)
        said.append(interrupted(said=[]))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert said == ["result"]


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_child_of_an_operation_has_the_handlers_of_its_parent() -> None:
    said: list[str] = []
    handler: Handler = lambda *_: said.append("SIGINT")  # noqa: E731 - one that is compared below
    signal.signal(signal.SIGINT, handler)

    @indivisible
    def operation() -> int:
        signal.raise_signal(signal.SIGINT)
        child = os.fork()
        if not child:
            os._exit(0 if signal.getsignal(signal.SIGINT) is handler and not said else 1)
        return os.waitpid(child, 0)[1]

    assert operation() == 0
    assert said == ["SIGINT"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.Runner came with Python 3.11")
def test_asyncio_cancels_its_task_at_the_next_await() -> None:
    said: list[str] = []

    async def main() -> None:
        try:
            interrupted(signal.SIGINT, said=said)
            said.append("goes on")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert said == ["done", "goes on", "cancelled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_loop_s_own_handler_is_called_once() -> None:
    said: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: said.append("SIGTERM"))
        interrupted(signal.SIGTERM, said=said)
        await asyncio.sleep(0.1)
        loop.remove_signal_handler(signal.SIGTERM)

    asyncio.run(main())
    assert said == ["done", "SIGTERM"]
