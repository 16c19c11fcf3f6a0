"""Signals that come while an operation runs are handled once it has ended."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType

import pytest

from edgekv.interrupts import checkpoint, indivisible
from tests.unit.signals import interrupted

pytestmark = pytest.mark.usefixtures("handlers_as_before")
Handler = Callable[[int, FrameType | None], object]


class StopError(Exception):
    pass


def restarts(number: int) -> bool:
    """Whether system calls go on after a signal, as ``signal.siginterrupt(number, False)`` asks."""
    record = ctypes.create_string_buffer(512)
    assert ctypes.CDLL(None).sigaction(number, None, record) == 0
    flags = int.from_bytes(record[8 + 128 : 8 + 128 + 4], sys.byteorder)  # behind handler and mask
    return bool(flags & 0x10000000)


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


def raised_by(number: int) -> StopError | None:
    try:
        signal.raise_signal(number)
    except StopError as error:
        return error
    return None


def with_signals_at(moments: Mapping[int, tuple[int, ...]]) -> tuple[int, bool]:
    """An operation with signals at the so many-th places where Python looks for them: how many such
    places it came to, and whether a handler raised."""
    seen, raised = 0, False

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith("interrupts.py"):
            seen += 1
            errors = [error for number in moments.get(seen, ()) if (error := raised_by(number))]
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


@pytest.mark.parametrize("raising", [True, False])
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGINT, signal.SIGTERM)])
def test_signals_while_handlers_are_exchanged(numbers: tuple[int, ...], raising: bool) -> None:
    called: list[int] = []

    def handler(number: int, _: FrameType | None) -> None:
        called.append(number)
        if raising:
            raise StopError

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    num_places, _ = with_signals_at({})
    assert num_places > 20
    for moment in range(1, num_places + 1):
        called.clear()
        assert with_signals_at({moment: numbers})[1] == raising
        assert sorted(called) == sorted(numbers)
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is handler
        assert interrupted(said=[]) == "result"


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_another_is_dealt_with(second: int) -> None:
    called: list[int] = []
    handler: Handler = lambda number, _: called.append(number)  # noqa: E731 - one to compare with
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
    num_places, _ = with_signals_at({})
    for first in range(1, num_places + 1):
        later = first
        while True:
            called.clear()
            later += 1
            num_seen, _ = with_signals_at({first: (signal.SIGINT,), later: (second,)})
            if num_seen < later:
                break
            assert sorted(called) == sorted((signal.SIGINT, second)), (first, later)
            assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is handler
        assert called == [signal.SIGINT]
