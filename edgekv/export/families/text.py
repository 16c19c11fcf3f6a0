"""Text decoders: any causal language model of ``transformers`` with the attention interface."""

from __future__ import annotations

from transformers import AutoModelForCausalLM

from edgekv.export.families.parts import Parts
from edgekv.export.source import Source


def load(source: Source) -> Parts:
    """The whole model is the decoder."""
    model = source.load_model(AutoModelForCausalLM)
    return Parts(family="text", model=model, text_config=model.config, vision=None)
