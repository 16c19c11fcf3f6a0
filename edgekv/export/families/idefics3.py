"""Idefics3 and SmolVLM(2): SigLIP tower, pixel-shuffle connector, Llama decoder.

Frames go through the processor's path without image splitting: one square picture, its tokens
between ``<fake_token_around_image><global-img>`` and ``<fake_token_around_image>``. A model whose
tokenizer does not know these marks has frames of image tokens alone.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from edgekv.bundle.manifest import VisionSettings
from edgekv.config import ImageSettings, Resample
from edgekv.errors import BundleError
from edgekv.export.families.parts import Parts, VisionPart
from edgekv.export.source import Source

RESAMPLE: dict[int, Resample] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


class _Vision(torch.nn.Module):
    """Tower and connector for pictures of the one size that frames have."""

    def __init__(self, model: Any, image: ImageSettings) -> None:
        super().__init__()
        self.tower = model.model.vision_model
        self.connector = model.model.connector
        self.register_buffer("positions", self._positions(image), persistent=False)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        patches = self.tower.embeddings.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        hidden = self.tower.encoder(inputs_embeds=patches + self.positions, attention_mask=None)
        states = self.tower.post_layernorm(hidden.last_hidden_state)
        features: torch.Tensor = self.connector(states)
        return features

    def _positions(self, image: ImageSettings) -> torch.Tensor:
        """(patches, hidden): the model looks them up by image shape, which is fixed here."""
        embeddings = self.tower.embeddings
        found: list[torch.Tensor] = []
        hook = embeddings.position_embedding.register_forward_hook(
            lambda *call: found.append(call[2])  # module, inputs, output
        )
        rows, columns = image.height // self.tower.patch_size, image.width // self.tower.patch_size
        with torch.no_grad():
            embeddings(
                pixel_values=torch.zeros(1, 3, image.height, image.width),
                patch_attention_mask=torch.ones(1, rows, columns, dtype=torch.bool),
            )
        hook.remove()
        return found[0][0].detach().clone()


def load(source: Source) -> Parts:
    """Tower and connector beside the whole model, which is fed embeddings and acts as decoder."""
    model = source.load_model(AutoModelForImageTextToText)
    image = _image_settings(source, model.config)
    vision = _Vision(model, image).eval()
    return Parts(
        family=source.model_type,
        model=model,
        text_config=model.config.text_config,
        vision=VisionPart(module=vision, settings=_settings(source, model.config, image)),
    )


def _settings(source: Source, config: Any, image: ImageSettings) -> VisionSettings:
    tokenizer = source.tokenizer
    mark, opening = "<fake_token_around_image>", "<global-img>"
    marked = mark in tokenizer.get_vocab()
    patch = config.vision_config.patch_size
    patches = (image.height // patch) * (image.width // patch)
    placeholder = tokenizer.convert_ids_to_tokens(config.image_token_id)
    if not isinstance(placeholder, str):
        raise BundleError(f"{source.folder}: image_token_id {config.image_token_id} has no token")
    return VisionSettings(
        tokens_per_image=patches // config.scale_factor**2,
        image_token_id=config.image_token_id,
        image_attention="causal",
        placeholder=placeholder,
        frame_prefix=mark + opening if marked else "",
        frame_suffix=mark if marked else "",
        image=image,
    )


def _image_settings(source: Source, config: Any) -> ImageSettings:
    found = source.read_json("preprocessor_config.json")
    if not found:
        found = source.read_json("processor_config.json").get("image_processor", {})
    if not found:
        raise BundleError(f"{source.folder}: preprocessor_config.json is missing")
    side = found.get("max_image_size", {}).get("longest_edge", config.vision_config.image_size)
    if side != config.vision_config.image_size:
        raise BundleError(
            f"{source.folder}: max_image_size {side} differs from the vision tower's "
            f"image_size {config.vision_config.image_size}"
        )
    return ImageSettings(
        height=side,
        width=side,
        longest_edge=found.get("size", {}).get("longest_edge"),
        resample=RESAMPLE.get(found.get("resample", 1), "bicubic"),
        rescale_factor=float(found.get("rescale_factor", 1 / 255)),
        mean=triple(found.get("image_mean", 0.5)),
        std=triple(found.get("image_std", 0.5)),
    )


def triple(value: Any) -> tuple[float, float, float]:
    red, green, blue = [value] * 3 if isinstance(value, int | float) else value
    return float(red), float(green), float(blue)
