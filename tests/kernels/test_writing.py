"""New keys and values: every bit as the oracle stores it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgekv.oracle import Attributes, Inputs, paged_attention
from tests.kernels.call import run

TOKENS, DIM = 40, 24


def numbers(rng: np.random.Generator, dtype: str) -> np.ndarray:
    """(TOKENS, DIM) with every kind of token that quantising may meet."""
    x = rng.standard_normal((TOKENS, DIM)) * 10.0 ** rng.integers(-6, 4, (TOKENS, 1))
    x[0] = 0.0
    x[1, 5] = np.nan
    x[2, 6] = np.inf
    x[3] = 127.0 * np.sign(x[3])
    x[4, :8] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.0]  # scale 1: ties go to even
    x[5] = 1e-42  # its scale is subnormal
    x[6] = -3e38 if dtype == "float32" else -6e4
    x[7] = np.linspace(-1, 1, DIM) * 1e-38
    return x.astype(dtype)


def inputs_for(x: np.ndarray, pool_dtype: str) -> Inputs:
    rng = np.random.default_rng(5)
    num_pages, page_size = 12, 4
    shape = (num_pages, 1, page_size, DIM)
    int8 = pool_dtype == "int8"
    slots = rng.permutation(num_pages * page_size)[:TOKENS].astype(np.int32)
    slots[-2:] = -1
    return Inputs(
        query=np.zeros_like(x),
        key=x,
        value=x[::-1].copy(),
        key_pool=np.full(shape, 7, pool_dtype),
        value_pool=np.full(shape, 7, pool_dtype),
        page_table=np.array([[[0, 1, 0]]], np.int32),
        query_starts=np.array([0, TOKENS], np.int32),
        slot_mapping=slots,
        kv_limits=np.zeros(TOKENS, np.int32),
        query_indices=np.zeros(TOKENS, np.int32),
        key_scales=np.full(shape[:3], 7, np.float32) if int8 else None,
        value_scales=np.full(shape[:3], 7, np.float32) if int8 else None,
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("pool_dtype", ["float32", "float16", "int8"])
def test_stored_bits_are_the_oracles(dtype: str, pool_dtype: str) -> None:
    attributes = Attributes(1, 1, DIM, 1.0)
    inputs = inputs_for(numbers(np.random.default_rng(1), dtype), pool_dtype)
    result, expected = run(attributes, inputs), paged_attention(attributes, inputs)
    for name in ("key_pool", "value_pool", "key_scales", "value_scales"):
        wanted = getattr(expected, name)
        if wanted is not None:
            np.testing.assert_array_equal(getattr(result, name).numpy(), wanted)


def test_bfloat16_rounds_to_nearest_even() -> None:
    attributes = Attributes(1, 1, DIM, 1.0)
    inputs = inputs_for(numbers(np.random.default_rng(2), "float32"), "float32")
    x = torch.from_numpy(inputs.key)
    result = run(attributes, inputs, bfloat16=True)
    slots = torch.from_numpy(inputs.slot_mapping[:-2]).long()
    stored = result.key_pool.reshape(-1, DIM)[slots]
    torch.testing.assert_close(stored, x[:-2].bfloat16(), rtol=0, atol=0, equal_nan=True)
