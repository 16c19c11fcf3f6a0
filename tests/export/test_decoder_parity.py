"""Exported decoders against transformers: the same logits however the tokens arrive.

The reference is the model itself, eager attention, all tokens at once. Pages hold 4 tokens, come in
random order and start as NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgekv import names
from edgekv.export.build import ExportOptions, save_decoders, trace_decoder
from tests.export.conftest import Exported
from tests.export.models import HIDDEN, TEXT_MODELS
from tests.export.paged import PagedDecoder, Row

TOLERANCE = 1e-4
LENGTH = 23
OLD_OPSET_MODELS = ("llama", "qwen3")


@dataclass
class Case:
    """An exported tiny model, a text as embeddings, and what the model makes of it."""

    traced: Any
    folder: Path
    embeds: np.ndarray[Any, Any]  # (LENGTH, hidden)
    other: np.ndarray[Any, Any]  # another text of that length
    expected: np.ndarray[Any, Any]  # (LENGTH, vocab)
    expected_other: np.ndarray[Any, Any]
    attention: np.ndarray[Any, Any]  # (LENGTH, LENGTH) the mass layer's, heads summed

    def decoder(self, dtype: str = "float32") -> PagedDecoder:
        name = "decoder.onnx" if dtype == "float32" else f"decoder.{dtype}-kv.onnx"
        return PagedDecoder(self.folder / name, replace(self.traced.geometry, dtype=dtype))


@pytest.fixture(scope="module", params=TEXT_MODELS)
def case(request: pytest.FixtureRequest, exported: Callable[[str], Exported]) -> Case:
    model = TEXT_MODELS[request.param]()
    generator = torch.Generator().manual_seed(1)
    embeds = torch.randn(2, LENGTH, HIDDEN, generator=generator)
    with torch.no_grad():
        expected = model(inputs_embeds=embeds, use_cache=False).logits.float().numpy()
    assert np.abs(expected).max() > 0.05  # a model that answers nothing would pass any comparison
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(inputs_embeds=embeds[:1], use_cache=False, output_attentions=True).attentions
    made = exported(request.param)
    first, second = embeds.numpy()
    attention = layers[made.traced.mass_layer][0].sum(0).float().numpy()
    return Case(made.traced, made.folder, first, second, expected[0], expected[1], attention)


def same(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == np.float32
    assert float(np.abs(ours - theirs).max()) <= TOLERANCE


def test_one_piece(case: Case) -> None:
    same(case.decoder().step([(Row(), case.embeds)]), case.expected)


def test_chunks(case: Case) -> None:
    decoder, row = case.decoder(), Row()
    pieces = np.split(case.embeds, [5, 6, 14])
    same(np.concatenate([decoder.step([(row, piece)]) for piece in pieces]), case.expected)


def test_token_by_token(case: Case) -> None:
    decoder, row = case.decoder(), Row()
    steps = [decoder.step([(row, token[None])]) for token in case.embeds]
    same(np.concatenate(steps), case.expected)


def test_two_sequences_packed(case: Case) -> None:
    decoder, first, second = case.decoder(), Row(), Row()
    got = decoder.step([(first, case.embeds[:10]), (second, case.other[:3])])
    same(got, np.concatenate([case.expected[:10], case.expected_other[:3]]))
    got = decoder.step([(first, case.embeds[10:11]), (second, case.other[3:])])
    same(got, np.concatenate([case.expected[10:11], case.expected_other[3:]]))


def test_mass_is_the_attention_of_one_layer(case: Case) -> None:
    decoder, row = case.decoder(), Row()
    decoder.step([(row, case.embeds[:9])])
    decoder.step([(row, case.embeds[9:])], mass_weight=0.5)
    fell_on = np.zeros(decoder.page_size * len(row.pages))
    fell_on[:LENGTH] = 0.5 * case.attention[9:].sum(0)
    by_page = fell_on.reshape(-1, decoder.page_size).sum(1)
    np.testing.assert_allclose(decoder.mass[row.pages], by_page, atol=1e-4)
    assert decoder.mass.sum() == pytest.approx(by_page.sum(), abs=1e-3)


def test_queries_are_those_of_one_layer(case: Case) -> None:
    """With the keys in its pages they give the attention of the model's own layer."""
    decoder, row = case.decoder(), Row()
    decoder.step([(row, case.embeds)])
    layer, scale = case.traced.queries.layer, case.traced.queries.scale
    call = case.traced.probe.calls[layer]
    keys = decoder.arrays[names.key_pool(layer)][row.pages].swapaxes(1, 2)
    keys = keys.reshape(-1, *keys.shape[2:])[:LENGTH]  # (T, Hk, D)
    queries = decoder.queries.reshape(LENGTH, keys.shape[1], -1, keys.shape[2])
    assert (decoder.queries.dtype, decoder.queries.ndim) == (np.float32, 2)
    scores = scale * np.einsum("thgd,shd->hgts", queries, keys).reshape(-1, LENGTH, LENGTH)
    if call.softcap:
        scores = call.softcap * np.tanh(scores / call.softcap)
    ahead = np.arange(LENGTH)[:, None] - np.arange(LENGTH)  # (T, T) how far back a key is
    scores[:, (ahead < 0) | ((ahead >= call.window) & (call.window > 0))] = -np.inf
    weights = np.exp(scores)
    sinks = 0 if call.sinks is None else np.exp(call.sinks.detach().float().numpy())[:, None]
    shares = weights / (weights.sum(-1) + sinks)[..., None]
    np.testing.assert_allclose(shares.sum(0), case.attention, atol=1e-4)


