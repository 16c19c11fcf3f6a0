"""Signals that come while an operation runs are handled once it has ended."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from edgekv.interrupts import checkpoint, indivisible

Handler = Callable[[int, FrameType | None], object]


class StopError(Exception):
    pass


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def restarts(number: int) -> bool:
    """Whether system calls go on after a signal, as ``signal.siginterrupt(number, False)`` asks."""
    record = ctypes.create_string_buffer(512)
    assert ctypes.CDLL(None).sigaction(number, None, record) == 0
    flags = int.from_bytes(record[8 + 128 : 8 + 128 + 4], sys.byteorder)  # behind handler and mask
    return bool(flags & 0x10000000)


@indivisible
def interrupted(*numbers: int, said: list[str]) -> str:
    for number in numbers:
        signal.raise_signal(number)
    said.append("done")
    return "result"


def test_a_handler_is_called_once_afterwards_and_stays_installed() -> None:
    said: list[str] = []

    def handler(number: int, _: FrameType | None) -> None:
        said.append(signal.Signals(number).name)

    signal.signal(signal.SIGALRM, handler)
    assert interrupted(signal.SIGALRM, signal.SIGALRM, said=said) == "result"
    assert said == ["done", "SIGALRM"]
    assert signal.getsignal(signal.SIGALRM) is handler
    signal.raise_signal(signal.SIGALRM)
    assert said == ["done", "SIGALRM", "SIGALRM"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM])
def test_what_a_handler_raises_comes_when_the_operation_is_done(number: int) -> None:
    said: list[str] = []

    def handler(*_: object) -> None:
        raise StopError

    signal.signal(number, handler)
    with pytest.raises(StopError):
        interrupted(number, said=said)
    assert said == ["done"]
    assert signal.getsignal(number) is handler


def test_every_handler_is_called_whatever_others_raise() -> None:
    said: list[str] = []

    def handler(number: int, _: FrameType | None) -> None:
        said.append(signal.Signals(number).name)
        raise StopError

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    with pytest.raises(StopError):
        interrupted(signal.SIGINT, signal.SIGTERM, said=said)
    assert said == ["done", "SIGINT", "SIGTERM"]
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is handler


def test_an_operation_within_another_waits_for_the_outer_one() -> None:
    said: list[str] = []
    signal.signal(signal.SIGINT, lambda *_: said.append("SIGINT"))

    @indivisible
    def outer() -> None:
        interrupted(signal.SIGINT, said=said)
        said.append("outer done")

    outer()
    assert said == ["done", "outer done", "SIGINT"]


def test_an_operation_that_fails_lets_handlers_run_too() -> None:
    said: list[str] = []
    handler: Handler = lambda *_: said.append("SIGINT")  # noqa: E731 - one that is compared below
    signal.signal(signal.SIGINT, handler)

    @indivisible
    def failing() -> None:
        signal.raise_signal(signal.SIGINT)
        raise StopError

    with pytest.raises(StopError):
        failing()
    assert said == ["SIGINT"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_ctrl_c_means_what_the_first_has_made_of_it() -> None:
    """As in a program whose first Ctrl-C asks it to stop, and whose second ends it."""
    said: list[str] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        said.append("stop")
        signal.signal(number, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)
    with pytest.raises(KeyboardInterrupt):
        interrupted(signal.SIGINT, signal.SIGINT, said=said)
    assert said == ["done", "stop"]


def test_the_third_ctrl_c_leaves_an_operation_that_does_not_end() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    num_sent = 0

    @indivisible
    def endless() -> None:
        nonlocal num_sent
        while True:
            num_sent += 1
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        endless()
    assert num_sent == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        interrupted(signal.SIGINT, said=[])  # the next operation waits again


def test_a_checkpoint_lets_a_handler_end_the_operation() -> None:
    said: list[str] = []

    @indivisible
    def long() -> None:
        for step in range(3):
            checkpoint()
            said.append(f"step {step}")
            if step == 1:
                signal.raise_signal(signal.SIGINT)
        said.append("never")

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        long()
    assert said == ["step 0", "step 1"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    checkpoint()  # outside it does nothing


def test_after_a_checkpoint_the_operation_is_whole_again() -> None:
    said: list[str] = []
    signal.signal(signal.SIGINT, lambda *_: said.append("SIGINT"))

    @indivisible
    def long() -> None:
        signal.raise_signal(signal.SIGINT)
        checkpoint()
        signal.raise_signal(signal.SIGINT)
        said.append("done")

    long()
    assert said == ["SIGINT", "done", "SIGINT"]


def test_a_handler_may_install_another_and_run_operations_itself() -> None:
    said: list[str] = []

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted(said=said)

    for at_checkpoint in (False, True):
        signal.signal(signal.SIGINT, first)

        @indivisible
        def operation(stop: bool = at_checkpoint) -> None:
            signal.raise_signal(signal.SIGINT)
            if stop:
                checkpoint()

        operation()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert said == ["done", "done"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the record is Linux's")
@pytest.mark.parametrize("wanted", [False, True])
def test_system_calls_go_on_after_a_signal_if_they_did(wanted: bool) -> None:
    said: list[str] = []
    signal.signal(signal.SIGALRM, lambda *_: said.append("SIGALRM"))
    assert not restarts(signal.SIGALRM)
    signal.siginterrupt(signal.SIGALRM, not wanted)
    during: list[bool] = []

    @indivisible
    def operation() -> None:
        during.append(restarts(signal.SIGALRM))
        signal.raise_signal(signal.SIGALRM)
        checkpoint()
        during.append(restarts(signal.SIGALRM))

    operation()
    assert said == ["SIGALRM"]
    assert [*during, restarts(signal.SIGALRM)] == [wanted] * 3

    def raising(*_: object) -> None:
        raise StopError

    signal.signal(signal.SIGALRM, raising)
    signal.siginterrupt(signal.SIGALRM, not wanted)
    with pytest.raises(StopError):
        interrupted(signal.SIGALRM, said=said)
    assert restarts(signal.SIGALRM) is wanted


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


def raised_by(number: int) -> StopError | None:
    try:
        signal.raise_signal(number)
    except StopError as error:
        return error
    return None


def with_signals_at(moment: int, *numbers: int) -> tuple[int, bool]:
    """An operation with signals at the so many-th place where Python looks for them: how many such
    places it came to, and whether a handler raised."""
    seen, raised = 0, False

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith("interrupts.py"):
            seen += 1
            if seen == moment:
                errors = [error for number in numbers if (error := raised_by(number))]
                if errors:
                    raise errors[-1]

    sys.setprofile(count)
    try:
        interrupted(said=[])
    except StopError:
        raised = True
    finally:
        sys.setprofile(None)
    return seen, raised


@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGINT, signal.SIGTERM)])
def test_signals_while_handlers_are_exchanged(numbers: tuple[int, ...]) -> None:
    called: list[int] = []

    def handler(number: int, _: FrameType | None) -> None:
        called.append(number)
        raise StopError

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    num_places, _ = with_signals_at(-1)
    assert num_places > 20
    for moment in range(1, num_places + 1):
        called.clear()
        assert with_signals_at(moment, *numbers)[1]
        assert sorted(called) == sorted(numbers)
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is handler
        assert interrupted(said=[]) == "result"
