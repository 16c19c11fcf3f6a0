"""A step's page table in GPU memory, to which only what has changed travels.

Owns: the table on the GPU and its page-locked twin, taken once; how wide tables are padded.
Guarantees: after ``send``, and once the copies that it queued have run, the GPU holds the step's
    table, empty entries (page id -1) behind each row; of each row the entries from the first to the
    last that differ from what lies there travel, whatever sequence they are of: a decode step sends
    one or two, and a fork what it has beside its parent.
Does not know: sequences, streams. Whoever sends again has waited for the step before, so nothing
    is overwritten before its copy ran.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.executors.cuda import Cuda
from edgekv.executors.twin import Twin

_LEAST_COLUMNS = 16  # narrower tables are padded to this
_ENTRY_NUMBER_BYTES = 4


def power_of_two(number: int) -> int:
    """The least power of two that is not below ``number``."""
    return 1 << max(number - 1, 0).bit_length()


def padded_columns(num_columns: int, max_columns: int) -> int:
    """Columns a table of ``num_columns`` gets: few widths occur, and rows keep their places."""
    wider = min(power_of_two(max(num_columns, _LEAST_COLUMNS)), power_of_two(max_columns))
    return max(num_columns, wider)  # what is too wide stays so, to be refused


class DeviceTable:
    """Up to ``max_rows`` rows of ``columns`` entries of ``width`` int32."""

    def __init__(self, cuda: Cuda, *, max_rows: int, max_columns: int, width: int) -> None:
        self._width = width
        num_bytes = max_rows * power_of_two(max_columns) * width * _ENTRY_NUMBER_BYTES
        self._twin = Twin(cuda, num_bytes, mapped=False)
        self._twin.host[:] = 0xFF
        self._known = False  # whether the GPU's bytes are the host's
        self.address = self._twin.address

    def send(self, table: NDArray[np.int32], columns: int) -> None:
        """Queue the copies that make the GPU's table ``table`` (B, M, width), padded to
        ``columns``."""
        num_rows, row_numbers = len(table), columns * self._width
        known, self._known = self._known, False
        held = self._twin.host[: num_rows * row_numbers * _ENTRY_NUMBER_BYTES].view(np.int32)
        for row, entries in enumerate(table.reshape(num_rows, -1)):
            first = row * row_numbers
            start, stop = _update(held[first : first + row_numbers], entries, self._width)
            if known:
                self._twin.upload(
                    (first + start) * _ENTRY_NUMBER_BYTES, (first + stop) * _ENTRY_NUMBER_BYTES
                )
        if not known:
            self._twin.upload(0, self._twin.host.size)
        self._known = True

    def free(self) -> None:
        """Give the memory back."""
        self._twin.free()


def _update(
    held: NDArray[np.int32],  # (columns * width,) a row as it was
    entries: NDArray[np.int32],  # (M * width,) as it shall be, M at most columns
    width: int,
) -> tuple[int, int]:
    """Write ``entries`` into ``held`` and nothing behind them; outside of the numbers from start to
    stop, whole entries, nothing has changed."""
    filled = entries.size
    changed = np.flatnonzero(held[:filled] != entries)
    behind = held[filled::width]  # page ids
    stale = np.flatnonzero(behind != -1)
    if not changed.size and not stale.size:
        return 0, 0
    start = changed[0] if changed.size else filled + stale[0] * width
    stop = filled + (stale[-1] + 1) * width if stale.size else changed[-1] + 1
    held[:filled] = entries
    behind[stale] = -1
    return int(start // width) * width, -int(-stop // width) * width
