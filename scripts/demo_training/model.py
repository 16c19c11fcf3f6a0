"""The demo model: its configuration, the heads that only training needs, and the packed forward.

Owns the architecture. Guarantees that the weights are those of an ordinary
``transformers.SmolVLMForConditionalGeneration``; the packed forward runs the same modules on the
same tokens, only many questions at once. Does not know where the data comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from demo_training.tokenizer import END, IMAGE, PAD, START

IMAGE_SIZE: Final = 64
PATCH_SIZE: Final = 8
TOKENS_PER_FRAME: Final = 16
HEAD_DIM: Final = 32
DENSE_LAYER: Final = 2  # the dense loss reads the hidden states after this decoder layer

NUM_POSITION_BINS: Final = 20  # of 4 px, for -8..72
PATCH_CLASSES: Final = (7, 4, NUM_POSITION_BINS, NUM_POSITION_BINS)  # colour, shape, x, y
CELL_CLASSES: Final = (7, 4, 6)  # colour, shape, movement


def build_config(tokenizer: PreTrainedTokenizerFast, max_positions: int) -> SmolVLMConfig:
    """About 2.4 million parameters."""
    token = tokenizer.convert_tokens_to_ids
    return SmolVLMConfig(
        image_token_id=token(IMAGE),
        pad_token_id=token(PAD),
        scale_factor=2,
        tie_word_embeddings=False,
        vision_config={
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH_SIZE,
            "hidden_act": "gelu_pytorch_tanh",
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 192,
            "intermediate_size": 448,
            "num_hidden_layers": 5,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": max_positions,
            "rope_parameters": {"rope_type": "default", "rope_theta": 2000.0},
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "bos_token_id": token(START),
            "eos_token_id": token(END),
            "pad_token_id": token(PAD),
        },
    )


def build_model(config: SmolVLMConfig) -> SmolVLMForConditionalGeneration:
    """Random weights, with embeddings as loud as the image tokens."""
    model = SmolVLMForConditionalGeneration(config)
    nn.init.normal_(model.model.text_model.embed_tokens.weight, std=0.5)
    vision = model.model.vision_model
    nn.init.normal_(vision.embeddings.position_embedding.weight, std=0.3)
    return model


@dataclass(frozen=True)
class Outputs:
    """Of one packed batch: b sequences of t tokens, f frames in all."""

    logits: Tensor  # (num_answer_tokens, vocab)
    patches: Tensor  # (f, 64, sum(PATCH_CLASSES))
    cells: Tensor  # (b, num_frames * 16, sum(CELL_CLASSES))


class Trainee(nn.Module):
    """The model with two temporary linear heads, whose losses show it where to look."""

    def __init__(self, model: SmolVLMForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        self.patch_head = nn.Linear(model.config.vision_config.hidden_size, sum(PATCH_CLASSES))
        self.cell_head = nn.Linear(model.config.text_config.hidden_size, sum(CELL_CLASSES))

    def encode(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Frames (f, 3, 64, 64) -> hidden patches (f, 64, vision), image tokens (f, 16, text).

        The same as ``get_image_features`` on whole images, without its loop over images.
        """
        vision = self.model.model.vision_model
        patches = vision.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
        hidden = patches + vision.embeddings.position_embedding.weight
        for layer in vision.encoder.layers:
            hidden = layer(hidden, attention_mask=None)
        hidden = vision.post_layernorm(hidden)
        return hidden, self.model.model.connector(hidden)

    def forward(
        self,
        pixels: Tensor,  # (b * num_frames, 3, 64, 64)
        tokens: Tensor,  # (b, t) int64, image tokens included
        positions: Tensor,  # (b, t) int64
        mask: Tensor,  # (b, 1, t, t) bool, True = may be seen
        num_start: int,  # tokens before the first image token
        predictors: Tensor,  # (num_answer_tokens,) int64, flat indices of the tokens that predict
        train_vision: bool = True,
    ) -> Outputs:
        with torch.set_grad_enabled(train_vision and torch.is_grad_enabled()):
            hidden, images = self.encode(pixels)
        batch = tokens.shape[0]
        images = images.reshape(batch, -1, images.shape[-1])
        num_prefix = num_start + images.shape[1]
        text = self.model.model.text_model
        embedded = text.embed_tokens(tokens).to(images.dtype)
        x = torch.cat([embedded[:, :num_start], images, embedded[:, num_prefix:]], dim=1)
        rotation = text.rotary_emb(x, positions)
        bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill_(~mask, -1e4)
        cells = x
        for index, layer in enumerate(text.layers):
            x = layer(x, attention_mask=bias, position_embeddings=rotation)
            if index == DENSE_LAYER:
                cells = x[:, num_start:num_prefix]
        picked = x.reshape(-1, x.shape[-1])[predictors]
        logits = self.model.lm_head(text.norm(picked))
        return Outputs(logits, self.patch_head(hidden), self.cell_head(cells))
