"""Tiny vision-language models as Hugging Face folders, tokenizer and template included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

from tests.export.models import hash_of, loud

SPECIAL = (
    "<|pad|>",
    "<|im_start|>",
    "<end_of_utterance>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
)
IMAGE_SIZE = 32
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def make_tokenizer(*, marked: bool) -> transformers.PreTrainedTokenizerFast:
    """Bytes, the special tokens and a few merges; ``marked`` = with the marks around frames."""
    special = SPECIAL if marked else SPECIAL[:4]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("t", "he"), ("Ġ", "the"), ("Ċ", "Ċ"), (":", "Ġ")]
    tokens = [*special, *letters, *("".join(pair) for pair in merges)]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",  # noqa: S106
        eos_token="<end_of_utterance>",  # noqa: S106
        pad_token="<|pad|>",  # noqa: S106
        additional_special_tokens=list(special[3:]),
    )
    fast.chat_template = TEMPLATE
    return fast


def save_vlm(kind: str, folder: Path, *, marked: bool = True) -> Any:
    """A random ``SmolVLM`` or ``Idefics3`` in ``folder``; returns the model."""
    torch.manual_seed(hash_of(kind))
    tokenizer = make_tokenizer(marked=marked)
    config = getattr(transformers, f"{kind}Config")(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
        scale_factor=2,
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": IMAGE_SIZE,
            "patch_size": 8,
            "hidden_act": "gelu_pytorch_tanh",
        },
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    loud(model).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {
        "do_image_splitting": False,
        "size": {"longest_edge": 2 * IMAGE_SIZE},
        "max_image_size": {"longest_edge": IMAGE_SIZE},
        "resample": 1,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model