def test_fork(case: Case) -> None:
    decoder, row = case.decoder(), Row()
    decoder.step([(row, case.embeds[:14])])
    child = decoder.fork(row)
    decoder.step([(child, case.other[:6])])  # the child goes its own way
    same(decoder.step([(row, case.embeds[14:])]), case.expected[14:])


def test_moved_pages(case: Case) -> None:
    """Pages written 100 positions too far and moved back: the node rotates as the model does."""
    if not case.traced.probe.shiftable:
        assert case.traced.geometry.num_rope_axes == 0
        return
    decoder, row = case.decoder(), Row(offset=100)
    decoder.step([(row, case.embeds[:12])])  # three full pages
    row.offset, row.moved, row.shift = 0, 3, -100
    same(decoder.step([(row, case.embeds[12:])]), case.expected[12:])


def test_only_learned_positions_are_fixed(case: Case, request: pytest.FixtureRequest) -> None:
    learned = "learned" in request.node.callspec.params["case"]
    assert case.traced.probe.shiftable == (not learned)


def test_logits_of_some_tokens_and_of_none(case: Case) -> None:
    decoder, row = case.decoder(), Row()
    assert decoder.step([(row, case.embeds[:9])], logits=[]).shape == (0, case.expected.shape[1])
    same(decoder.step([(row, case.embeds[9:])], logits=[13, 0]), case.expected[[22, 9]])


def test_half_precision_pages(case: Case) -> None:
    got = case.decoder("float16").step([(Row(), case.embeds)])
    scale = max(1.0, float(np.abs(case.expected).max()))
    assert float(np.abs(got - case.expected).max()) <= 2e-2 * scale


@pytest.mark.parametrize(
    ("name", "opset"), [*((name, 20) for name in OLD_OPSET_MODELS), ("qwen3", 22)]
)
def test_older_opsets(tmp_path: Path, name: str, opset: int) -> None:
    """Norms and rotations are several nodes there; TensorRT 10.3 (JetPack 6) reads up to 20."""
    model = TEXT_MODELS[name]()
    embeds = torch.randn(1, LENGTH, HIDDEN, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(inputs_embeds=embeds, use_cache=False).logits[0].numpy()
    options = ExportOptions(weights="fp32", kv_dtype="float32", opset=opset)
    traced = trace_decoder(model, HIDDEN, options)
    assert traced.graph.opset_imports[""] == opset
    save_decoders(tmp_path, traced, "fp32")
    decoder, row = PagedDecoder(tmp_path / "decoder.onnx", traced.geometry), Row()
    pieces = np.split(embeds[0].numpy(), [9, 10])
    same(np.concatenate([decoder.step([(row, piece)]) for piece in pieces]), expected)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_few_nodes_stand_around_the_operator(
    name: str, exported: Callable[[str], Exported]
) -> None:
    """Heads stay flat: no swaps, three reshapes into the operator and one out of it."""
    counts = Counter(node.op_type for node in exported(name).traced.graph.graph)
    assert counts["PagedAttention"] == 2
    assert counts["Transpose"] == 0
    assert counts["RotaryEmbedding"] == 4
    assert counts["Cos"] <= 2
