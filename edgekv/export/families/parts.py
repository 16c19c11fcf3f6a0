"""What every family hands to the exporter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from edgekv.bundle.manifest import VisionSettings


@dataclass(frozen=True)
class VisionPart:
    """Vision tower and connector as one module, and how frames enter it and the prompt."""

    module: torch.nn.Module  # (n, 3, height, width) -> (n, tokens_per_image, hidden)
    settings: VisionSettings


@dataclass(frozen=True)
class Parts:
    """A loaded model, taken apart."""

    family: str
    model: Any  # forward(inputs_embeds, position_ids, logits_to_keep, …) -> .logits
    text_config: Any  # PreTrainedConfig of the decoder
    vision: VisionPart | None
