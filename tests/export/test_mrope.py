"""M-RoPE: each frequency on its own axis, a picture's tokens on a grid, as transformers has it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from edgekv.cache import PageCache
from edgekv.executors import choose_device, create_decoder
from edgekv.generate import Runner
from tests.export.conftest import Exported
from tests.export.models import HIDDEN, TEXT_MODELS

AXES = {
    "qwen2-vl-mrope": (0, 0, 1, 1, 1, 2, 2, 2),  # sections of 2, 3 and 3
    "qwen3-vl-mrope-woven": (0, 1, 2, 0, 1, 2, 0, 0),  # 4, 2 and 2, woven
}


@pytest.mark.parametrize("name", AXES)
def test_a_picture_on_a_grid_between_texts(name: str, exported: Callable[[str], Exported]) -> None:
    model = TEXT_MODELS[name]()
    embeds = torch.randn(1, 15, HIDDEN, generator=torch.Generator().manual_seed(3))
    rows, columns = np.divmod(np.arange(6), 3)
    grid = np.stack([np.zeros(6, np.int64), rows, columns])
    # Text at 0 to 4, a picture of 2 × 3 tokens from 5 on, text one behind its largest position.
    positions = np.concatenate(
        [np.arange(5)[None].repeat(3, 0), 5 + grid, 8 + np.arange(4)[None].repeat(3, 0)], axis=1
    )
    with torch.no_grad():
        expected = (
            model(
                inputs_embeds=embeds,
                position_ids=torch.from_numpy(positions).unsqueeze(1),
                use_cache=False,
            )
            .logits[0]
            .numpy()
        )
        plain = model(inputs_embeds=embeds, use_cache=False).logits[0].numpy()
    assert np.abs(expected[-1] - plain[-1]).max() > 1e-2  # the grid does matter

    traced = exported(name).traced
    assert traced.geometry.num_rope_axes == 3
    assert all(rotation.freq_axes == AXES[name] for rotation in traced.probe.rotations)
    path = exported(name).folder / "decoder.onnx"
    decoder = create_decoder(choose_device("cpu"), path, traced.geometry, num_pages=8)
    runner = Runner(decoder, PageCache(traced.geometry, 8))
    sequence, rows_of = runner.cache.open(), embeds[0].numpy()
    got = [
        runner.feed(sequence, "system", rows_of[:5]),
        runner.feed(sequence, "frame", rows_of[5:11], positions=grid, advance=(3, 3, 3)),
        runner.feed(sequence, "text", rows_of[11:]),
    ]
    np.testing.assert_allclose(np.stack(got), expected[[4, 10, 14]], atol=1e-4)
