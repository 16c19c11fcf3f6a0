"""Times of an endless series in constant memory: percentiles, the first hundred, the last hundred.

Percentiles come from a histogram with logarithmic bins, so they are exact to 2 %.
"""

from __future__ import annotations

from statistics import median

import numpy as np

_LOWEST_S = 1e-6
_BINS_PER_E = 50  # each bin is 2 % wide
_NUM_BINS = 1000  # up to about 485 s
_NUM_EDGE = 100


class LatencyRecord:
    """Durations of a repeated operation, for ever, in about 10 KiB."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self._bins = np.zeros(_NUM_BINS, np.int64)
        self._first_s = np.zeros(_NUM_EDGE)
        self._last_s = np.zeros(_NUM_EDGE)  # ring, newest at num_recorded % _NUM_EDGE - 1

    def add(self, duration_s: float) -> None:
        """Record one duration in seconds."""
        if self.num_recorded < _NUM_EDGE:
            self._first_s[self.num_recorded] = duration_s
        self._last_s[self.num_recorded % _NUM_EDGE] = duration_s
        place = int(np.log(max(duration_s, _LOWEST_S) / _LOWEST_S) * _BINS_PER_E)
        self._bins[min(place, _NUM_BINS - 1)] += 1
        self.num_recorded += 1

    def percentile_ms(self, percent: float) -> float:
        """The duration that ``percent`` of all recorded ones do not exceed; 0.0 without any."""
        if not self.num_recorded:
            return 0.0
        rank = percent / 100 * self.num_recorded
        place = int(np.searchsorted(np.cumsum(self._bins), rank))
        return float(_LOWEST_S * np.exp((place + 0.5) / _BINS_PER_E) * 1e3)

    def first_ms(self) -> float:
        """Median of the first hundred."""
        return self._median_ms(self._first_s)

    def last_ms(self) -> float:
        """Median of the last hundred."""
        return self._median_ms(self._last_s)

    def _median_ms(self, edge_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        count = min(self.num_recorded, _NUM_EDGE)
        # NumPy's own imports numpy.ma at its first call, in time and memory that are measured.
        return median(edge_s[:count].tolist()) * 1e3 if count else 0.0
