"""What the vision graph gave for pictures seen lately, found by all that the model sees of them.

Owns: the encoder's outputs, up to ``max_bytes``, the one used longest ago leaving first.
Guarantees: never more bytes than allowed; what is given out is read-only; a picture is known by the
    SHA-256 of its full pixel values and their shape, never by a name, a time or a thumbnail.
Does not know: graphs, preprocessing, sessions. Not safe for use from two threads.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def picture_digest(pixel_values: NDArray[np.generic]) -> bytes:
    """SHA-256 over dtype, shape and every value of a picture (1, 3, height, width) as the vision
    graph takes it.

    Two pictures with one digest are the same to the model: it sees nothing else of them.
    """
    head = f"{pixel_values.dtype.str} {pixel_values.shape}\n".encode()
    digest = hashlib.sha256(head)
    digest.update(np.ascontiguousarray(pixel_values).data)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class EncoderCacheStats:
    """Counts since the model was loaded, and what is held now."""

    hits: int  # pictures that were not encoded again
    misses: int
    evictions: int
    num_pictures: int
    num_bytes: int
    max_bytes: int


class EncoderCache:
    """At most ``max_bytes`` of encoder outputs by digest; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"an encoder cache needs 0 bytes or more, got {max_bytes}")
        self._max_bytes = max_bytes
        self._rows: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._num_bytes = 0
        self._hits = self._misses = self._evictions = 0

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0

    @property
    def stats(self) -> EncoderCacheStats:
        return EncoderCacheStats(
            self._hits,
            self._misses,
            self._evictions,
            len(self._rows),
            self._num_bytes,
            self._max_bytes,
        )

    def get(self, digest: bytes) -> NDArray[np.float32] | None:
        """The rows (n, hidden) put in under ``digest``, read-only; None when they are not here."""
        rows = self._rows.get(digest)
        if rows is not None:
            self._hits += 1
            self._rows.move_to_end(digest)
        return rows

    def put(self, digest: bytes, rows: NDArray[np.float32]) -> None:
        """Keep a copy of ``rows`` (n, hidden), which had to be computed, unless they alone are more
        than is allowed."""
        self._misses += 1
        if rows.nbytes > self._max_bytes or digest in self._rows:
            return
        while self._num_bytes + rows.nbytes > self._max_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._num_bytes -= oldest.nbytes
            self._evictions += 1
        kept = rows.copy()
        kept.flags.writeable = False
        self._rows[digest] = kept
        self._num_bytes += kept.nbytes
