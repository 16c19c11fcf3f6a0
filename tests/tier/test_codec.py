"""Frames come back to the precision their format states."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from edgekv.config import KVDtype, KVGeometry
from edgekv.contents import narrow, widen
from edgekv.tier.codec import Codec, TierFormat, checked_format

SHAPE = (2, 3, 2, 2, 4, 8)  # 2 pages of 3 layers, 2 heads, 4 slots, 8 numbers

# The KV dtype's own rounding, relative to the largest number of a token.
SLACK = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 2.0**-8, "int8": 0.5 / 127}


def codec(tier_format: TierFormat, dtype: KVDtype = "float32", max_pages: int = 3) -> Codec:
    return Codec(KVGeometry(3, 2, 8, 4, dtype), max_pages, tier_format)


def through(one: Codec, pages: NDArray[Any]) -> NDArray[Any]:
    payload = np.full(one.payload_bytes, 0xAB, np.uint8)
    one.encode(pages, payload)
    return one.decode(payload, len(pages))


def pages(dtype: KVDtype, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-3, 3, SHAPE[:-1])[..., None]  # tokens of very different size
    return narrow(rng.normal(size=SHAPE) * sizes, dtype)


@pytest.mark.parametrize("dtype", get_args(KVDtype))
@pytest.mark.parametrize(
    ("tier_format", "key_steps", "value_steps"), [("int8", 127, 127), ("int4-values", 127, 7)]
)
def test_the_error_is_half_a_step_of_each_token(
    tier_format: TierFormat, key_steps: int, value_steps: int, dtype: KVDtype
) -> None:
    before = pages(dtype)
    after = through(codec(tier_format, dtype), before)
    assert after.dtype == before.dtype
    assert after.shape == before.shape
    if dtype == tier_format == "int8":  # it is that already
        assert after.tobytes() == before.tobytes()
        return
    wide = widen(before, dtype).astype(np.float64)
    largest = np.abs(wide).max(axis=-1)
    error = np.abs(widen(after, dtype) - wide).max(axis=-1) / largest
    slack = SLACK[dtype]
    assert error[:, :, 0].max() <= 0.5 / key_steps + slack
    assert 0 < error[:, :, 1].max() <= 0.5 / value_steps + slack
    assert error[:, :, 1].max() > 0.25 / value_steps, "the bound is not loose"


@pytest.mark.parametrize("dtype", get_args(KVDtype))
def test_exact_is_exact(dtype: KVDtype) -> None:
    before = pages(dtype)
    assert through(codec("exact", dtype), before).tobytes() == before.tobytes()


@pytest.mark.parametrize("tier_format", ["int8", "int4-values", "exact"])
def test_a_token_of_zeros_stays_zeros(tier_format: TierFormat) -> None:
    before = pages("float16")
    before[:, :, :, :, 1] = 0
    assert not through(codec(tier_format, "float16"), before)[:, :, :, :, 1].any()


@pytest.mark.parametrize("tier_format", ["int8", "int4-values"])
@pytest.mark.parametrize("steps", [10, 190])  # over 7 or 127, a scale is rounded down to one
def test_numbers_next_to_zero_keep_their_sign(tier_format: TierFormat, steps: int) -> None:
    smallest = np.finfo(np.float32).smallest_subnormal
    before = np.full(SHAPE, -steps * smallest, np.float32)
    after = through(codec(tier_format), before)
    assert (after <= 0).all()
    assert (after >= before).all()


def test_the_same_frame_gives_the_same_bytes_whatever_was_there() -> None:
    one, payloads = codec("int8"), []
    for rubbish in (0, 255):
        payload = np.full(one.payload_bytes, rubbish, np.uint8)
        one.encode(pages("float32"), payload)
        payloads.append(payload.tobytes())
        one.encode(pages("float32", seed=1), payload)
    assert payloads[0] == payloads[1]


def test_formats_differ_in_size_as_they_should() -> None:
    sizes = {name: codec(name, "float16").payload_bytes for name in ("exact", "int8")}
    tokens = 3 * 2 * 2 * 4  # layers, parts, heads, slots
    assert sizes == {"exact": 3 * tokens * 16, "int8": 3 * tokens * (8 + 4)}


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ValueError, match="even head dimension, got 7"):
        Codec(KVGeometry(1, 1, 7, 4, "float16"), 1, "int4-values")
    with pytest.raises(ValueError, match="one of int8, int4-values, exact, got 'int4'"):
        checked_format("int4")
