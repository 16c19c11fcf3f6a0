"""Tokenizer and chat template as a bundle carries them, checked against each other.

Owns: ``tokenizer.json``, ``chat_template.jinja``, the prompt settings of the manifest.
Guarantees: the parts that ``Prompts`` cuts, tokenised one by one, give the ids that the whole
template gives; an export that would break this is refused.
Does not know: graphs or weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from edgekv.bundle.manifest import (
    CHAT_TEMPLATE,
    TOKENIZER,
    FrameText,
    GenerationDefaults,
    PromptSettings,
)
from edgekv.bundle.prompts import Prompts
from edgekv.errors import BundleError
from edgekv.export.source import Source

# For models without a chat template: the texts as they are.
_PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_PROBES = ("What do you see?", "How many? 3", "Überall \n ok")


def write_prompt_files(
    folder: Path,
    source: Source,
    frame: FrameText | None,
    generation_config: Any,
    *,
    template: str | None = None,
) -> PromptSettings:
    """Write tokenizer and template (None: the source's) into ``folder``; returns the manifest's
    part. Raises BundleError."""
    tokenizer = Tokenizer.from_str(source.tokenizer.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(folder / TOKENIZER))
    template = template or _chat_template(source)
    (folder / CHAT_TEMPLATE).write_text(template, encoding="utf-8", newline="")
    tokens = {
        name: token
        for name, token in source.tokenizer.special_tokens_map.items()
        if isinstance(token, str)
    }
    prepend = "" if frame is None else _start_token(source.tokenizer)
    prompts = _prompts(template, tokens, frame, prepend)
    if prepend and prompts.start().startswith(prepend * 2):  # the template writes it itself
        prepend = ""
        prompts = _prompts(template, tokens, frame, prepend)
    _check_parts(prompts, tokenizer, frame)
    return PromptSettings(
        prepend=prepend,
        template_tokens=tokens,
        eos_ids=_eos_ids(generation_config, source.tokenizer, prompts),
    )


def generation_defaults(config: Any) -> GenerationDefaults:
    """The manifest's part on sampling, from a ``GenerationConfig``."""

    def value(name: str, default: float) -> float:
        found = getattr(config, name, None)
        return default if found is None else float(found)

    return GenerationDefaults(
        do_sample=bool(getattr(config, "do_sample", False)),
        temperature=value("temperature", 1.0) or 1.0,
        top_k=int(value("top_k", 0)),
        top_p=value("top_p", 1.0),
        repetition_penalty=value("repetition_penalty", 1.0),
    )


def _prompts(
    template: str, tokens: dict[str, str], frame: FrameText | None, prepend: str
) -> Prompts:
    return Prompts(
        template,
        template_tokens=tokens,
        prepend=prepend,
        placeholder=None if frame is None else frame.placeholder,
        frame_prefix="" if frame is None else frame.prefix,
        frame_suffix="" if frame is None else frame.suffix,
    )


def _chat_template(source: Source) -> str:
    for name in ("chat_template.json", "processor_config.json"):
        found = source.read_json(name).get("chat_template")
        if isinstance(found, str):
            return found
    found = source.tokenizer.chat_template
    if isinstance(found, dict):
        found = found.get("default")
    return found if isinstance(found, str) else _PLAIN_TEMPLATE


def _start_token(tokenizer: PreTrainedTokenizerFast) -> str:
    """The token that a processor's tokenizer call puts in front, as text; usually none."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    if full[-len(bare) :] != bare or len(full) != len(bare) + 1:
        return ""
    token = tokenizer.convert_ids_to_tokens(full[0])
    return token if isinstance(token, str) else ""


def _eos_ids(config: Any, tokenizer: PreTrainedTokenizerFast, prompts: Prompts) -> tuple[int, ...]:
    configured = getattr(config, "eos_token_id", None)
    ids = set(configured if isinstance(configured, list) else [configured])
    ids.add(tokenizer.eos_token_id)
    # What the template writes after an answer ends it too, if it is a token of its own.
    closing = tokenizer(prompts.answer_end, add_special_tokens=False)["input_ids"]
    if closing and closing[0] in tokenizer.all_special_ids:
        ids.add(closing[0])
    return tuple(sorted(int(token) for token in ids if token is not None))


def _check_parts(prompts: Prompts, tokenizer: Tokenizer, frame: FrameText | None) -> None:
    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    frames = 2 if frame is not None else 0
    piece = expanded = ""
    if frame is not None:
        tokens = frame.placeholder * frame.num_tokens
        piece = prompts.frame_prefix + tokens + prompts.frame_suffix
        expanded = frame.prefix + tokens + frame.suffix
    for instructions in (None, "You watch a street."):
        for question in _PROBES:
            whole = prompts.render(question, num_frames=frames, instructions=instructions)
            if frame is not None:
                whole = whole.replace(frame.placeholder, expanded)
            parts = [prompts.start(instructions), *[piece] * frames, prompts.question(question)]
            joined = [token for part in parts for token in ids(part)]
            if joined != ids(whole):
                raise BundleError(
                    "chat template: its parts do not tokenise like the whole "
                    f"(question {question!r}, instructions {instructions!r})"
                )
