"""A picture's time axis: where its marks stand, and times as text.

Guarantees: marks stand at round times, no two with the same text. Does not know: pictures.
"""

from __future__ import annotations

import numpy as np


def clock_text(seconds: float) -> str:
    """``0.8 s``, ``12.5 s``, ``3:07 min``, ``2:03:07 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


def column_text(seconds: float) -> str:
    """A column's length with three digits."""
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else clock_text(seconds)


def axis_ticks(begin: float, end: float, most: int) -> list[tuple[float, str]]:
    """Round times inside an axis with their labels: at most ``most``."""
    steps = [base * 10.0**power for power in (-3, -2, -1, 0) for base in (1, 2, 5)] + [
        10.0,
        15,
        30,
        60,
        120,
        300,
        600,
        900,
        1800,
        3600,
        7200,
        14400,
        21600,
        43200,
        86400,
    ]
    step = next((s for s in steps if (end - begin) / s <= most), 86400.0)
    while (end - begin) / step > most:
        step *= 2
    first = int(np.ceil(begin / step - 1e-9))
    return [
        (k * step, tick_text(k * step, step))
        for k in range(first, int(np.floor(end / step + 1e-9)) + 1)
    ]


def tick_text(seconds: float, step: float) -> str:
    """``m:ss`` (with hours from one hour on), or seconds with a fraction for small steps."""
    if step < 1:
        return f"{seconds:.{3 if step < 0.01 else 2 if step < 0.1 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def latency_text(us: float) -> str:
    """``12.3 µs``, ``4.5 ms``."""
    return f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.1f} ms"


def microseconds(power: int) -> str:
    """``10 ** power`` microseconds: ``0.1 µs``, ``100 µs``, ``10 ms``, ``1 s``."""
    unit, less = ("µs", 0) if power < 3 else ("ms", 3) if power < 6 else ("s", 6)
    return f"{10.0 ** (power - less):g} {unit}"
