"""The lock of one pool, and the closing of what nobody holds any more.

Owns: who holds what of the pool without having closed it.
Guarantees: what was forgotten is closed by the next who uses the pool, all the rest with the pool.
    Nothing of ours runs when Python collects it, which may be in the middle of any statement, of
    one that changes the pool too, in a thread that holds any other lock, and where an interrupt
    would go unseen.
Does not know: what closing means.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Reference = weakref.ref[object]
else:
    _Reference = weakref.ref


class _Holder(_Reference):
    """Whoever holds something of the pool, and how that is closed."""

    __slots__ = ("close",)
    close: Callable[[], None]


class PoolLock:
    """Re-entrant; whoever enters first closes what was forgotten."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._holders: set[_Holder] = set()
        self._forgotten: deque[_Holder] = deque()

    def close_with(self, holder: object, close: Callable[[], None]) -> None:
        """Let ``close``, which must not refer to ``holder`` and may be called twice, be called once
        nobody refers to ``holder``: under the lock, at the next use of the pool; or with the pool.
        """
        reference = _Holder(holder, self._forgotten.append)
        reference.close = close
        self._holders.add(reference)

    def close_all(self) -> None:
        """Close what anybody holds still."""
        with self:
            while self._holders:
                self._holders.pop().close()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        try:
            while self._depth == 1 and self._forgotten:
                holder = self._forgotten.popleft()
                self._holders.discard(holder)
                holder.close()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._lock.release()
