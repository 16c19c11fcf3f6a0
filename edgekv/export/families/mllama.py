"""Llama 3.2 Vision: a tiled vision tower that gated cross-attention layers of the decoder look at.

A picture is one token in the prompt. Tokens before the first picture see none of it: their
cross-attention layers add nothing. Tiles that a picture does not fill are computed all the same,
because the tower's own attention does not leave them out.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from edgekv import names
from edgekv.config import TileSettings
from edgekv.errors import BundleError
from edgekv.export.attention import STATE
from edgekv.export.families.idefics3 import RESAMPLE, triple
from edgekv.export.families.parts import CrossPart, Parts
from edgekv.export.source import Source


class _Encoder(torch.nn.Module):
    """Tiles of one picture -> the states of all its patches, projected for the decoder."""

    num_tiles: torch.Tensor  # (arrangements + 1,) by the model's id; id 0 is no picture

    def __init__(self, model: Any, tiles: TileSettings) -> None:
        super().__init__()
        self.tower = model.model.vision_model
        self.projector = model.model.multi_modal_projector
        counts = [rows * columns for rows, columns in tiles.arrangements]
        self.register_buffer("num_tiles", torch.tensor([1, *counts]), persistent=False)

    def forward(self, pixel_values: torch.Tensor, aspect_ratio_ids: torch.Tensor) -> torch.Tensor:
        filled = torch.arange(pixel_values.shape[0]) < self.num_tiles[aspect_ratio_ids]
        states = self.tower(
            pixel_values=pixel_values[None, None],
            aspect_ratio_ids=aspect_ratio_ids[None],
            aspect_ratio_mask=filled[None, None].long(),
        ).last_hidden_state
        projected: torch.Tensor = self.projector(states)
        return projected.reshape(-1, projected.shape[-1])


class _Decoder(torch.nn.Module):
    """The language model with its head, told which tokens see a picture."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.language_model = model.model.language_model
        self.head = model.lm_head
        # Keys and values come from pages, but a layer that is given no states is left out.
        states = torch.zeros(1, 1, model.config.text_config.hidden_size)
        self.register_buffer("states", states, persistent=False)
        # Rows such as that of <|image|> can be read and not said.
        self.num_unsaid = len(self.language_model.embed_tokens.weight) - len(self.head.weight)

    def forward(
        self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor,
        logits_to_keep: torch.Tensor | None = None, **kwargs: Any,
    ) -> SimpleNamespace:  # fmt: skip
        hidden = self.language_model(
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            cross_attention_states=self.states,
            full_text_row_masked_out_mask=kwargs[STATE].sees_source[None, None, :, None],
            **kwargs,
        ).last_hidden_state
        if logits_to_keep is not None:
            hidden = hidden[:, logits_to_keep]
        logits = self.head(hidden)
        never = logits.new_full((1, logits.shape[1], self.num_unsaid), -torch.inf)
        return SimpleNamespace(logits=torch.cat([logits, never], dim=-1))


def load(source: Source) -> Parts:
    """The model as it is, its decoder called so that cross-attention always runs."""
    model = source.load_model(AutoModelForImageTextToText)
    config = model.config
    tiles = _tile_settings(source, config.vision_config)
    placeholder = source.tokenizer.convert_ids_to_tokens(config.image_token_index)
    if not isinstance(placeholder, str):
        raise BundleError(f"{source.folder}: image token {config.image_token_index} has no text")
    layers = model.model.language_model.layers
    side = tiles.tile_size
    return Parts(
        family="mllama",
        model=model,
        text_config=config.text_config,
        vision=None,
        cross=CrossPart(
            encoder=_Encoder(model, tiles).eval(),
            encoder_inputs={
                names.PIXEL_VALUES: torch.zeros(tiles.max_tiles, 3, side, side),
                names.ASPECT_RATIO_IDS: torch.ones(1, dtype=torch.int64),
            },
            layers=[
                layers[i].cross_attn for i in sorted(config.text_config.cross_attention_layers)
            ],
            states_name="cross_attention_states",
            states_per_part=model.model.vision_model.num_patches,
            placeholder=placeholder,
            tiles=tiles,
        ),
        decoder=_Decoder(model).eval(),
    )


def _tile_settings(source: Source, config: Any) -> TileSettings:
    found = source.read_json("preprocessor_config.json")
    if not found:
        found = source.read_json("processor_config.json").get("image_processor", {})
    if not found:
        raise BundleError(f"{source.folder}: preprocessor_config.json is missing")
    for name, theirs, ours in (
        ("size", found.get("size", {}).get("height"), config.image_size),
        ("max_image_tiles", found.get("max_image_tiles"), config.max_num_tiles),
    ):
        if theirs != ours:
            raise BundleError(
                f"{source.folder}: {name} {theirs} of the image processor differs from the vision "
                f"tower's {ours}"
            )
    return TileSettings(
        tile_size=config.image_size,
        max_tiles=config.max_num_tiles,
        resample=RESAMPLE.get(found.get("resample", 2), "bilinear"),
        rescale_factor=float(found.get("rescale_factor", 1 / 255)),
        mean=triple(found.get("image_mean", 0.5)),
        std=triple(found.get("image_std", 0.5)),
    )
