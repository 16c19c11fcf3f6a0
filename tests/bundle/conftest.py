"""A small bundle made by hand: no torch, no onnx. Its graphs are bytes that nobody runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from edgekv.bundle import (
    FORMAT_VERSION,
    GenerationDefaults,
    Manifest,
    PromptSettings,
    QueryOutput,
    VisionSettings,
)
from edgekv.bundle.writer import hash_files, write_manifest
from edgekv.config import ImageSettings, KVGeometry, Rotation
from edgekv.names import OP_VERSION

VOCAB, HIDDEN = 40, 8
TEMPLATE = (
    "<s>{% for message in messages %}{{ message['role'] }}:"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}</s>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def manifest_for(folder: Path) -> Manifest:
    """What describes the files that lie in ``folder``."""
    return Manifest(
        format_version=FORMAT_VERSION,
        name="hand-made",
        family="smolvlm",
        operator_version=OP_VERSION,
        opset=23,
        weights="fp16",
        geometry=KVGeometry(2, 1, 4, 16, "float16"),
        decoders={"float16": "decoder.onnx", "float32": "decoder.float32-kv.onnx"},
        shiftable=True,
        rotations=(Rotation((1.0, 0.1)),),
        layer_rotations=(0, 0),
        mass_layer=1,
        queries=QueryOutput(1, 0.5),
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        max_context_tokens=256,
        vision=VisionSettings(
            tokens_per_image=4,
            image_token_id=3,
            image_attention="causal",
            placeholder="<image>",
            frame_prefix="<f>",
            frame_suffix="</f>",
            image=ImageSettings(32, 32, longest_edge=64),
        ),
        cross=None,
        prompt=PromptSettings(prepend="", template_tokens={"bos_token": "<s>"}, eos_ids=(2,)),
        generation=GenerationDefaults(False, 1.0, 0, 1.0, 1.0),
        files=hash_files(folder),
    )


def write_files(folder: Path) -> None:
    """Every file of the bundle but ``bundle.json``."""
    for name in ("decoder.onnx", "decoder.float32-kv.onnx", "decoder.onnx.data", "vision.onnx"):
        (folder / name).write_bytes(name.encode() * 100)
    rows = np.arange(VOCAB * HIDDEN, dtype=np.float16).reshape(VOCAB, HIDDEN)
    np.save(folder / "embed.npy", rows)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete bundle."""
    path = tmp_path / "bundle"
    path.mkdir()
    write_files(path)
    write_manifest(path, manifest_for(path))
    return path
