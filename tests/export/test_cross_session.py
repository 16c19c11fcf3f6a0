"""Sessions of models with cross-attention: the tokens of transformers, one copy of an input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, GenerationMixin, WhisperFeatureExtractor

import edgekv
from edgekv import SamplingOptions
from tests.executors.host_gpus import use_host_gpus
from tests.export.cross_models import CHUNK_S
from tests.export.test_cross_parity import picture, sound, their_pixels

GREEDY = SamplingOptions(max_new_tokens=12)


@pytest.fixture(scope="module")
def seeing(llama: tuple[Any, Any]) -> Any:
    with edgekv.load(llama[0].path, kv_budget="1MiB", num_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def hearing(whisper: tuple[Any, Any]) -> Any:
    with edgekv.load(whisper[0].path, kv_budget="1MiB", num_threads=1) as model:
        yield model


def ids_of(model: Any, text: str) -> list[int]:
    return list(model._inputs.tokenizer.encode(text, add_special_tokens=False).ids)


def their_answer(torch_model: Any, start: list[int], question: list[int], pixels: Any) -> list[int]:
    """Greedy tokens of transformers: the start without the picture, then all that follows it."""
    cache = DynamicCache(config=torch_model.config.text_config)
    tiles = pixels["aspect_ratio_mask"][0, 0].float()
    answer: list[int] = []
    with torch.no_grad():
        torch_model(input_ids=torch.tensor([start]), use_cache=True, cache=cache)
        tokens, given = question, dict(pixels)
        while len(answer) < GREEDY.max_new_tokens:
            logits = torch_model(
                input_ids=torch.tensor([tokens]),
                cross_attention_mask=tiles.expand(1, len(tokens), 1, -1),
                use_cache=True,
                cache=cache,
                **given,
            ).logits
            token = int(logits[0, -1].argmax())
            if token == 2:
                break
            answer.append(token)
            tokens, given = [token], {}
    return answer


def test_answers_about_pictures(llama: tuple[Any, Any], seeing: Any) -> None:
    with seeing.session(instructions="Look.") as session:
        # The template takes no system message beside a picture, so it stands in the user's turn.
        start = ids_of(seeing, "<|begin_of_text|><|header|>user\nLook.\n\n")
        for k in range(4):
            session.push(picture(k), float(k))
            for question in ("What is it?", "Which colour?"):
                rest = f"<|image|>{question}<|eot_id|><|header|>assistant\n"
                expected = their_answer(
                    llama[1], start, ids_of(seeing, rest), their_pixels([picture(k)])
                )
                assert list(session.ask(question, GREEDY).token_ids) == expected


def test_transcripts(whisper: tuple[Any, Any], hearing: Any) -> None:
    """Several sounds, two tasks each: the tokens of greedy search in transformers."""
    extractor, answers = WhisperFeatureExtractor(feature_size=20, chunk_length=CHUNK_S), set()
    with hearing.session() as session:
        for k in range(4):
            session.push(sound(k), float(k))
            features = extractor(sound(k), sampling_rate=16000, return_tensors="pt").input_features
            for question in ("", "<|de|><|translate|><|notimestamps|>"):
                asked = question or "<|en|><|transcribe|><|notimestamps|>"
                start = ids_of(hearing, "<|startoftranscript|>" + asked)
                found = GenerationMixin.generate(
                    whisper[1],
                    input_features=features,
                    decoder_input_ids=torch.tensor([start]),
                    do_sample=False,
                    max_new_tokens=GREEDY.max_new_tokens,
                )
                expected = tuple(token for token in found[0, len(start) :].tolist() if token)
                assert session.ask(question, GREEDY).token_ids == expected
                answers.add(expected)
    assert len(answers) > 4


@pytest.mark.parametrize("num_questions", [1, 10, 100])
def test_many_questions_one_encoder_run_one_copy(hearing: Any, num_questions: int) -> None:
    short = SamplingOptions(max_new_tokens=2)
    with hearing.session() as session:
        session.push(np.random.default_rng(num_questions).normal(size=999).astype(np.float32), 0.0)
        before = session.stats().cross
        answers = {session.ask("", short).token_ids for _ in range(num_questions)}
        assert len(answers) == 1
        assert session.stats().cross == before
        assert before.live == 4  # pages of 50 states


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_cross_pools_of_other_dtypes(llama: tuple[Any, Any], seeing: Any, kv_dtype: Any) -> None:
    """Written by one graph, read by the other; int8 with its scales."""
    with (
        edgekv.load(llama[0].path, kv_budget="1MiB", kv_dtype=kv_dtype, num_threads=1) as model,
        model.session() as session,
        seeing.session() as other,
    ):
        said = []
        for one in (session, other):
            one.push(picture(0), 0.0)
            logits = one.logits("What is it?")
            said.append(logits[np.isfinite(logits)])  # the picture's own token is ruled out
    difference = np.abs(said[0] - said[1]).max()
    assert 0 < difference < 0.05 * np.ptp(said[1])


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [("llama", None), ("llama", "int8"), ("whisper", "bfloat16")]
)
def test_tensorrts_executor_says_the_same(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, kv_dtype: Any
) -> None:
    """All of it but TensorRT: engines are these graphs, memory is the host's."""
    bundle, _ = request.getfixturevalue(name)
    use_host_gpus(monkeypatch)
    said: dict[str, list[Any]] = {"cpu": [], "tensorrt": []}
    for device, heard in said.items():
        with (
            edgekv.load(
                bundle.path, kv_budget="1MiB", kv_dtype=kv_dtype, device=device, num_threads=1
            ) as model,
            model.session() as session,
        ):
            for k in range(4):
                session.push(picture(k) if name == "llama" else sound(k), float(k))
                question = "What is it?" if name == "llama" else ""
                heard += [session.logits(question), session.ask(question, GREEDY).token_ids]
    for ours, theirs in zip(said["tensorrt"], said["cpu"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(said["cpu"][0], said["cpu"][2])
