"""The shapes engines are built for, and the shapes steps are given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv import names
from edgekv.config import KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.device_table import power_of_two
from edgekv.executors.feeds import step_feeds
from edgekv.executors.signature import decoder_signature, vision_signature
from edgekv.executors.tensorrt.bindings import step_shapes
from edgekv.executors.tensorrt.profiles import (
    StepLimits,
    decoder_profiles,
    vision_profile,
)
from edgekv.types import StepTables


def geometry(axes: int = 1) -> KVGeometry:
    return KVGeometry(2, 3, 8, 16, "float16", axes)


def tables(num_tokens: int, num_rows: int, columns: int, axes: int) -> StepTables:
    return StepTables(
        position_ids=np.zeros((max(axes, 1), num_tokens), np.int64),
        page_table=np.zeros((num_rows, columns, 2 + axes), np.int32),
        query_starts=np.zeros(num_rows + 1, np.int32),
        slot_mapping=np.zeros(num_tokens, np.int32),
        kv_limits=np.zeros(num_tokens, np.int32),
        query_indices=np.zeros(num_tokens, np.int32),
    )


@given(
    st.integers(1, 5000), st.integers(1, 400), st.integers(1, 12),
    st.sampled_from([0, 1, 3]), st.data(),
)  # fmt: skip
def test_every_step_within_the_limits_fits_a_profile(
    num_pages: int, chunk: int, max_rows: int, axes: int, data: st.DataObject
) -> None:
    signature = decoder_signature(geometry(axes), hidden_size=32, vocab_size=99, page_mass=True)
    limits = StepLimits(num_pages, 16, num_pages, chunk, max_rows)
    decode, prefill = decoder_profiles(signature, limits)
    assert set(decode.ranges) == set(prefill.ranges) == set(signature.taken)
    num_rows = data.draw(st.integers(1, max_rows), "rows")
    columns = data.draw(st.integers(1, num_pages), "columns")
    for profile, num_tokens in ((decode, num_rows), (prefill, max(chunk, num_rows))):
        arrays = step_feeds(
            np.zeros((num_tokens, 32), np.float32),
            tables(num_tokens, num_rows, columns, axes),
            np.zeros(num_rows, np.int64),
            num_rope_axes=axes,
            page_mass=True,
        )
        shapes = step_shapes(arrays, limits.max_columns)
        profile.check(shapes)
        assert shapes[names.PAGE_TABLE][1] >= columns
        padded = shapes[names.PAGE_TABLE][1]
        assert padded == power_of_two(padded)


def test_ranges_of_the_demo_size() -> None:
    signature = decoder_signature(geometry(), hidden_size=32, vocab_size=99)
    decode, prefill = decoder_profiles(signature, StepLimits(3000, 16, 528))
    assert decode.ranges[names.INPUTS_EMBEDS].all == ((1, 32), (1, 32), (8, 32))
    assert prefill.ranges[names.INPUTS_EMBEDS].all == ((1, 32), (256, 32), (256, 32))
    assert decode.ranges[names.QUERY_STARTS].all == ((2,), (2,), (9,))
    assert decode.ranges[names.PAGE_TABLE].all == ((1, 1, 3), (1, 256, 3), (8, 1024, 3))
    assert prefill.ranges[names.key_pool(1)].all == (
        (1, 3, 16, 8), (4096, 3, 16, 8), (4096, 3, 16, 8),
    )  # fmt: skip


def test_budgets_of_about_one_size_share_an_engine() -> None:
    signature = decoder_signature(geometry(), hidden_size=32, vocab_size=99)
    first, second, third = (
        decoder_profiles(signature, StepLimits(pages, 16, 528)) for pages in (2100, 4096, 4097)
    )
    assert first == second != third


def test_what_is_outside_is_named() -> None:
    signature = decoder_signature(geometry(), hidden_size=32, vocab_size=99)
    decode, _ = decoder_profiles(signature, StepLimits(64, 16, 64))
    with pytest.raises(
        ExecutorError,
        match=r"decode profile takes logit_indices from \(1,\) to \(8,\), got \(9,\)",
    ):
        decode.check({names.LOGIT_INDICES: (9,)})


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_rows must be at least 1, got 0"):
        StepLimits(1, 1, 1, 1, 0)


def test_pictures_come_one_at_a_time() -> None:
    signature = vision_signature(height=64, width=96, tokens_per_image=16, hidden_size=32)
    assert vision_profile(signature).ranges[names.PIXEL_VALUES].all == ((1, 3, 64, 96),) * 3
