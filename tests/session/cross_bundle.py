"""A tiny model with cross-attention as a bundle, made by hand: no torch. And what it must say.

One layer of cross-attention, then one of self-attention, random weights. ``Reference`` computes the
same with dense attention over whole texts: no pages, no cache, no operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

from edgekv import names
from edgekv.bundle import CrossSettings, GenerationDefaults, Manifest, PromptSettings
from edgekv.bundle.manifest import FORMAT_VERSION
from edgekv.bundle.writer import hash_files, write_manifest
from edgekv.config import AudioSettings, KVGeometry, Rotation, TileSettings
from edgekv.media.mel import MelFeatures
from edgekv.media.tiles import Tiler

Kind = Literal["pictures", "sounds"]
Array = NDArray[Any]
HIDDEN, HEADS, HEAD_DIM, PAGE_SIZE, MAX_CONTEXT = 16, 2, 8, 4, 96
SPECIAL = ("<s>", "</s>", "<|image|>", "<|start|>", "<|task|>")
VOCAB = len(SPECIAL) + 256
TILES = TileSettings(tile_size=4, max_tiles=2)
AUDIO = AudioSettings(16000, 1920, 400, 160, 4)
STATES = 3  # of a tile (3 * 4 * 4 numbers), and of a sound (4 * 12)
TEMPLATES = {
    "pictures": (
        "<s>{% for message in messages %}{% if message['content'] is string %}"
        "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}<|image|>{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endif %}</s>{% endfor %}"
    ),
    "sounds": (
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{ message['content'] }}{% else %}<|start|>{{ message['content'] }}{% endif %}{% endfor %}"
    ),
}


def weights() -> dict[str, Array]:
    """Every matrix of the model, large enough that attention prefers some tokens."""
    rng = np.random.default_rng(11)
    shapes = {"encode": (16, HIDDEN), "head": (HIDDEN, VOCAB), "positions": (MAX_CONTEXT, HIDDEN)}
    shapes |= {f"{layer}_{part}": (HIDDEN, HIDDEN) for layer in ("own", "cross") for part in "qkvo"}
    found = {name: rng.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}
    return {**found, "embed": rng.normal(0, 1, (VOCAB, HIDDEN)).astype(np.float32)}


def save_cross_bundle(folder: Path, kind: Kind, dtype: str = "float32") -> Path:
    """The bundle in ``folder``, with graphs for both KV dtypes."""
    folder.mkdir(parents=True)
    for kv_dtype in ("float32", "float16"):
        _save(folder / f"decoder.{kv_dtype}.onnx", _decoder(kind, kv_dtype))
        _save(folder / f"cross.{kv_dtype}.onnx", _writer(kind, kv_dtype))
    _save(folder / "encoder.onnx", _encoder(kind))
    np.save(folder / "embed.npy", weights()["embed"])
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATES[kind])
    write_manifest(folder, _manifest(folder, kind, dtype))
    return folder


def _manifest(folder: Path, kind: Kind, dtype: Any) -> Manifest:
    def files(name: str) -> dict[str, str]:
        return {kv_dtype: f"{name}.{kv_dtype}.onnx" for kv_dtype in ("float32", "float16")}

    pictures = kind == "pictures"
    return Manifest(
        format_version=FORMAT_VERSION,
        name=f"tiny-{kind}",
        family="hand-made",
        operator_version=names.OP_VERSION,
        opset=20,
        weights="fp32",
        geometry=KVGeometry(1, HEADS, HEAD_DIM, PAGE_SIZE, dtype, num_rope_axes=int(pictures)),
        decoders=files("decoder"),
        shiftable=pictures,
        rotations=(Rotation(()),),
        layer_rotations=(0,),
        mass_layer=None,
        queries=None,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        max_context_tokens=MAX_CONTEXT,
        vision=None,
        cross=CrossSettings(
            geometry=KVGeometry(1, HEADS, HEAD_DIM, PAGE_SIZE, dtype, num_rope_axes=0),
            graphs=files("cross"),
            hidden_size=HIDDEN,
            states_per_part=STATES,
            placeholder="<|image|>" if pictures else "",
            default_question="" if pictures else "<|task|>",
            tiles=TILES if pictures else None,
            audio=None if pictures else AUDIO,
        ),
        prompt=PromptSettings(prepend="", template_tokens={}, eos_ids=(1,)),
        generation=GenerationDefaults(False, 1.0, 0, 1.0, 1.0),
        files=hash_files(folder),
    )


def encode(text: str) -> list[int]:
    """Token ids of a text, special tokens included."""
    return list(_tokenizer().encode(text, add_special_tokens=False).ids)


def _tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


# -- graphs ---------------------------------------------------------------------------------------


def _value(name: str, dtype: str, *shape: int | str) -> Any:
    types = {
        "float32": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
        "int32": TensorProto.INT32,
        "int64": TensorProto.INT64,
    }
    return helper.make_tensor_value_info(name, types[dtype], shape)


def _pool(name: str, kv_dtype: str, pages: str) -> Any:
    return _value(name, kv_dtype, pages, HEADS, "S", HEAD_DIM)


def _attention(inputs: list[str], outputs: list[str]) -> Any:
    return helper.make_node(
        names.OP_NAME, inputs, outputs, domain=names.OP_DOMAIN,
        schema_version=names.OP_VERSION, num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM,
        scale=HEAD_DIM**-0.5,
    )  # fmt: skip


def _times(source: str, weight: str, target: str) -> Any:
    return helper.make_node("MatMul", [source, weight], [target])


def _save(path: Path, parts: tuple[list[Any], list[Any], list[Any], dict[str, Array]]) -> None:
    nodes, takes, gives, constants = parts
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tiny", takes, gives, stored)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(names.OP_DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def _encoder(kind: Kind) -> Any:
    states = STATES * (TILES.max_tiles if kind == "pictures" else 1)
    if kind == "pictures":
        takes = [_value(names.PIXEL_VALUES, "float32", 2, 3, 4, 4)]
        takes.append(_value(names.ASPECT_RATIO_IDS, "int64", 1))
    else:
        takes = [_value(names.INPUT_FEATURES, "float32", 1, 4, 12)]
    nodes = [
        helper.make_node("Reshape", [takes[0].name, "shape"], ["rows"]),
        _times("rows", "encode", names.ENCODER_STATES),
    ]
    gives = [_value(names.ENCODER_STATES, "float32", states, HIDDEN)]
    shape = np.array([states, 16])
    return nodes, takes, gives, {"shape": shape, "encode": weights()["encode"]}


def _writer(kind: Kind, kv_dtype: str) -> Any:
    states = STATES * (TILES.max_tiles if kind == "pictures" else 1)
    pools = [names.cross_key_pool(0), names.cross_value_pool(0)]
    written = [names.cross_key_pool_out(0), names.cross_value_pool_out(0)]
    nodes = [
        _times(names.ENCODER_STATES, "cross_k", "k"),
        _times(names.ENCODER_STATES, "cross_v", "v"),
        _attention(
            ["k", "k", "v", *pools, "table", "starts", names.CROSS_SLOT_MAPPING, "none", "none"],
            ["nothing", *written],
        ),
    ]
    takes = [
        _value(names.ENCODER_STATES, "float32", states, HIDDEN),
        _value(names.CROSS_SLOT_MAPPING, "int32", states),
        *(_pool(name, kv_dtype, "PX") for name in pools),
    ]
    constants = {
        "table": np.array([[[-1, 0]]], np.int32),
        "starts": np.array([0, states], np.int32),
        "none": np.zeros(states, np.int32),
        "cross_k": weights()["cross_k"],
        "cross_v": weights()["cross_v"],
    }
    return nodes, takes, [_pool(name, kv_dtype, "PX") for name in written], constants


def _decoder(kind: Kind, kv_dtype: str) -> Any:
    axes = int(kind == "pictures")
    own, seen = [names.key_pool(0), names.value_pool(0)], [
        names.cross_key_pool(0), names.cross_value_pool(0),
    ]  # fmt: skip
    written = [names.key_pool_out(0), names.value_pool_out(0)]
    starts, slots, indices = names.QUERY_STARTS, names.SLOT_MAPPING, names.QUERY_INDICES
    place = [helper.make_node("Identity", [names.INPUTS_EMBEDS], ["x"])]
    if kind == "sounds":  # learned positions
        place = [
            helper.make_node("Gather", ["positions", names.POSITION_IDS], ["place"]),
            helper.make_node("Add", [names.INPUTS_EMBEDS, "place"], ["x"]),
        ]
    nodes = [
        *place,
        _times("x", "cross_q", "cq"),
        _attention(
            ["cq", "", "", *seen, names.CROSS_PAGE_TABLE, starts, slots, names.CROSS_KV_LIMITS,
             indices],
            ["ca"],
        ),
        _times("ca", "cross_o", "cb"),
        helper.make_node("Add", ["x", "cb"], ["y"]),
        *(_times("y", f"own_{part}", part) for part in "qkv"),
        _attention(
            ["q", "k", "v", *own, names.PAGE_TABLE, starts, slots, names.KV_LIMITS, indices],
            ["a", *written],
        ),
        _times("a", "own_o", "b"),
        helper.make_node("Add", ["y", "b"], ["z"]),
        helper.make_node("Gather", ["z", names.LOGIT_INDICES], ["rows"]),
        _times("rows", "head", names.LOGITS),
    ]  # fmt: skip
    takes = [
        _value(names.INPUTS_EMBEDS, "float32", "T", HIDDEN),
        _value(names.POSITION_IDS, "int64", "T"),
        _value(names.LOGIT_INDICES, "int64", "N"),
        _value(names.PAGE_TABLE, "int32", "B", "M", 2 + axes),
        _value(names.QUERY_STARTS, "int32", "B + 1"),
        *(_value(name, "int32", "T") for name in (slots, names.KV_LIMITS, indices)),
        *(_pool(name, kv_dtype, "P") for name in own),
        _value(names.CROSS_PAGE_TABLE, "int32", "B", "MX", 2),
        _value(names.CROSS_KV_LIMITS, "int32", "T"),
        *(_pool(name, kv_dtype, "PX") for name in seen),
    ]
    gives = [_value(names.LOGITS, "float32", "N", VOCAB)]
    gives += [_pool(name, kv_dtype, "P") for name in written]
    used = {name: array for name, array in weights().items() if name not in ("embed", "encode")}
    return nodes, takes, gives, used


# -- what it must say -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The model over whole texts."""

    kind: Kind

    def states(self, content: Array) -> Array:
        """(L, hidden) encoder states of a picture, tiles it does not fill left out, or a sound."""
        if self.kind == "sounds":
            return MelFeatures(AUDIO)(content).reshape(-1, 16) @ weights()["encode"]
        tiles, number = Tiler(TILES)(content)
        rows, columns = TILES.arrangements[number]
        return tiles[: rows * columns].reshape(-1, 16) @ weights()["encode"]

    def logits(self, ids: list[int], seen: list[Array | None]) -> Array:
        """(vocab,) of the last token; token k sees the encoder states ``seen[k]``."""
        w = weights()
        x = w["embed"][ids]
        if self.kind == "sounds":
            x = x + w["positions"][: len(ids)]
        y = x.copy()
        for k, states in enumerate(seen):
            if states is not None:
                keys, values = states @ w["cross_k"], states @ w["cross_v"]
                y[k] += _dense(x[k] @ w["cross_q"], keys, values) @ w["cross_o"]
        told = _dense(y[-1] @ w["own_q"], y @ w["own_k"], y @ w["own_v"])
        logits: Array = (y[-1] + told @ w["own_o"]) @ w["head"]
        return logits

    def answer(self, parts: list[tuple[str, Array | None]], num_tokens: int) -> tuple[int, ...]:
        """Greedy tokens after texts, each with the encoder states that its tokens see."""
        ids, seen = [], []
        for text, states in parts:
            ids += (new := encode(text))
            seen += [states] * len(new)
        num_given = len(ids)
        while len(ids) < num_given + num_tokens:
            token = int(self.logits(ids, seen).argmax())
            if token == 1:
                break
            ids.append(token)
            seen.append(seen[-1])
        return tuple(ids[num_given:])


def _dense(query: Array, keys: Array, values: Array) -> Array:
    heads = []
    for head in range(HEADS):
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        scores = keys[:, part] @ query[part] * HEAD_DIM**-0.5
        shares = np.exp(scores - scores.max())
        heads.append(shares / shares.sum() @ values[:, part])
    return np.concatenate(heads)
