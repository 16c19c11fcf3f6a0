"""Which entries of a step's page table must be sent to a device that keeps rows.

Owns: which sequence's row is in which of a fixed number of places on the device, and how far each
    place has been written.
Guarantees: after the entries that ``uploads`` names were copied, the place of each row reads as the
    row of the step's page table over all its columns; a decode step sends one or two entries,
    however long its context is; no more than ``num_places`` rows are ever kept, the longest unused
    one makes way.
Does not know: devices, streams, what copies. Every step that commits must have been asked about;
    copies must run in order with the steps that read the rows. A step's host arrays stay as they
    are (``StepTables``), so no copy of one step can read what the next one wrote.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from edgekv.types import StepTables


class RowUpload(NamedTuple):
    """Copy entries ``[start, stop)`` of row ``row`` of the step's table to ``place``."""

    row: int
    place: int
    start: int
    stop: int


class DeviceRows:
    """The account of ``num_places`` rows on a device; a step may have as many rows."""

    def __init__(self, num_places: int) -> None:
        if num_places < 1:
            raise ValueError(f"a device keeps at least 1 row, got {num_places}")
        self._num_places = num_places
        # By sequence, least recently used first: its place.
        self._places: OrderedDict[int, int] = OrderedDict()
        self._extents = [
            0
        ] * num_places  # entries of each place that may hold something else than -1

    def uploads(self, tables: StepTables) -> list[RowUpload]:
        """What to copy before the step runs, one for each row; where rows are from then on.

        Raises ValueError for a step of more rows than there are places.
        """
        num_rows, num_columns = tables.page_table.shape[:2]
        if num_rows > self._num_places:
            raise ValueError(f"a step of {num_rows} rows, the device keeps {self._num_places}")
        if tables.row_sequences is None or tables.row_changed is None:
            self._places.clear()
            sequences, changed = [-1 - row for row in range(num_rows)], [0] * num_rows
        else:
            sequences, changed = tables.row_sequences.tolist(), tables.row_changed.tolist()
        known = [sequence in self._places for sequence in sequences]
        for sequence in (s for s, here in zip(sequences, known, strict=True) if here):
            self._places.move_to_end(sequence)
        used = np.count_nonzero(tables.page_table[:, :, 0] >= 0, axis=1).tolist()
        return [
            self._upload(row, sequence, changed[row] if known[row] else 0, used[row], num_columns)
            for row, sequence in enumerate(sequences)
        ]

    def forget(self) -> None:
        """Nothing on the device can be relied on: after a copy that failed."""
        self._places.clear()

    def _upload(
        self, row: int, sequence: int, first: int, num_used: int, num_columns: int
    ) -> RowUpload:
        place = self._place_of(sequence)
        # Behind the row's end the step's table holds -1: over what a longer row has left there.
        extent = self._extents[place]
        stop = min(max(num_used, extent), num_columns)
        self._extents[place] = num_used if extent <= num_columns else extent
        return RowUpload(row, place, min(first, stop), stop)

    def _place_of(self, sequence: int) -> int:
        if sequence not in self._places:
            if len(self._places) < self._num_places:
                taken = set(self._places.values())
                place = next(p for p in range(self._num_places) if p not in taken)
            else:
                _, place = self._places.popitem(last=False)
            self._places[sequence] = place
        return self._places[sequence]
