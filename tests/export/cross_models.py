"""Tiny models with cross-attention as Hugging Face folders: Llama 3.2 Vision and Whisper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models

from tests.export.models import hash_of, loud

TILE, MAX_TILES = 28, 4
SUPPRESSED = (88, 209)  # what the tiny Whisper would say most
CHUNK_S = 1  # seconds of sound that the tiny Whisper takes
LLAMA_SPECIAL = ("<|pad|>", "<|begin_of_text|>", "<|eot_id|>", "<|header|>")
WHISPER_SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|notimestamps|>",
)
# As the model's own: a system message cannot stand beside a picture.
LLAMA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% for message in messages %}"
    "{% if message['content'] is not string %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ raise_exception('no system message with images') }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}{% endif %}"
    "{% for message in messages %}<|header|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|header|>assistant\n{% endif %}"
)


def _tokenizer(special: tuple[str, ...], **options: Any) -> transformers.PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*special, *letters])}
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def save_mllama(folder: Path) -> Any:
    """A random Llama 3.2 Vision in ``folder``; returns the model."""
    torch.manual_seed(hash_of("mllama"))
    tokenizer = _tokenizer(
        LLAMA_SPECIAL,
        bos_token="<|begin_of_text|>",  # noqa: S106
        eos_token="<|eot_id|>",  # noqa: S106
        pad_token="<|pad|>",  # noqa: S106
    )
    vocab = len(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})  # behind the others
    tokenizer.chat_template = LLAMA_TEMPLATE
    config = transformers.MllamaConfig(
        image_token_index=vocab,
        vision_config={
            "hidden_size": 32,
            "attention_heads": 2,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_global_layers": 2,
            "image_size": TILE,
            "patch_size": 14,
            "max_num_tiles": MAX_TILES,
            "intermediate_layers_indices": [0, 2],
            "vision_output_dim": 96,
            "supported_aspect_ratios": [
                [1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1],
            ],
        },
        text_config={
            "vocab_size": vocab,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "cross_attention_layers": [1, 3],
            "max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        },
    )  # fmt: skip
    model = loud(transformers.MllamaForConditionalGeneration(config)).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {
        "size": {"height": TILE, "width": TILE},
        "max_image_tiles": MAX_TILES,
        "resample": 2,
        "image_mean": [0.48, 0.46, 0.41],
        "image_std": [0.27, 0.26, 0.28],
        "rescale_factor": 1 / 255,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def save_whisper(folder: Path) -> Any:
    """A random Whisper for one second of sound in ``folder``; returns the model."""
    torch.manual_seed(hash_of("whisper"))
    tokenizer = _tokenizer(WHISPER_SPECIAL, eos_token="<|endoftext|>")  # noqa: S106
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=64,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_mel_bins=20,
        max_source_positions=50 * CHUNK_S,
        max_target_positions=128,
        decoder_start_token_id=1,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        begin_suppress_tokens=None,
    )
    model = loud(transformers.WhisperForConditionalGeneration(config)).eval()
    model.generation_config.suppress_tokens = list(SUPPRESSED)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 20,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": CHUNK_S,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model
