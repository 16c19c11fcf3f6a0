"""A bundle of a tiny Idefics3 or SmolVLM against transformers: tokens, pictures, turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText, AutoTokenizer, Idefics3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from edgekv import names
from edgekv.bundle import Bundle
from edgekv.export.build import ExportOptions, export_bundle
from edgekv.media.preprocess import Preprocessor
from tests.export.paged import PagedDecoder, Row, open_graph
from tests.export.vlm import IMAGE_SIZE, save_vlm

TOLERANCE = 1e-4
QUESTIONS = ("What is the colour?", " the\nend ", "Überall")


@pytest.fixture(scope="module", params=["SmolVLM", "Idefics3", "SmolVLM-unmarked", "SmolVLM-20"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bundle, Path]:
    """The bundle, and the folder it was exported from."""
    kind, _, variant = request.param.partition("-")
    root = tmp_path_factory.mktemp(kind)
    save_vlm(kind, root / "hf", marked=variant != "unmarked")
    lines: list[str] = []
    opset = 20 if variant == "20" else 23  # what JetPack 6's TensorRT reads, and the usual one
    options = ExportOptions(weights="fp32", kv_dtype="float32", opset=opset)
    export_bundle(root / "hf", root / "bundle", options, lines.append)
    assert len(lines) >= 4
    return Bundle.open(root / "bundle"), root / "hf"


def pictures(count: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 255, (40 + 7 * i, 50, 3), np.uint8) for i in range(count)]


def part_ids(bundle: Bundle, *texts: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    return [i for text in texts for i in tokenizer.encode(text, add_special_tokens=False).ids]


def frame_ids(bundle: Bundle) -> list[int]:
    vision, prompts = bundle.manifest.vision, bundle.prompts()
    assert vision is not None
    tokens = [vision.image_token_id] * vision.tokens_per_image
    before = part_ids(bundle, prompts.frame_prefix)
    return before + tokens + part_ids(bundle, prompts.frame_suffix)


def image_embeds(bundle: Bundle, frames: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    assert bundle.image is not None
    prepare = Preprocessor(bundle.image)
    pixels = np.concatenate([prepare(frame).copy() for frame in frames])
    session = open_graph(Path(str(bundle.vision_path)))
    (features,) = session.run([names.IMAGE_EMBEDS], {names.PIXEL_VALUES: pixels})
    assert features.shape == (len(frames), bundle.tokens_per_image, bundle.manifest.hidden_size)
    return np.asarray(features)


def embeds_of(
    bundle: Bundle, ids: list[int], features: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    vision = bundle.manifest.vision
    assert vision is not None
    embeds = bundle.embed(np.array(ids, np.int64))
    embeds[np.array(ids) == vision.image_token_id] = features.reshape(-1, embeds.shape[1])
    return embeds


def theirs(folder: Path, ids: list[int], frames: list[np.ndarray[Any, Any]]) -> Any:
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
    settings = {"longest_edge": 2 * IMAGE_SIZE}, {"longest_edge": IMAGE_SIZE}
    processor = Idefics3ImageProcessorPil(
        size=settings[0], max_image_size=settings[1], do_image_splitting=False
    )
    pixels = processor([frames], return_tensors="pt", input_data_format="channels_last")
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor([ids]), pixel_values=pixels["pixel_values"], use_cache=False
        )
        features = model.get_image_features(pixels["pixel_values"]).pooler_output
    return output.logits[0].numpy(), torch.stack(list(features)).numpy()


def test_vision_and_decoder(pair: tuple[Bundle, Path]) -> None:
    """Three frames, a question, an answer, two more frames, another question: all logits."""
    bundle, folder = pair
    prompts, frames = bundle.prompts(), pictures(5)
    first = part_ids(bundle, prompts.start("Look."))
    first += frame_ids(bundle) * 3 + part_ids(bundle, prompts.question("What?"))
    second = part_ids(bundle, "Yes", prompts.answer_end, prompts.turn_start())
    second += frame_ids(bundle) * 2 + part_ids(bundle, prompts.question("And now?"))
    expected, expected_features = theirs(folder, first + second, frames)
    features = image_embeds(bundle, frames)
    assert np.abs(features.reshape(expected_features.shape) - expected_features).max() <= TOLERANCE
    decoder = PagedDecoder(bundle.decoder_path, bundle.geometry)
    row = Row()
    got = [
        decoder.step([(row, embeds_of(bundle, first, features[:3]))]),
        decoder.step([(row, embeds_of(bundle, second, features[3:]))]),
    ]
    assert np.abs(np.concatenate(got) - expected).max() <= TOLERANCE


def test_pictures_do_not_depend_on_their_neighbours(pair: tuple[Bundle, Path]) -> None:
    bundle, _ = pair
    frames = pictures(3)
    together = image_embeds(bundle, frames)
    alone = np.concatenate([image_embeds(bundle, [frame]) for frame in frames])
    assert np.abs(together - alone).max() <= 1e-5


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("instructions", [None, "You watch the door."])
def test_prompt_ids_are_the_processors(
    pair: tuple[Bundle, Path], question: str, instructions: str | None
) -> None:
    bundle, folder = pair
    tokenizer = AutoTokenizer.from_pretrained(folder)
    marked = "<fake_token_around_image>" in tokenizer.get_vocab()
    system = [{"role": "system", "content": [{"type": "text", "text": instructions}]}]
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": question}]
    messages = (system if instructions else []) + [{"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    if marked:
        processor = Idefics3Processor(
            image_processor=Idefics3ImageProcessorPil(
                size={"longest_edge": 2 * IMAGE_SIZE},
                max_image_size={"longest_edge": IMAGE_SIZE},
                do_image_splitting=False,
            ),
            tokenizer=tokenizer,
            image_seq_len=bundle.tokens_per_image,
        )
        inputs = processor(text=text, images=[pictures(2)], input_data_format="channels_last")
        expected = list(inputs["input_ids"][0])
    else:  # frames of image tokens alone, as the processor of the demo model makes them
        text = text.replace("<image>", "<image>" * bundle.tokens_per_image)
        expected = tokenizer(text)["input_ids"]
    prompts = bundle.prompts()
    ours = part_ids(bundle, prompts.start(instructions)) + frame_ids(bundle) * 2
    assert ours + part_ids(bundle, prompts.question(question)) == expected
