"""A manifest with anything wrong in it is refused with one line that says what."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bundle.conftest import VOCAB, manifest_for
from tests.bundle.refusals import edit, refused


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
