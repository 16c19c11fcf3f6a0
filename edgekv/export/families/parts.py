"""What every family hands to the exporter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from edgekv.bundle.manifest import FrameText, VisionSettings
from edgekv.config import AudioSettings, TileSettings


@dataclass(frozen=True)
class VisionPart:
    """Vision tower and connector as one module, and how frames enter it and the prompt."""

    module: torch.nn.Module  # (n, 3, height, width) -> (n, tokens_per_image, hidden)
    settings: VisionSettings


@dataclass(frozen=True)
class CrossPart:
    """What a model with cross-attention looks at, and the layers that look.

    ``encoder`` takes ``encoder_inputs`` by name and gives states (L, hidden). Each of ``layers``
    is a cross-attention module that takes the states under the keyword ``states_name``.
    """

    encoder: torch.nn.Module
    encoder_inputs: dict[str, torch.Tensor]  # examples, of the one shape each has
    layers: Sequence[torch.nn.Module]  # in the order of the decoder
    states_name: str
    states_per_part: int
    placeholder: str = ""
    default_question: str = ""
    tiles: TileSettings | None = None
    audio: AudioSettings | None = None


@dataclass(frozen=True)
class Parts:
    """A loaded model, taken apart."""

    family: str
    model: Any  # with configuration, embeddings and head; unless ``decoder`` is given, as that
    text_config: Any  # PreTrainedConfig of the decoder
    vision: VisionPart | None
    cross: CrossPart | None = None
    decoder: Any = None  # forward(inputs_embeds, position_ids, logits_to_keep, …) -> .logits
    chat_template: str | None = None  # None = the model's own

    @property
    def frame_text(self) -> FrameText | None:
        """How a frame stands in the prompt; None when it leaves no token there."""
        if self.vision is not None:
            return self.vision.settings.frame_text
        if self.cross is not None and self.cross.placeholder:
            return FrameText(self.cross.placeholder, self.cross.placeholder, "", 0)
        return None
