"""A sound bundle opens and gives what it holds; a broken one is refused with one clear line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekv.bundle import Bundle, Manifest
from edgekv.errors import BundleError
from tests.bundle.conftest import HIDDEN, TEMPLATE, VOCAB, manifest_for
from tests.bundle.refusals import edit, refused

FILES = (
    "decoder.onnx",
    "decoder.float32-kv.onnx",
    "decoder.onnx.data",
    "vision.onnx",
    "embed.npy",
    "tokenizer.json",
    "chat_template.jinja",
)


def test_opens(folder: Path) -> None:
    bundle = Bundle.open(folder)
    assert bundle.manifest == manifest_for(folder)
    assert bundle.geometry.page_size == 16
    assert bundle.tokens_per_image == 4
    assert bundle.image is not None
    assert bundle.image.longest_edge == 64
    assert bundle.decoder_path == folder / "decoder.onnx"
    assert bundle.vision_path == folder / "vision.onnx"
    assert bundle.tokenizer_path == folder / "tokenizer.json"
    assert bundle.chat_template == TEMPLATE
    assert bundle.prompts().question("why?") == "why?</s>\nassistant:"


def test_opens_with_plain_text_path(folder: Path) -> None:
    assert Bundle.open(str(folder)).path == folder


def test_manifest_text_round_trips(folder: Path) -> None:
    manifest = manifest_for(folder)
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_kv_dtype_chooses_the_graph(folder: Path) -> None:
    bundle = Bundle.open(folder)
    assert bundle.kv_dtypes == ("float16", "float32")
    assert bundle.geometry_for("float32").dtype == "float32"
    assert bundle.geometry_for(None) == bundle.geometry
    assert bundle.decoder_path_for("float32") == folder / "decoder.float32-kv.onnx"
    with pytest.raises(ValueError, match="float16, float32 for this bundle, got 'int8'"):
        bundle.decoder_path_for("int8")


def test_text_only(folder: Path) -> None:
    (folder / "vision.onnx").unlink()

    def change(value: dict[str, Any]) -> None:
        value["vision"] = None
        del value["files"]["vision.onnx"]

    edit(folder, change)
    (folder / "bundle.json").write_text((folder / "bundle.json").read_text())
    bundle = Bundle.open(folder)
    assert bundle.vision_path is None
    assert bundle.image is None
    assert bundle.tokens_per_image == 0


def test_embed_rows(folder: Path) -> None:
    bundle = Bundle.open(folder)
    rows = bundle.embed(np.array([0, VOCAB - 1, 2], np.int64))
    assert rows.dtype == np.float32
    assert rows[:, 0].tolist() == [0, (VOCAB - 1) * HIDDEN, 2 * HIDDEN]
    assert bundle.embed(np.array([], np.int64)).shape == (0, HIDDEN)


@pytest.mark.parametrize("ids", [[VOCAB], [-1], [0, VOCAB, 1]])
def test_embed_refuses_ids_outside_the_vocabulary(folder: Path, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=f"0 to {VOCAB - 1}"):
        Bundle.open(folder).embed(np.array(ids, np.int64))


def test_embed_refuses_other_shapes(folder: Path) -> None:
    bundle = Bundle.open(folder)
    with pytest.raises(ValueError, match=r"\(n,\) integers"):
        bundle.embed(np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match=r"\(n,\) integers"):
        bundle.embed(np.zeros(2, np.float32))  # type: ignore[arg-type]


def test_unlisted_files_are_allowed(folder: Path) -> None:
    (folder / "README.md").write_text("hello")
    assert Bundle.open(folder).manifest.name == "hand-made"


def test_identity_follows_the_files(folder: Path) -> None:
    first = Bundle.open(folder).weights_sha256
    (folder / "decoder.onnx.data").write_bytes(b"other weights")
    manifest = manifest_for(folder)
    (folder / "bundle.json").write_text(manifest.to_json())
    assert Bundle.open(folder).weights_sha256 != first


# -- broken folders -------------------------------------------------------------------------------


def test_no_folder(tmp_path: Path) -> None:
    assert refused(tmp_path / "none").endswith("expected a bundle folder, it does not exist")


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert refused(tmp_path / "file").endswith("expected a bundle folder, it is a file")


def test_an_ordinary_folder(tmp_path: Path) -> None:
    assert refused(tmp_path).endswith("not a bundle, bundle.json is missing")


@pytest.mark.parametrize("name", FILES)
def test_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refused(folder).startswith(f"{name}: listed in bundle.json but missing")


@pytest.mark.parametrize("name", FILES)
def test_truncated_file(folder: Path, name: str) -> None:
    path = folder / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(folder) == f"{name}: expected {size} bytes, got {size - 1}"


@pytest.mark.parametrize("name", FILES)
def test_changed_byte(folder: Path, name: str) -> None:
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert refused(folder).startswith(f"{name}: SHA-256 differs")


def test_changed_byte_is_not_seen_without_verification(folder: Path) -> None:
    path = folder / "decoder.onnx.data"
    path.write_bytes(bytes(path.stat().st_size))
    assert Bundle.open(folder, verify=False).path == folder
    path.write_bytes(b"")
    with pytest.raises(BundleError, match="bytes, got 0"):
        Bundle.open(folder, verify=False)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((VOCAB, HIDDEN + 1), np.float16), "expected shape"),
        (np.zeros((VOCAB, HIDDEN), np.int8), "float16 or float32"),
        (np.zeros((VOCAB, HIDDEN), object), "not a NumPy array file"),
    ],
)
def test_wrong_embedding_rows(folder: Path, rows: np.ndarray[Any, Any], message: str) -> None:
    np.save(folder / "embed.npy", rows)
    (folder / "bundle.json").write_text(manifest_for(folder).to_json())
    assert message in refused(folder)


def test_embedding_file_of_another_kind(folder: Path) -> None:
    (folder / "embed.npy").write_bytes(b"not numpy")
    (folder / "bundle.json").write_text(manifest_for(folder).to_json())
    assert refused(folder).startswith("embed.npy: not a NumPy array file")


def test_template_that_is_not_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    (folder / "bundle.json").write_text(manifest_for(folder).to_json())
    assert refused(folder) == "chat_template.jinja: expected UTF-8 text, byte 0 is not"


def test_opening_loads_no_heavy_library(folder: Path) -> None:
    code = (
        "import sys; from edgekv.bundle import Bundle; Bundle.open(sys.argv[1]).prompts();"
        "print([m for m in ('torch', 'transformers', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
