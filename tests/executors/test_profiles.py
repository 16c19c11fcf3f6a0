"""The shapes engines are built for, and the shapes steps are given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv import names
from edgekv.config import AudioSettings, KVGeometry
from edgekv.errors import ExecutorError
from edgekv.executors.device_table import power_of_two
from edgekv.executors.feeds import step_feeds
from edgekv.executors.signature import (
    cross_signature,
    decoder_signature,
    encoder_signature,
    vision_signature,
)
from edgekv.executors.tensorrt.bindings import step_shapes
from edgekv.executors.tensorrt.profiles import (
    StepLimits,
    cross_profile,
    decoder_profiles,
    encoder_profile,
    vision_profile,
)
from edgekv.types import CrossTables, StepTables

CROSS = KVGeometry(1, 5, 8, 16, "float16", 0)


def geometry(axes: int = 1) -> KVGeometry:
    return KVGeometry(2, 3, 8, 16, "float16", axes)


def tables(
    num_tokens: int, num_rows: int, columns: int, axes: int, cross_columns: int = 0
) -> StepTables:
    cross = CrossTables(
        np.zeros((num_rows, cross_columns, 2), np.int32), np.zeros(num_tokens, np.int32)
    )
    return StepTables(
        position_ids=np.zeros((max(axes, 1), num_tokens), np.int64),
        page_table=np.zeros((num_rows, columns, 2 + axes), np.int32),
        query_starts=np.zeros(num_rows + 1, np.int32),
        slot_mapping=np.zeros(num_tokens, np.int32),
        kv_limits=np.zeros(num_tokens, np.int32),
        query_indices=np.zeros(num_tokens, np.int32),
        cross=cross if cross_columns else None,
    )


@given(
    st.integers(1, 5000), st.integers(1, 400), st.integers(1, 12),
    st.sampled_from([0, 1, 3]), st.integers(0, 2000), st.data(),
)  # fmt: skip
def test_every_step_within_the_limits_fits_a_profile(
    num_pages: int, chunk: int, max_rows: int, axes: int, cross_pages: int, data: st.DataObject
) -> None:
    signature = decoder_signature(
        geometry(axes),
        hidden_size=32,
        vocab_size=99,
        page_mass=True,
        cross=CROSS if cross_pages else None,
    )
    limits = StepLimits(num_pages, 16, num_pages, chunk, max_rows, cross_pages)
    decode, prefill = decoder_profiles(signature, limits)
    assert set(decode.ranges) == set(prefill.ranges) == set(signature.taken)
    num_rows = data.draw(st.integers(1, max_rows), "rows")
    columns = data.draw(st.integers(1, num_pages), "columns")
    cross_columns = data.draw(st.integers(min(cross_pages, 1), cross_pages), "cross columns")
    wide = {names.PAGE_TABLE: limits.max_columns}
    if cross_pages:
        wide[names.CROSS_PAGE_TABLE] = cross_pages
    for profile, num_tokens in ((decode, num_rows), (prefill, max(chunk, num_rows))):
        arrays = step_feeds(
            np.zeros((num_tokens, 32), np.float32),
            tables(num_tokens, num_rows, columns, axes, cross_columns),
            np.zeros(num_rows, np.int64),
            num_rope_axes=axes,
            page_mass=True,
        )
        shapes = step_shapes(arrays, wide)
        profile.check(shapes)
        for name in wide:
            padded = shapes[name][1]
            assert padded == power_of_two(padded) >= arrays[name].shape[1]


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
    with pytest.raises(ValueError, match="num_cross_pages must be at least 0, got -1"):
        StepLimits(1, 1, 1, num_cross_pages=-1)


def test_pictures_come_one_at_a_time() -> None:
    signature = vision_signature(height=64, width=96, tokens_per_image=16, hidden_size=32)
    assert vision_profile(signature).ranges[names.PIXEL_VALUES].all == ((1, 3, 64, 96),) * 3


def test_ranges_of_what_cross_attention_reads() -> None:
    """Tables and pools have sizes of their own, whatever those of the context are."""
    signature = decoder_signature(geometry(), hidden_size=32, vocab_size=99, cross=CROSS)
    decode, prefill = decoder_profiles(signature, StepLimits(3000, 16, 528, num_cross_pages=376))
    assert decode.ranges[names.CROSS_PAGE_TABLE].all == ((1, 1, 2), (1, 256, 2), (8, 512, 2))
    assert prefill.ranges[names.CROSS_KV_LIMITS].all == ((1,), (256,), (256,))
    for profile in (decode, prefill):
        assert profile.ranges[names.cross_key_pool(0)].all == (
            (1, 5, 16, 8), (512, 5, 16, 8), (512, 5, 16, 8),
        )  # fmt: skip
        assert profile.ranges[names.key_pool(0)].most == (4096, 3, 16, 8)


def test_int8_cross_pools_have_scales() -> None:
    signature = cross_signature(
        KVGeometry(1, 5, 8, 16, "int8", 0), num_states=1500, hidden_size=384
    )
    profile = cross_profile(signature, num_pages=376, page_size=16)
    assert profile.ranges.keys() == signature.taken.keys()
    assert profile.ranges[names.ENCODER_STATES].all == ((1500, 384),) * 3
    assert profile.ranges[names.pool("key", "scales", 0, cross=True)].all == (
        (1, 5, 16), (512, 5, 16), (512, 5, 16),
    )  # fmt: skip


def test_an_encoder_has_one_shape() -> None:
    audio = AudioSettings(16000, 480_000, 400, 160, 80)
    signature = encoder_signature(num_states=1500, hidden_size=384, audio=audio)
    assert encoder_profile(signature).ranges[names.INPUT_FEATURES].all == ((1, 80, 3000),) * 3
