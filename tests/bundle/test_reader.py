"""A sound bundle opens and gives what it holds; a broken one is refused with one clear line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgekv.bundle import Bundle, Manifest
from edgekv.errors import BundleError
from tests.bundle.conftest import HIDDEN, TEMPLATE, VOCAB, manifest_for

FILES = (
    "decoder.onnx",
    "decoder.float32-kv.onnx",
    "decoder.onnx.data",
    "vision.onnx",
    "embed.npy",
    "tokenizer.json",
    "chat_template.jinja",
)


def refused(folder: Path) -> str:
    """What is said of the bundle in ``folder``, which is named first."""
    with pytest.raises(BundleError) as caught:
        Bundle.open(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{folder}: ")
    return message.removeprefix(f"{folder}: ")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "bundle.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


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


# -- broken manifests -----------------------------------------------------------------------------


def _set(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = to

    return change


def _drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        for key in keys[:-1]:
            value = value[key]
        del value[keys[-1]]

    return change


ENTRY = {"sha256": "0" * 64, "size_bytes": 0}
FAULTS = {
    "newer": (_set("format_version", to=3), "format version 3 is newer than the 2"),
    "older": (
        _set("format_version", to=1),
        "format version 1 is older than the 2 this edgekv reads",
    ),
    "version zero": (_set("format_version", to=0), "format_version must be a whole number from 1"),
    "version text": (_set("format_version", to="1"), "format_version must be a whole number"),
    "version true": (_set("format_version", to=True), "format_version must be a whole number"),
    "no version": (_drop("format_version"), "format_version must be a whole number"),
    "operator": (_set("operator_version", to=1), "operator_version 1 is not the 2"),
    "mass layer": (_set("mass_layer", to=2), "mass_layer must be null or 0 to 1, got 2"),
    "queries": (_set("queries", "layer", to=2), "queries.layer must be 0 to 1, got 2"),
    "cross": (_set("cross", to={}), "cross: key 'geometry' is missing"),
    "missing key": (_drop("hidden_size"), "key 'hidden_size' is missing"),
    "missing inner key": (_drop("geometry", "head_dim"), "geometry: key 'head_dim' is missing"),
    "unknown key": (_set("colour", to=1), "unknown key 'colour'"),
    "unknown inner key": (_set("vision", "image", "fit", to=1), "image: unknown key 'fit'"),
    "wrong type": (_set("hidden_size", to="8"), "hidden_size: expected a whole number, got a text"),
    "truth for number": (_set("opset", to=True), "opset: expected a whole number, got true or"),
    "number for truth": (_set("shiftable", to=1), "shiftable: expected true or false, got a whole"),
    "fraction": (_set("vocab_size", to=1.5), "vocab_size: expected a whole number, got a number"),
    "null": (_set("family", to=None), "family: expected a text, got null"),
    "list for object": (_set("geometry", to=[]), "geometry: expected an object, got a list"),
    "object for list": (_set("prompt", "eos_ids", to={}), "eos_ids: expected a list"),
    "text in list": (_set("prompt", "eos_ids", to=["a"]), "eos_ids[0]: expected a whole number"),
    "eos outside": (_set("prompt", "eos_ids", to=[VOCAB]), "eos_ids must lie below vocab_size"),
    "literal": (_set("weights", to="fp8"), "weights: expected one of fp32, fp16, int4, got 'fp8'"),
    "kv dtype": (_set("geometry", "dtype", to="fp8"), "dtype: expected one of float32"),
    "no decoder": (_set("decoders", to={"float32": "decoder.onnx"}), "none for the KV dtype float"),
    "odd decoder": (_set("decoders", "fp8", to="decoder.onnx"), "decoders: 'fp8' is not one of"),
    "pages of 0": (_set("geometry", "page_size", to=0), "page_size must be at least 1, got 0"),
    "mean of 2": (_set("vision", "image", "mean", to=[1, 2]), "mean: expected 3 values, got 2"),
    "no tokens": (_set("vision", "tokens_per_image", to=0), "tokens_per_image must be at least 1"),
    "top_p": (_set("generation", "top_p", to=0), "top_p must lie in (0, 1]"),
    "unlisted": (_drop("files", "tokenizer.json"), "tokenizer.json is missing from the list"),
    "unlisted vision": (_drop("files", "vision.onnx"), "vision.onnx is missing from the list"),
    "parent": (_set("files", "../secret", to=ENTRY), "'../secret' is not a plain file name"),
    "absolute": (_set("files", "/etc/passwd", to=ENTRY), "'/etc/passwd' is not a plain file name"),
    "sub-folder": (_set("files", "a/b", to=ENTRY), "'a/b' is not a plain file name"),
    "dots": (_set("files", "..", to=ENTRY), "'..' is not a plain file name"),
    "backslash": (_set("files", "..\\b", to=ENTRY), "is not a plain file name"),
    "empty name": (_set("files", "", to=ENTRY), "'' is not a plain file name"),
    "line end": (_set("files", "a\n", to=ENTRY), "is not a plain file name"),
    "itself": (_set("files", "bundle.json", to=ENTRY), "'bundle.json' is not a plain file name"),
    "decoder path": (_set("decoders", "float16", to="../x"), "../x is missing from the list"),
    "infinite": (_set("vision", "image", "rescale_factor", to=10**400), "expected a number below"),
    "short hash": (_set("files", "embed.npy", "sha256", to="00"), "64 lower-case hexadecimal"),
    "negative size": (_set("files", "embed.npy", "size_bytes", to=-1), "must not be negative"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_broken_manifest(folder: Path, fault: str) -> None:
    change, message = FAULTS[fault]
    edit(folder, change)
    got = refused(folder)
    assert got.startswith("bundle.json: ")
    assert message in got


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "expected an object, got a list"),
        ("null", "expected an object, got null"),
        ('{"format_version": 1e999}', "format_version must be a whole"),
        ('{"format_version": 1, "format_version": 1}', "key 'format_version' given twice"),
        ('{"format_version": NaN}', "NaN is not a number"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_text_that_is_no_manifest(folder: Path, text: str, message: str) -> None:
    (folder / "bundle.json").write_text(text)
    assert message in refused(folder)


def test_a_number_that_json_makes_infinite(folder: Path) -> None:
    path = folder / "bundle.json"
    path.write_text(
        re.sub(r'"rescale_factor": [\d.e-]+', '"rescale_factor": 1e999', path.read_text())
    )
    assert "rescale_factor: expected a number below" in refused(folder)


def test_huge_manifest(folder: Path) -> None:
    (folder / "bundle.json").write_text(" " * (1 << 20) + "{}")
    assert "larger than" in refused(folder)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_cut_of_the_manifest_is_refused(folder: Path, data: st.DataObject) -> None:
    path = folder / "bundle.json"
    whole = manifest_for(folder).to_json()
    length = data.draw(st.integers(0, len(whole) - 3))  # the last two are "}" and a line end
    path.write_text(whole[:length])
    assert refused(folder)


def test_opening_loads_no_heavy_library(folder: Path) -> None:
    code = (
        "import sys; from edgekv.bundle import Bundle; Bundle.open(sys.argv[1]).prompts();"
        "print([m for m in ('torch', 'transformers', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
