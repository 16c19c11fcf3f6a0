"""Tiny models, each exported once for all tests of a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import MllamaForConditionalGeneration, WhisperForConditionalGeneration

from edgekv.bundle import Bundle
from edgekv.export.build import (
    ExportOptions,
    TracedDecoder,
    export_bundle,
    save_decoders,
    trace_decoder,
)
from tests.export.cross_models import save_mllama, save_whisper
from tests.export.models import HIDDEN, TEXT_MODELS


@dataclass(frozen=True)
class Exported:
    """A decoder as it was traced, and the folder that it was saved to."""

    traced: TracedDecoder
    folder: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """The decoder of one of ``TEXT_MODELS`` in fp32; tests read it and change nothing."""

    @cache
    def export(name: str) -> Exported:
        options = ExportOptions(weights="fp32", kv_dtype="float32")
        traced = trace_decoder(TEXT_MODELS[name](), HIDDEN, options)
        folder = tmp_path_factory.mktemp(name)
        save_decoders(folder, traced, "fp32")
        return Exported(traced, folder)

    return export


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
