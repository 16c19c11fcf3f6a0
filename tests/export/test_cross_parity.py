"""Graphs of models with cross-attention against transformers: states, logits, several inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, WhisperFeatureExtractor
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

from edgekv import names
from edgekv.bundle import Bundle
from edgekv.media.mel import MelFeatures
from edgekv.media.tiles import Tiler
from tests.export.cross_models import CHUNK_S, MAX_TILES, SUPPRESSED, TILE
from tests.export.cross_paged import CrossDecoder, SeeingRow, Source

TOLERANCE = 1e-4
Array = np.ndarray[Any, Any]
SHAPES = ((28, 28), (60, 27), (30, 100), (50, 70))  # one tile, two, four in a row, two by two


def picture(k: int) -> Array:
    return np.random.default_rng(k).integers(0, 256, (*SHAPES[k % 4], 3), np.uint8)


def sound(k: int) -> Array:
    return np.random.default_rng(k).normal(0, 0.1, 9000 + 3000 * k).astype(np.float32)


def show(decoder: CrossDecoder, bundle: Bundle, pixels: Array) -> tuple[Source, Array]:
    cross = bundle.manifest.cross
    assert cross is not None
    assert cross.tiles is not None
    tiles, number = Tiler(cross.tiles)(pixels)
    rows, columns = cross.tiles.arrangements[number]
    feeds = {names.PIXEL_VALUES: tiles, names.ASPECT_RATIO_IDS: np.array([number + 1])}
    return decoder.write(feeds, rows * columns * cross.states_per_part)


def hear(decoder: CrossDecoder, bundle: Bundle, samples: Array) -> tuple[Source, Array]:
    cross = bundle.manifest.cross
    assert cross is not None
    assert cross.audio is not None
    return decoder.write(
        {names.INPUT_FEATURES: MelFeatures(cross.audio)(samples)}, cross.max_states
    )


def their_pixels(frames: list[Array]) -> dict[str, Any]:
    processor = MllamaImageProcessorPil(
        size={"height": TILE, "width": TILE},
        max_image_tiles=MAX_TILES,
        image_mean=[0.48, 0.46, 0.41],
        image_std=[0.27, 0.26, 0.28],
    )
    found = processor([frames], input_data_format="channels_last", return_tensors="pt")
    return {key: found[key] for key in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")}


def their_llama(model: Any, start: list[int], turns: list[list[int]], frames: list[Array]) -> Array:
    """Logits when turn k, and nothing else, sees picture k, and ``start`` sees none."""
    pixels = their_pixels(frames)
    tiles = pixels["aspect_ratio_mask"][0]  # (num_images, max_tiles)
    num_tokens = sum(map(len, turns))
    mask = torch.zeros(1, num_tokens, len(frames), MAX_TILES)
    begin = 0
    for k, turn in enumerate(turns):
        mask[0, begin : begin + len(turn), k] = tiles[k].float()
        begin += len(turn)
    cache = DynamicCache(config=model.config.text_config)
    logits = []
    with torch.no_grad():
        # transformers lets tokens before a picture see all of it when both come in one call.
        if start:
            first = model(input_ids=torch.tensor([start]), use_cache=True, cache=cache)
            logits.append(first.logits)
        second = model(
            input_ids=torch.tensor([[token for turn in turns for token in turn]]),
            **pixels,
            cross_attention_mask=mask,
            use_cache=True,
            cache=cache,
        )
    return torch.cat([*logits, second.logits], dim=1)[0].numpy()


def test_the_encoder_of_pictures(llama: tuple[Bundle, Any]) -> None:
    bundle, model = llama
    decoder = CrossDecoder(bundle)
    for k in range(4):
        pixels = their_pixels([picture(k)])
        with torch.no_grad():
            states = model.model.vision_model(**pixels).last_hidden_state
            theirs = model.model.multi_modal_projector(states).reshape(-1, 64).numpy()
        _, ours = show(decoder, bundle, picture(k))
        assert np.abs(ours - theirs).max() <= TOLERANCE


def test_pictures_and_turns(llama: tuple[Bundle, Any]) -> None:
    """A start that sees nothing, then turns that see one picture each, in chunks."""
    bundle, model = llama
    rng = np.random.default_rng(1)
    start = [1, *rng.integers(4, 260, 6).tolist()]
    image = model.config.image_token_index
    turns = [[image, *rng.integers(4, 260, n).tolist()] for n in (5, 9, 1, 7)]
    frames = [picture(k) for k in range(4)]
    theirs = their_llama(model, start, turns, frames)
    decoder, row = CrossDecoder(bundle), SeeingRow()
    got = [decoder.step([(row, bundle.embed(np.array(start)))])]
    for turn, frame in zip(turns, frames, strict=True):
        row.source, _ = show(decoder, bundle, frame)
        for piece in np.split(np.array(turn), [2]):
            if len(piece):
                got.append(decoder.step([(row, bundle.embed(piece))]))
    ours = np.concatenate(got)
    assert np.isneginf(ours[:, theirs.shape[1] :]).all()  # <|image|> cannot be said
    assert np.abs(ours[:, : theirs.shape[1]] - theirs).max() <= TOLERANCE


def test_rows_that_see_different_pictures_or_none(llama: tuple[Bundle, Any]) -> None:
    bundle, model = llama
    decoder = CrossDecoder(bundle)
    rows = [SeeingRow(), SeeingRow(), SeeingRow()]
    texts = [[1, 9, 8], [1, 50, 60, 70], [1, 11]]
    for k in (0, 1):
        rows[k].source, _ = show(decoder, bundle, picture(k))
    batch = [(row, bundle.embed(np.array(text))) for row, text in zip(rows, texts, strict=True)]
    ours = np.split(decoder.step(batch)[:, :-8], [3, 7])
    for k in (0, 1):
        theirs = their_llama(model, [], [texts[k]], [picture(k)])
        assert np.abs(ours[k] - theirs).max() <= TOLERANCE
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([texts[2]]), use_cache=False).logits[0].numpy()
    assert np.abs(ours[2] - theirs).max() <= TOLERANCE


def test_sounds(whisper: tuple[Bundle, Any]) -> None:
    bundle, model = whisper
    extractor = WhisperFeatureExtractor(feature_size=20, chunk_length=CHUNK_S)
    decoder = CrossDecoder(bundle)
    for k in range(3):
        ids = np.random.default_rng(k).integers(0, 264, 11 + 2 * k)
        features = extractor(sound(k), sampling_rate=16000, return_tensors="pt")
        with torch.no_grad():
            output = model(
                input_features=features["input_features"],
                decoder_input_ids=torch.tensor(ids)[None],
                use_cache=False,
            )
        source, states = hear(decoder, bundle, sound(k))
        assert np.abs(states - output.encoder_last_hidden_state[0].numpy()).max() <= TOLERANCE
        row = SeeingRow(source=source)
        got = [decoder.step([(row, bundle.embed(piece))]) for piece in np.split(ids, [4, 5])]
        ours, theirs = np.concatenate(got), output.logits[0].numpy()
        assert np.isneginf(ours[:, SUPPRESSED]).all()
        ours[:, SUPPRESSED] = theirs[:, SUPPRESSED]
        assert np.abs(ours - theirs).max() <= TOLERANCE
