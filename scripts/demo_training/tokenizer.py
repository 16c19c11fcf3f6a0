"""The demo model's tokenizer and chat template.

Owns the vocabulary: a byte-level BPE trained on all wordings and answers, plus a few special
tokens. Guarantees that any text can be encoded, and that the words of the demo's questions are one
token each.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from edgekv.demo.questions import DIRECTIONS, NOTHING, NUMBERS, WORDINGS
from edgekv.demo.render import COLOURS, SHAPES

PAD: Final = "<|pad|>"
START: Final = "<|im_start|>"
IMAGE: Final = "<image>"
END: Final = "<end_of_utterance>"
SYSTEM: Final = "<|system|>"
USER: Final = "<|user|>"
ASSISTANT: Final = "<|assistant|>"
SPECIAL_TOKENS: Final = (PAD, START, IMAGE, END, SYSTEM, USER, ASSISTANT)

CHAT_TEMPLATE: Final = (
    "<|im_start|>"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %}{{ part['text'] }}"
    "{% endif %}{% endfor %}"
    "{% endif %}"
    "<end_of_utterance>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

INSTRUCTIONS: Final = (
    "You watch a street.",
    "You watch a video.",
    "Answer briefly.",
    "You are a helpful assistant.",
    "Look at the video and answer the question.",
    "You watch the door of a shop.",
    "This is a live camera.",
    "Answer in a few words.",
    "You see coloured shapes that come and go.",
    "Tell me what happens.",
    "Watch the camera and say what you see.",
    "You are a guard.",
    "Be exact.",
    "You watch a conveyor belt in a factory.",
    "The camera looks at a parking lot.",
    "Only say what is in the picture.",
    "You help a blind person.",
    "Keep an eye on everything that moves.",
    "The video never ends.",
    "You watch a bird feeder in the garden.",
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the vocabulary on the wordings; the same on every run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=704,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[IMAGE, SYSTEM, USER, ASSISTANT],
        model_max_length=1_000_000,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json with the chat template inside."""
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def _corpus() -> list[str]:
    objects = [f"{colour} {shape}" for colour, shape in itertools.product(COLOURS, SHAPES)]
    words = [*objects, *COLOURS, *SHAPES]
    questions = [w.format(x) for ws in WORDINGS.values() for w in ws for x in words]
    verbs = ["is not moving", *(f"moves {d}" for d in DIRECTIONS[:4])]
    captions = [f"a {o} {v}, a {o} {v}" for o in objects for v in verbs]
    places = [f"{row} {column}" for row in ("top", "bottom") for column in ("left", "right")]
    answers = [*NUMBERS, *DIRECTIONS, NOTHING, *places, *places, "centre", "left", "top", "bottom"]
    answers += ["yes", "no", *(f"{a}, {b}" for a, b in itertools.product(objects, objects))]
    return (questions + captions + answers * 20 + list(INSTRUCTIONS) * 20) * 2
