"""Signals wait until what is being done is whole.

Owns: Python's signal handlers while an operation runs in the main thread, and signals that came
    meanwhile.
Guarantees: a handler that raises, as Ctrl-C's does, never raises inside an operation, so no lock
    stays held and nothing is left half done; it is called by the end of the operation or where
    that says ``checkpoint``, with what was installed before installed again: once, and for signals
    that ask to stop as often as they came. What the system does with a signal stays as the program
    has set it up. The third of these does not wait: an operation that
    never ends can be left, though not as a whole.
Does not know: what operations do. Other threads need nothing of this: Python runs handlers in the
    main thread only.
"""

from __future__ import annotations

# The wrappers in ``signal`` try to make an enum of every handler: 3 µs where these take 0.02.
import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar

from edgekv.dispositions import Disposition

_P = ParamSpec("_P")
_T = TypeVar("_T")
Handler = Callable[[int, FrameType | None], object]

# Those that programs are stopped with, told something by, or bound their waiting and work with.
_NAMES = (
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU",
    "SIGUSR1", "SIGUSR2",
)  # fmt: skip
_NUMBERS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_STOPPING = (int(signal.SIGINT), int(signal.SIGTERM))
_PATIENCE = 3  # of one of these, the one that does not wait for the end of the operation


class _Deferral:
    """What the main thread is in the middle of. One for the process, as signal handlers are."""

    def __init__(self) -> None:
        self.active = False
        self._handlers: dict[int, Handler] = {}  # by signal, those that ``_recorder`` stands in for
        self._pending: dict[int, list[FrameType | None]] = {}  # signals that came, and where
        self._recorder: Handler = self._record
        self._dispositions = {number: Disposition(number) for number in _NUMBERS}

    def __enter__(self) -> None:
        self.active = True
        try:
            self._take_over()
        except BaseException:  # a signal came before its handler was replaced
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.active = False
        self._hand_back()

    def deliver(self) -> None:
        """Let handlers of signals that came run now, as though no operation had begun."""
        if not self._pending or not _is_main_thread():
            return
        try:
            self.__exit__()
        finally:
            self.__enter__()

    def begin_child(self) -> None:
        """In a process that another thread has forked off, the main thread is in no operation."""
        self._pending.clear()
        self.__exit__()

    def _take_over(self) -> None:
        for number in _NUMBERS:
            handler = _signal.getsignal(number)
            if callable(handler) and handler is not self._recorder:
                self._dispositions[number].read()
                self._handlers[number] = handler
                try:
                    self._install(number, self._recorder)
                except ValueError:  # an embedding program's main thread is not Python's
                    del self._handlers[number]
                    return

    def _install(self, number: int, handler: Handler) -> None:
        """Exchange what Python calls, and nothing of what the system does."""
        _signal.signal(number, handler)
        self._dispositions[number].write()

    def _hand_back(self) -> None:
        """Handlers as they were, then those called whose signals came: all, whatever one raises."""
        try:
            # A signal that comes meanwhile hands back what is left, and then this goes on.
            for number, handler in list(self._handlers.items()):
                # It may be there already: it is called, and may raise, right where it is installed.
                if _signal.getsignal(number) in (self._recorder, handler):
                    self._install(number, handler)
                self._handlers.pop(number, None)
            while self._pending:
                self._call(next(iter(self._pending)))
        except BaseException:  # of a handler called here, or of a signal that came just now
            self._hand_back()
            raise

    def _call(self, number: int) -> None:
        """Do about one signal that came what is to be done about it now."""
        frames = self._pending[number]
        frame = frames.pop(0)
        if not frames:
            del self._pending[number]
        handler = _signal.getsignal(number)
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:  # an earlier call has put it there
            signal.raise_signal(number)

    def _record(self, number: int, frame: FrameType | None) -> None:
        frames = self._pending.setdefault(number, [])
        if not frames or number in _STOPPING:
            frames.append(frame)
        if not self.active:  # handing back was interrupted itself
            self._hand_back()
        elif len(frames) >= _PATIENCE:
            self._install(number, self._handlers.pop(number))
            while number in self._pending:
                self._call(number)


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


_deferral = _Deferral()
os.register_at_fork(after_in_child=_deferral.begin_child)


def indivisible(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """An operation that is done as a whole or not at all, whatever signals come."""

    @wraps(function)
    def whole(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if _deferral.active or not _is_main_thread():
            return function(*args, **kwargs)
        with _deferral:
            return function(*args, **kwargs)

    return whole


def checkpoint() -> None:
    """Inside an operation: a signal that came may end it here, where nothing is half done and no
    lock is held. Handlers may use sessions here as they may outside."""
    _deferral.deliver()
