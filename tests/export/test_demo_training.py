"""The packed training forward equals the ordinary Hugging Face forward on each question alone."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("cv2")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from demo_training.data import Encoder, pack, preprocess  # noqa: E402
from demo_training.evaluate import Context  # noqa: E402
from demo_training.model import Trainee, build_config, build_model  # noqa: E402
from demo_training.save import save_folder  # noqa: E402
from demo_training.tokenizer import build_tokenizer  # noqa: E402

from edgekv.demo import Clip, Window, draw_clip  # noqa: E402
from edgekv.demo.evaluation import ask_all  # noqa: E402


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def trainee(tokenizer):
    torch.manual_seed(0)
    return Trainee(build_model(build_config(tokenizer, max_positions=1024))).eval()


@pytest.fixture(scope="module")
def reference(trainee):
    """The same weights with the library's own attention."""
    model = copy.deepcopy(trainee.model)
    model.set_attn_implementation("sdpa")
    return model


def ask_some(clip: Clip, windows: list[tuple[int, int]]) -> list:
    rng = np.random.default_rng(0)
    return [q for first, last in windows for q in ask_all(rng, Window(clip, first, last))]


def single(reference, tokenizer, clip: Clip, question, instructions: str | None):
    """Logits of the answer's tokens, through the public forward of the whole model."""
    content = [{"type": "image"}] * (question.last - question.first + 1)
    content = [*content, {"type": "text", "text": question.text}]
    messages = [{"role": "user", "content": content}]
    if instructions is not None:
        system = [{"type": "text", "text": instructions}]
        messages.insert(0, {"role": "system", "content": system})
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    text = text.replace("<image>", "<image>" * 16) + question.answer + "<end_of_utterance>"
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    pixels = preprocess(clip.frames[question.first : question.last + 1])
    with torch.no_grad():
        logits = reference(input_ids=ids, pixel_values=pixels[None]).logits[0]
    answer = len(tokenizer.encode(question.answer, add_special_tokens=False)) + 1
    return logits[-answer - 1 : -1]


@pytest.mark.parametrize("instructions", [None, "You watch a street."])
def test_packed_equals_single(trainee, reference, tokenizer, instructions: str | None) -> None:
    clips = [draw_clip(seed, 7) for seed in (3, 4)]
    asked = [ask_some(c, [(0, 2), (0, 6)]) for c in clips]
    start = tokenizer.encode(
        "<|im_start|><|user|>"
        if instructions is None
        else f"<|im_start|><|system|>{instructions}<end_of_utterance><|user|>",
        add_special_tokens=False,
    )
    rows = [(np.zeros(7, np.intp), questions) for questions in asked]
    batch = pack(Encoder(tokenizer), start, clips, rows)
    with torch.no_grad():
        packed = trainee(
            batch.pixels,
            batch.tokens,
            batch.positions,
            batch.mask,
            batch.num_start,
            batch.predictors,
        ).logits
    number = 0
    for clip, questions in zip(clips, asked, strict=True):
        for question in questions:
            alone = single(reference, tokenizer, clip, question, instructions)
            mine = packed[batch.question_of == number]
            torch.testing.assert_close(mine, alone, atol=2e-4, rtol=1e-4)
            number += 1
    assert number == len(batch.questions) > 20


def test_image_processor_gives_the_training_pixels(trainee, tokenizer, tmp_path: Path) -> None:
    save_folder(trainee.model, tokenizer, tmp_path / "hf")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    frames = draw_clip(1, 3).frames
    out = processor([list(frames)], return_tensors="pt")
    torch.testing.assert_close(out["pixel_values"][0], preprocess(frames), atol=1e-5, rtol=0)


def test_saved_folder_loads_and_renders(trainee, tokenizer, tmp_path: Path) -> None:
    save_folder(trainee.model, tokenizer, tmp_path / "hf")
    model = transformers.SmolVLMForConditionalGeneration.from_pretrained(tmp_path / "hf")
    for name, weight in trainee.model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, atol=0, rtol=0)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Why?"}]}]
    assert loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|><|user|><image>Why?<end_of_utterance><|assistant|>"
    )
    assert model.generation_config.eos_token_id == loaded.eos_token_id


@torch.no_grad()
def test_streaming_context_equals_the_model_on_what_is_kept(trainee, reference, tokenizer) -> None:
    """Before the first cut: the same hidden states. After it: positions close up, keys stay."""
    encoder = Encoder(tokenizer)
    embed = trainee.model.model.text_model.embed_tokens
    start = embed(torch.tensor([[encoder.start, encoder.user]]))
    images = trainee.encode(preprocess(draw_clip(5, 6).frames))[1]
    asked = embed(torch.tensor([[*encoder.text("What do you see?"), encoder.end]]))

    def whole(*parts):
        x = torch.cat(parts, 1)
        return reference.model.text_model(inputs_embeds=x).last_hidden_state

    context = Context(trainee.model, 1)
    context.push(start)
    for frame in range(6):
        context.push(images[frame : frame + 1])
    expected = whole(start, images.reshape(1, -1, images.shape[-1]), asked)[:, -asked.shape[1] :]
    first = context.ask(asked, torch.tensor([0]))
    torch.testing.assert_close(first, expected, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(context.ask(asked, torch.tensor([0])), first, atol=0, rtol=0)

    context.drop(2, 3 * 16)
    assert context.num_tokens == 2 + 3 * 16
    assert (context.ask(asked, torch.tensor([0])) - first).abs().max() > 1e-3
    # The first layer sees tokens alone, so there the cut context is that of the last three frames.
    fresh = Context(trainee.model, 1)
    fresh.push(start)
    fresh.push(images[3:].reshape(1, -1, images.shape[-1]))
    torch.testing.assert_close(context.keys[0], fresh.keys[0], atol=1e-5, rtol=1e-5)
