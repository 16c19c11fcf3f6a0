"""Bundles: the folder a user ships, read and written without torch, onnx or an executor."""

from edgekv.bundle.manifest import (
    FORMAT_VERSION,
    CrossSettings,
    FileEntry,
    GenerationDefaults,
    Manifest,
    PromptSettings,
    QueryOutput,
    VisionSettings,
)
from edgekv.bundle.prompts import Prompts
from edgekv.bundle.reader import Bundle

__all__ = [
    "FORMAT_VERSION",
    "Bundle",
    "CrossSettings",
    "FileEntry",
    "GenerationDefaults",
    "Manifest",
    "PromptSettings",
    "Prompts",
    "QueryOutput",
    "VisionSettings",
]
