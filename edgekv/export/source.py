"""A Hugging Face folder (or a GGUF file) as loaded: configuration, tokenizer, weights.

Owns: every call that reads the source. Nothing is ever downloaded.
Guarantees: what cannot be read raises ``BundleError`` with one line that names the folder and the
reason; weights are fp32 in memory.
Does not know: model families, or what is exported.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from edgekv.errors import BundleError


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and what is needed to choose its family."""

    folder: Path
    gguf_file: str | None
    config: Any  # PreTrainedConfig
    tokenizer: PreTrainedTokenizerFast

    @property
    def model_type(self) -> str:
        """The name under which ``transformers`` knows the architecture."""
        return str(self.config.model_type)

    def load_model(self, auto_class: Any) -> Any:
        """The model in fp32, in evaluation mode, from one of the ``AutoModel…`` classes."""
        with _one_line(self.folder, "weights cannot be loaded"):
            model = auto_class.from_pretrained(
                self.folder, dtype=torch.float32, **_options(self.gguf_file)
            )
        return model.eval()

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty when there is none."""
        path = self.folder / name
        if not path.is_file():
            return {}
        with _one_line(self.folder, f"{name} cannot be read"):
            value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}


def open_source(path: Path) -> Source:
    """Read configuration and tokenizer of a Hugging Face folder or GGUF file. BundleError."""
    if path.suffix == ".gguf" and path.is_file():
        folder, gguf_file = path.parent, path.name
    elif path.is_dir():
        folder, gguf_file = path, None
        if not (path / "config.json").is_file():
            raise BundleError(f"{path}: not a Hugging Face model folder, config.json is missing")
    else:
        raise BundleError(f"{path}: expected a Hugging Face model folder or a .gguf file")
    options = _options(gguf_file)
    with _one_line(folder, "config.json cannot be used"):
        config = AutoConfig.from_pretrained(folder, **options)
    with _one_line(folder, "the tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise BundleError(f"{folder}: the tokenizer has no fast form, tokenizer.json is needed")
    return Source(folder=folder, gguf_file=gguf_file, config=config, tokenizer=tokenizer)


def _options(gguf_file: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"local_files_only": True}
    return options if gguf_file is None else {**options, "gguf_file": gguf_file}


class _one_line:  # noqa: N801 - reads as a statement: ``with _one_line(...)``
    """Turn whatever the library raises into one line about the folder."""

    def __init__(self, folder: Path, what: str) -> None:
        self._where = f"{folder}: {what}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, BundleError):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise BundleError(f"{self._where} ({lines[0][:300]})") from error
