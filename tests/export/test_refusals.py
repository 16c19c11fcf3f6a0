"""What cannot be exported is refused with one line, and nothing is left behind."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner

from edgekv.errors import BundleError
from edgekv.export.build import ExportOptions, export_bundle, trace_decoder
from edgekv.export.probe import probe_attention
from tests.export.models import HIDDEN, TEXT_MODELS
from tests.export.vlm import make_tokenizer, save_vlm

SCRIPT = Path(__file__).parents[2] / "scripts" / "export.py"


def refused(source: Path, target: Path, **options: Any) -> str:
    with pytest.raises(BundleError) as caught:
        export_bundle(source, target, ExportOptions(**options), print)
    assert not target.exists()
    message = str(caught.value)
    assert "\n" not in message
    return message


def config_folder(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    make_tokenizer(marked=True).save_pretrained(folder)
    return folder


def test_no_folder(tmp_path: Path) -> None:
    message = refused(tmp_path / "none", tmp_path / "out")
    assert "expected a Hugging Face model folder or a .gguf file" in message


def test_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    assert "config.json is missing" in refused(tmp_path / "hf", tmp_path / "out")


def test_broken_config(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "hf", {"model_type": "llama"})
    (folder / "config.json").write_text("{")
    assert "config.json cannot be used" in refused(folder, tmp_path / "out")


def test_unknown_model_type(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "hf", {"model_type": "perpetuum"})
    assert "config.json cannot be used" in refused(folder, tmp_path / "out")


def test_unsupported_model_type(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "hf", {"model_type": "clip"})
    message = refused(folder, tmp_path / "out")
    assert (
        "model type 'clip' is not supported; supported are idefics3, mllama, smolvlm, whisper"
        in message
    )


def test_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "the tokenizer cannot be loaded" in refused(tmp_path / "hf", tmp_path / "out")


def test_no_weights(tmp_path: Path) -> None:
    folder = config_folder(tmp_path / "hf", {"model_type": "llama"})
    assert "weights cannot be loaded" in refused(folder, tmp_path / "out")


def test_broken_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "config.json cannot be used" in refused(tmp_path / "model.gguf", tmp_path / "out")


def test_no_image_settings(tmp_path: Path) -> None:
    save_vlm("SmolVLM", tmp_path / "hf")
    (tmp_path / "hf" / "preprocessor_config.json").unlink()
    message = refused(tmp_path / "hf", tmp_path / "out")
    assert message.endswith("preprocessor_config.json is missing")


def test_target_that_is_not_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    with pytest.raises(BundleError, match="left alone"):
        export_bundle(tmp_path / "none", tmp_path / "out", ExportOptions(replace=True), print)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_size": 0}, "page size must be at least 1, got 0"),
        ({"opset": 19}, "opset must be 20 to 23, got 19"),
        ({"opset": 20, "weights": "int4"}, "int4 weights need opset 21"),
        ({"max_context": 0}, "max context must be at least 1, got 0"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExportOptions(**options)


def test_model_without_the_attention_interface() -> None:
    config = transformers.BloomConfig(
        vocab_size=32, hidden_size=HIDDEN, n_layer=1, n_head=4, pad_token_id=0
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(BundleError) as caught:
        trace_decoder(model, HIDDEN, ExportOptions())
    assert "\n" not in str(caught.value)


def test_rotation_that_no_table_explains_is_reported() -> None:
    """Frequencies the model computes with but does not own cannot be promised to shift."""
    model = TEXT_MODELS["llama"]()
    model.set_attn_implementation("edgekv")
    assert probe_attention(model, HIDDEN).shiftable
    rotary = model.model.rotary_emb
    forward = rotary.forward
    rotary.forward = lambda x, position_ids: forward(x, position_ids * 2)
    found = probe_attention(model, HIDDEN)
    assert not found.shiftable
    assert all(rotation.inv_freq == () for rotation in found.rotations)
    assert found.num_rope_axes == 0


def test_length_dependent_frequencies_are_those_of_a_short_context() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 64,
        "factor": 8.0,
    }
    config = transformers.Phi3Config(
        vocab_size=32,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=512,
        rope_parameters=rope,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    traced = trace_decoder(model, HIDDEN, ExportOptions())
    assert traced.probe.shiftable
    assert len(traced.probe.rotations[0].inv_freq) == 8


def test_script_says_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "none"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("·")]
    assert line.startswith("Error: ")


@pytest.mark.parametrize("wrong", [("--weights", "fp7"), ("--opset", "19")])
def test_wrong_usage_of_the_script(wrong: tuple[str, str]) -> None:
    main = runpy.run_path(str(SCRIPT))["main"]
    own = dict.fromkeys(("TQDM_DISABLE", "TRANSFORMERS_VERBOSITY", "HF_HUB_OFFLINE"))
    assert CliRunner(env=own).invoke(main, ["a", "b", *wrong]).exit_code == 2
