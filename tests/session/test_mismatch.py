"""A bundle whose parts are whole but do not belong together is refused when it is loaded."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgekv

Manifest = dict[str, Any]


@pytest.fixture
def copied(tmp_path: Path, bundle_path: Path) -> Path:
    return Path(shutil.copytree(bundle_path, tmp_path / "bundle"))


def edit(folder: Path, change: Callable[[Manifest], object]) -> None:
    manifest = json.loads((folder / "bundle.json").read_text())
    change(manifest)
    (folder / "bundle.json").write_text(json.dumps(manifest))


def replace(folder: Path, name: str, content: bytes) -> None:
    """Another file under the same name, correctly listed."""
    (folder / name).write_bytes(content)
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    edit(folder, lambda manifest: manifest["files"].update({name: entry}))


def refused(folder: Path, kind: type[edgekv.EdgeKVError], capfd: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(kind) as caught:
        edgekv.load(folder, kv_budget="1MiB", num_threads=1)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    return str(caught.value)


def layers(count: int) -> Callable[[Manifest], object]:
    def change(manifest: Manifest) -> None:
        manifest["geometry"]["num_layers"] = count
        manifest["layer_rotations"] = [0] * count

    return change


GRAPHS: dict[str, tuple[Callable[[Manifest], object], str]] = {
    "fewer layers": (layers(4), "decoder.onnx: the graph has an input key_pool.4"),
    "more layers": (layers(6), "expected an input key_pool.5"),
    "heads": (lambda m: m["geometry"].update(num_kv_heads=4), r"key_pool.0 \(any, 4, any, 32\)"),
    "head size": (lambda m: m["geometry"].update(head_dim=16), "expected an input key_pool.0"),
    "axes": (lambda m: m["geometry"].update(num_rope_axes=3), "expected an input position_ids"),
    "dtype": (
        lambda m: m["decoders"].update(float16="decoder.float32-kv.onnx"),
        "decoder.float32-kv.onnx: expected an input key_pool.0 .* float16, .* float32",
    ),
    "another graph": (lambda m: m["decoders"].update(float16="vision.onnx"), "vision.onnx: "),
    "fewer image tokens": (
        lambda m: m["vision"].update(tokens_per_image=8),
        "vision.onnx: expected an output image_embeds",
    ),
    "picture size": (
        lambda m: m["vision"]["image"].update(height=32),
        "vision.onnx: expected an input pixel_values",
    ),
    "huge pictures": (
        lambda m: m["vision"]["image"].update(height=10**9),
        "vision.onnx: expected an input pixel_values",
    ),
}


@pytest.mark.parametrize("fault", GRAPHS)
def test_a_graph_that_is_not_the_manifests(
    copied: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    change, message = GRAPHS[fault]
    edit(copied, change)
    got = refused(copied, edgekv.ExecutorError, capfd)
    assert re.search(message, got), got


@pytest.mark.parametrize(("key", "shape"), [("vocab_size", (500, 192)), ("hidden_size", (584, 96))])
def test_rows_of_another_model(
    copied: Path, key: str, shape: tuple[int, int], capfd: pytest.CaptureFixture[str]
) -> None:
    np.save(copied / "embed.npy", np.zeros(shape, np.float16))
    replace(copied, "embed.npy", (copied / "embed.npy").read_bytes())
    edit(copied, lambda m: m.update({key: shape[0] if key == "vocab_size" else shape[1]}))
    assert "expected an" in refused(copied, edgekv.ExecutorError, capfd)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x81", b'{"model": {}}'])
def test_a_tokenizer_that_is_none(
    copied: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    replace(copied, "tokenizer.json", content)
    assert refused(copied, edgekv.BundleError, capfd).startswith(f"{copied}: tokenizer.json: ")


@pytest.mark.parametrize("name", ["decoder.onnx", "decoder.onnx.data", "vision.onnx"])
@pytest.mark.parametrize("content", [b"", b"\x80garbage"])
def test_a_graph_file_that_is_none(
    copied: Path, name: str, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    replace(copied, name, content)
    assert "onnxruntime cannot load" in refused(copied, edgekv.ExecutorError, capfd)
