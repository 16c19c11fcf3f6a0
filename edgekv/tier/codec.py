"""Keys and values of frames as the bytes of a tier record, and back.

Owns: the three formats. Guarantees: encoding takes its memory once, at construction; a number comes
back within half a step of its token's scale (``int8``: 1/254 of the largest number of the token and
head, ``int4-values``: the same for keys, 1/14 for values), or as it was (``exact``).
Does not know: files, checksums, where frames stood.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgekv.config import KVDtype, KVGeometry
from edgekv.contents import narrow, slot_shape, storage_dtype, widen

TierFormat = Literal["int8", "int4-values", "exact"]
_LEVELS = {8: 127, 4: 7}  # a scale is the largest number over this


def checked_format(name: str) -> TierFormat:
    """``name`` as a format. Raises ValueError."""
    for known in get_args(TierFormat):
        if name == known:
            return name  # type: ignore[return-value]
    raise ValueError(f"tier format must be one of {', '.join(get_args(TierFormat))}, got {name!r}")


class Codec:
    """Contents of pages (n, L, 2, Hk, S, W) of up to ``max_pages`` <-> ``payload_bytes`` bytes."""

    def __init__(self, geometry: KVGeometry, max_pages: int, tier_format: TierFormat) -> None:
        if tier_format == "int4-values" and geometry.head_dim % 2:
            raise ValueError(f"int4 values need an even head dimension, got {geometry.head_dim}")
        self.max_pages = max_pages
        self._kv_dtype: KVDtype = geometry.dtype
        layers, heads, slots = geometry.num_layers, geometry.num_kv_heads, geometry.page_size
        self._shape = (layers, heads, slots, geometry.head_dim)  # of the keys of one page
        # int8 pools hold just what the format would make of them.
        already = geometry.dtype == tier_format == "int8"
        self._format: TierFormat = "exact" if already else tier_format
        self._slots = slot_shape(geometry)
        self._fields = self._layout()
        self.payload_bytes = max_pages * self._fields.itemsize
        self._wide = np.empty((layers, 2, heads, slots, geometry.head_dim), np.float32)

    def _layout(self) -> np.dtype[np.void]:
        """One page of a record."""
        *outer, dim = self._shape
        if self._format == "exact":
            storage = storage_dtype(self._kv_dtype)
            return np.dtype([("pages", storage, (outer[0], 2, *self._slots))])
        packed = dim // 2 if self._format == "int4-values" else dim
        values = np.uint8 if self._format == "int4-values" else np.int8
        return np.dtype(
            [
                ("scales", np.float32, (outer[0], 2, *outer[1:])),
                ("keys", np.int8, (*outer, dim)),
                ("values", values, (*outer, packed)),
            ]
        )

    def encode(self, pages: NDArray[Any], payload: NDArray[np.uint8]) -> None:
        """Write contents (n, L, 2, Hk, S, W) into ``payload`` (payload_bytes,); the rest is zeros.

        Slots without a token should be zeros: their numbers are written like any others.
        """
        rows = payload.view(self._fields)
        payload[len(pages) * self._fields.itemsize :] = 0
        for row, page in zip(rows, pages, strict=False):
            if self._format == "exact":
                row["pages"] = page
                continue
            wide = self._wide
            wide[:] = widen(page, self._kv_dtype)
            largest = np.abs(wide).max(axis=-1)  # (L, 2, Hk, S)
            levels = np.array([_LEVELS[8], self._value_levels], np.float32)[:, None, None]
            scales = largest / levels
            row["scales"] = scales
            wide /= np.where(scales > 0, scales, 1)[..., None]
            np.rint(wide, out=wide)
            bound = levels[..., None]  # a scale may be a rounded subnormal number
            np.clip(wide, -bound, bound, out=wide)
            row["keys"] = wide[:, 0]
            row["values"] = _pack(wide[:, 1]) if self._format == "int4-values" else wide[:, 1]

    def decode(self, payload: NDArray[np.uint8], num_pages: int) -> NDArray[np.generic]:
        """Contents (num_pages, L, 2, Hk, S, W) from ``payload`` (payload_bytes,)."""
        rows = payload.view(self._fields)[:num_pages]
        if self._format == "exact":
            whole: NDArray[np.generic] = rows["pages"].copy()
            return whole
        layers, *rest = self._shape
        directly = self._kv_dtype in ("float16", "float32")
        pages = np.empty((num_pages, layers, 2, *rest), self._kv_dtype if directly else np.float32)
        scales = rows["scales"][..., None]
        np.multiply(rows["keys"], scales[:, :, 0], out=pages[:, :, 0], casting="same_kind")
        values = _unpack(rows["values"]) if self._format == "int4-values" else rows["values"]
        np.multiply(values, scales[:, :, 1], out=pages[:, :, 1], casting="same_kind")
        return narrow(pages, self._kv_dtype)

    @property
    def _value_levels(self) -> int:
        return _LEVELS[4 if self._format == "int4-values" else 8]


def _pack(numbers: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(..., D) of -7 to 7 -> (..., D / 2): even numbers in the low half, odd ones in the high."""
    shifted = (numbers + 8).astype(np.uint8)
    packed: NDArray[np.uint8] = shifted[..., ::2] | shifted[..., 1::2] << np.uint8(4)
    return packed


def _unpack(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    out = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.int8)
    out[..., ::2] = (packed & np.uint8(15)).astype(np.int8) - np.int8(8)
    out[..., 1::2] = (packed >> np.uint8(4)).astype(np.int8) - np.int8(8)
    return out
