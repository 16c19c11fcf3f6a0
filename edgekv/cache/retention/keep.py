"""``keep``: nothing leaves; the context ends when it is full.

For models whose positions cannot be shifted, where dropping a frame would leave a gap, and for
callers who would rather have an error than forget.
Owns: nothing. Guarantees: whoever needs room gets a ContextError, and nothing has changed.
Does not know: how full the context is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.segments import SegmentTable
from edgekv.errors import ContextError


class Keep:
    """Refuses to choose."""

    name = "keep"
    needs_summaries = False
    needs_heat = False

    def choose(self, segments: SegmentTable, num_pages: int) -> NDArray[np.int64]:
        """Nothing for nothing; otherwise raises ContextError."""
        if num_pages > 0:
            raise ContextError(
                f"the context is full, and with retain='keep' none of its {len(segments)} "
                f"segments may leave: the model's window or the KV budget holds no more"
            )
        return np.empty(0, dtype=np.int64)
