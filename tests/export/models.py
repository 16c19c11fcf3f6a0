"""Tiny models with random weights, one for each thing a decoder may do differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

VOCAB, HIDDEN = 96, 64
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _model(kind: str, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        torch.manual_seed(hash_of(kind))
        config = getattr(transformers, f"{kind}Config")(**{**_COMMON, **options})
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        return loud(model).eval()

    return build


def hash_of(text: str) -> int:
    """A seed that does not change between runs."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(text)) % 2**31


def loud(model: Any) -> Any:
    """Weights large enough that attention looks at some tokens more than at others."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.15)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _vlm(kind: str, sections: list[int], **vision: Any) -> Callable[[], Any]:
    """A model with M-RoPE: its decoder is run on embeddings, its vision tower is never."""

    def build() -> Any:
        torch.manual_seed(hash_of(kind))
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
        config = getattr(transformers, f"{kind}Config")(
            text_config={**_COMMON, "rope_parameters": rope, "head_dim": HIDDEN // 4},
            vision_config={"depth": 1, "num_heads": 2, **vision},
        )
        model_class = getattr(transformers, f"{kind}ForConditionalGeneration")
        return loud(model_class._from_config(config, attn_implementation="eager")).eval()

    return build


_GEMMA_LAYERS = ["sliding_attention", "full_attention"]

TEXT_MODELS: dict[str, Callable[[], Any]] = {
    "llama": _model("Llama"),
    "llama3-rope": _model("Llama", rope_parameters=_LLAMA3_ROPE),
    "yarn": _model("Llama", rope_parameters=_YARN_ROPE),
    "mistral-window": _model("Mistral", sliding_window=6, head_dim=16),
    "qwen2": _model("Qwen2"),
    "qwen3": _model("Qwen3", head_dim=32),
    "gemma2": _model("Gemma2", head_dim=16, sliding_window=6, layer_types=_GEMMA_LAYERS),
    "gemma3": _model("Gemma3Text", head_dim=32, sliding_window=6, layer_types=_GEMMA_LAYERS),
    "phi3-partial": _model("Phi3", rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    }),
    "smollm3-no-rope": _model("SmolLM3", no_rope_layers=[1, 0]),
    "olmo2": _model("Olmo2"),
    "granite": _model("Granite", embedding_multiplier=3.0, logits_scaling=2.0,
                      attention_multiplier=0.2, residual_multiplier=0.5),
    "gpt-oss-sinks": _model("GptOss", head_dim=16, sliding_window=6, num_local_experts=2,
                            num_experts_per_tok=1, layer_types=_GEMMA_LAYERS),
    "glm-interleaved": _model("Glm", head_dim=16, partial_rotary_factor=0.5),
    "qwen2-vl-mrope": _vlm("Qwen2VL", [2, 3, 3], embed_dim=32, hidden_size=HIDDEN),
    "qwen3-vl-mrope-woven": _vlm("Qwen3VL", [4, 2, 2], hidden_size=32, out_hidden_size=HIDDEN,
                                 deepstack_visual_indexes=[0]),
    "gpt2-learned-positions": _model("GPT2", n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=512),
}  # fmt: skip
