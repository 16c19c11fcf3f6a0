"""An operation amid which signals come."""

from __future__ import annotations

import signal

from edgekv.interrupts import indivisible


@indivisible
def interrupted(*numbers: int, said: list[str]) -> str:
    for number in numbers:
        signal.raise_signal(number)
    said.append("done")
    return "result"
