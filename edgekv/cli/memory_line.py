"""The memory of this process over a whole run, drawn as one line of text.

Guarantees: constant size however long the run: when the line is full, neighbours are merged and
each bar stands for twice the time. A bar is the highest sample of its time, on a scale from 0.
"""

from __future__ import annotations

from edgekv.config import format_bytes
from edgekv.memory import anonymous_bytes

_BARS = "▁▂▃▄▅▆▇█"
_MAX_BARS = 48


class MemoryLine:
    """Take a sample now and then; ask for the line at any time."""

    def __init__(self) -> None:
        self._bars: list[int] = []  # bytes, at most _MAX_BARS
        self._samples_per_bar = 1
        self._num_in_last = 0  # samples the last bar stands for so far

    def sample(self) -> None:
        """Add what the process holds now (anonymous memory, resident and swapped)."""
        size = anonymous_bytes()
        if size is not None:
            self.add(size)

    def add(self, size: int) -> None:
        """Add one sample in bytes."""
        if self._bars and self._num_in_last < self._samples_per_bar:
            self._bars[-1] = max(self._bars[-1], size)
            self._num_in_last += 1
            return
        if len(self._bars) == _MAX_BARS:
            self._bars = [max(pair) for pair in zip(self._bars[::2], self._bars[1::2], strict=True)]
            self._samples_per_bar *= 2
        self._bars.append(size)
        self._num_in_last = 1

    def __str__(self) -> str:
        if not self._bars:
            return ""
        highest = max(self._bars)
        bars = "".join(_BARS[-(-len(_BARS) * size // highest) - 1] for size in self._bars)
        return f"memory over time {bars} {format_bytes(self._bars[-1])}"
