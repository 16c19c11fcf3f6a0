"""Models with cross-attention, exported once for all tests of a worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import MllamaForConditionalGeneration, WhisperForConditionalGeneration

from edgekv.bundle import Bundle
from edgekv.export.build import ExportOptions, export_bundle
from tests.export.cross_models import save_mllama, save_whisper


def _export(root: Path, save: Callable[[Path], Any], auto_class: Any) -> tuple[Bundle, Any]:
    """The bundle, and the model that it was made of, with eager attention."""
    save(root / "hf")
    options = ExportOptions(weights="fp32", kv_dtype="float32")
    export_bundle(root / "hf", root / "bundle", options, [].append)
    model = auto_class.from_pretrained(root / "hf", attn_implementation="eager")
    return Bundle.open(root / "bundle"), model.eval()


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Any]:
    root = tmp_path_factory.mktemp("mllama")
    return _export(root, save_mllama, MllamaForConditionalGeneration)


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Any]:
    root = tmp_path_factory.mktemp("whisper")
    return _export(root, save_whisper, WhisperForConditionalGeneration)
