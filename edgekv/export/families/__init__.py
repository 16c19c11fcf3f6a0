"""Model families: one small module each says where a model keeps what a bundle needs.

A family module has ``load(source) -> Parts``. To add one: write the module, add a line to
``_MODULES``, add a tiny random model to the parity tests.
"""

from __future__ import annotations

import importlib
from typing import cast

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from edgekv.errors import BundleError
from edgekv.export.families.parts import CrossPart, Parts, VisionPart
from edgekv.export.source import Source

__all__ = ["CrossPart", "Parts", "VisionPart", "load_parts"]

_MODULES = {  # model type of transformers -> module in this package
    "smolvlm": "idefics3",
    "idefics3": "idefics3",
    "mllama": "mllama",
    "whisper": "whisper",
}


def load_parts(source: Source) -> Parts:
    """Load the model and name its parts. Raises BundleError for a type no family covers."""
    name = _MODULES.get(source.model_type)
    if name is None:
        if source.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise BundleError(
                f"model type {source.model_type!r} is not supported; supported are "
                f"{', '.join(sorted(_MODULES))} and text decoders"
            )
        name = "text"
    return cast(Parts, importlib.import_module(f"{__name__}.{name}").load(source))
