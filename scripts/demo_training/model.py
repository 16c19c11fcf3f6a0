"""The demo model: its configuration, the heads that only training needs, and the packed forward.

Owns the architecture. Guarantees that the weights are those of an ordinary
``transformers.SmolVLMForConditionalGeneration``; the packed forward runs the same modules on the
same tokens, only many questions at once. Does not know where the data comes from.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.smolvlm import SmolVLMConfig, SmolVLMForConditionalGeneration

from demo_training.tokenizer import END, IMAGE, PAD, START

IMAGE_SIZE: Final = 64
PATCH_SIZE: Final = 8
TOKENS_PER_FRAME: Final = 16
HEAD_DIM: Final = 32
DENSE_LAYER: Final = 2  # the dense loss reads the hidden states after this decoder layer

NUM_POSITION_BINS: Final = 20  # of 4 px, for -8..72
PATCH_CLASSES: Final = (7, 4, NUM_POSITION_BINS, NUM_POSITION_BINS)  # colour, shape, x, y
CELL_CLASSES: Final = (7, 4, 6, 18)  # colour, shape, movement, colour and shape as one


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


@dataclass(frozen=True)
class Block:
    """Some rows of a mask with all the columns that any of them sees."""

    rows: slice
    columns: list[slice]
    bias: Tensor  # (b, 1, num_rows, num_columns), 0 or a large negative number


def split_mask(mask: Tensor, dtype: torch.dtype, num_rows: int = 128) -> list[Block]:
    """Cut a (b, 1, t, t) bool mask into blocks, leaving out columns that nothing sees."""
    length = mask.shape[-1]
    seen = mask.any(0)[0]  # (t, t)
    blocks = []
    for first in range(0, length, num_rows):
        rows = slice(first, min(first + num_rows, length))
        columns = _runs(seen[rows].any(0))
        part = torch.cat([mask[:, :, rows, c] for c in columns], -1)
        bias = torch.zeros(part.shape, dtype=dtype).masked_fill_(~part, -1e4)
        blocks.append(Block(rows, columns, bias))
    return blocks


def _runs(used: Tensor, gap: int = 32) -> list[slice]:
    """Runs of True in (t,) bool; runs less than ``gap`` apart become one."""
    runs: list[slice] = []
    for at in used.nonzero().flatten().tolist():
        if runs and at - runs[-1].stop < gap:
            runs[-1] = slice(runs[-1].start, at + 1)
        else:
            runs.append(slice(at, at + 1))
    return runs


def block_attention(
    module: nn.Module,
    query: Tensor,  # (b, H, t, D)
    key: Tensor,  # (b, Hk, t, D)
    value: Tensor,  # (b, Hk, t, D)
    attention_mask: Tensor | None,
    scaling: float,
    blocks: list[Block] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention block by block, (b, t, H, D); without blocks everything sees everything."""
    if blocks is None:
        assert not module.is_causal, "a decoder layer needs its blocks"
        return _attend(query, key, value, None, scaling).transpose(1, 2), None
    parts = []
    for block in blocks:
        keys = torch.cat([key[:, :, c] for c in block.columns], 2)
        values = torch.cat([value[:, :, c] for c in block.columns], 2)
        parts.append(_attend(query[:, :, block.rows], keys, values, block.bias, scaling))
    return torch.cat(parts, 2).transpose(1, 2), None


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scaling: float) -> Tensor:
    """(b, H, t, D); in bfloat16 the plain way is faster to train on a CPU than the fused one."""
    batch, heads, length, dim = q.shape
    groups = heads // k.shape[1]
    if q.dtype != torch.bfloat16:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scaling)
    scores = (q * scaling).reshape(batch, -1, groups * length, dim) @ k.mT
    if bias is not None:
        scores = (scores.unflatten(2, (groups, length)) + bias[:, :, None]).flatten(2, 3)
    return (torch.softmax(scores, -1) @ v).reshape(batch, heads, length, dim)


ALL_ATTENTION_FUNCTIONS.register("demo_blocks", block_attention)


class Trainee(nn.Module):
    """The model with two temporary linear heads, whose losses show it where to look.

    It switches the attention of the model it is given; a saved copy has the ordinary one.
    """

    def __init__(self, model: SmolVLMForConditionalGeneration) -> None:
        super().__init__()
        self.model = model
        model.set_attn_implementation("demo_blocks")
        self.patch_head = nn.Linear(model.config.vision_config.hidden_size, sum(PATCH_CLASSES))
        self.cell_head = nn.Linear(model.config.text_config.hidden_size, sum(CELL_CLASSES))

    def encode(self, pixels: Tensor, *, train_vision: bool = True) -> tuple[Tensor, Tensor]:
        """Frames (f, 3, 64, 64) -> hidden patches (f, 64, vision), image tokens (f, 16, text).

        The same as ``get_image_features`` on whole images, without its loop over images.
        """
        vision = self.model.model.vision_model
        with torch.set_grad_enabled(train_vision and torch.is_grad_enabled()):
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
        hidden, images = self.encode(pixels, train_vision=train_vision)
        batch = tokens.shape[0]
        images = images.reshape(batch, -1, images.shape[-1])
        num_prefix = num_start + images.shape[1]
        text = self.model.model.text_model
        embedded = text.embed_tokens(tokens).to(images.dtype)
        x = torch.cat([embedded[:, :num_start], images, embedded[:, num_prefix:]], dim=1)
        rotation = text.rotary_emb(x, positions)
        blocks = split_mask(mask, x.dtype)
        cells = x
        for index, layer in enumerate(text.layers):
            x = layer(x, attention_mask=None, position_embeddings=rotation, blocks=blocks)
            if index == DENSE_LAYER:
                cells = x[:, num_start:num_prefix]
        picked = x.reshape(-1, x.shape[-1])[predictors]
        logits = self.model.lm_head(text.norm(picked))
        return Outputs(logits, self.patch_head(hidden), self.cell_head(cells))

    def bfloat16_copy(self) -> Trainee:
        """A copy to compute with; positions are still rotated by exact frequencies."""
        twin = copy.deepcopy(self).bfloat16()
        twin.model.model.text_model.rotary_emb = self.model.model.text_model.rotary_emb
        return twin
