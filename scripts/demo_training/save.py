"""Writes the demo model as an ordinary Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.smolvlm import SmolVLMForConditionalGeneration

from demo_training.model import IMAGE_SIZE
from demo_training.tokenizer import save_tokenizer


def save_folder(
    model: SmolVLMForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> None:
    """Replace ``folder``; a reader sees the old one or the new one, never a half-written one."""
    part = folder.with_name(folder.name + ".part")
    old = folder.with_name(folder.name + ".old")
    for leftover in (part, old):
        shutil.rmtree(leftover, ignore_errors=True)
    part.mkdir(parents=True)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=32,
        do_sample=False,
    )
    model.save_pretrained(part)
    save_tokenizer(tokenizer, part)
    (part / "preprocessor_config.json").write_text(
        json.dumps(_preprocessor_config(), indent=2) + "\n"
    )
    if folder.exists():
        folder.replace(old)
    part.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def _preprocessor_config() -> dict[str, object]:
    return {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"longest_edge": IMAGE_SIZE},
        "resample": 1,
        "do_image_splitting": False,
        "max_image_size": {"longest_edge": IMAGE_SIZE},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "do_pad": True,
    }
