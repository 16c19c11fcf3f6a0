"""The parts of a chat template, put together, are the template's own text."""

from __future__ import annotations

import pytest

from edgekv.bundle import Prompts
from edgekv.errors import BundleError

SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
QWEN_VL = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}<|im_end|>\n{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA = (  # a line end after every image
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "</s>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (  # trims texts, has no system role, insists on turns
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
SILENT_SYSTEM = (  # drops the system message without a word
    "{% for m in messages if m['role'] != 'system' %}[{{ m['content'] }}]{% endfor %}"
)
SPACE_BEFORE = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}"
)
PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

CASES = {
    "smolvlm": (SMOLVLM, "<image>"),
    "qwen-vl": (QWEN_VL, "<|vision_start|><|image_pad|><|vision_end|>"),
    "llava": (LLAVA, "<image>"),
    "chatml": (CHATML, None),
    "gemma": (GEMMA, None),
    "silent-system": (SILENT_SYSTEM, None),
    "space-before": (SPACE_BEFORE, None),
    "plain": (PLAIN, None),
}
TEXTS = ["What is it?", "  spaces around  ", "line\nend", "quote ' and {{ braces }}", "ünïcode 🚲"]


def make(name: str) -> Prompts:
    template, placeholder = CASES[name]
    return Prompts(
        template,
        template_tokens={"bos_token": "<bos>"},
        placeholder=placeholder,
        frame_prefix="<f>" if placeholder else "",
        frame_suffix="</f>" if placeholder else "",
    )


@pytest.mark.parametrize("instructions", [None, "You watch a street."])
@pytest.mark.parametrize("num_frames", [1, 2, 5])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", CASES)
def test_parts_are_the_whole(
    name: str, text: str, num_frames: int, instructions: str | None
) -> None:
    prompts, placeholder = make(name), CASES[name][1]
    if placeholder is None:
        num_frames = 0
    frame = f"{prompts.frame_prefix}(image){prompts.frame_suffix}" if placeholder else ""
    parts = prompts.start(instructions) + frame * num_frames + prompts.question(text)
    whole = prompts.render(text, num_frames=num_frames, instructions=instructions)
    if placeholder:
        whole = whole.replace(placeholder, "<f>(image)</f>")
    if name == "gemma" and instructions:  # it trims the whole message, we trim the question
        whole = whole.replace(text.rstrip(), text.strip())
    assert parts == whole
    assert instructions is None or instructions in prompts.start(instructions)


def test_smolvlm_parts() -> None:
    prompts = make("smolvlm")
    assert prompts.start() == "<|im_start|>User:"
    assert prompts.start("Hi.") == "<|im_start|>System: Hi.<end_of_utterance>\nUser:"
    assert prompts.question("Why?") == "Why?<end_of_utterance>\nAssistant:"
    assert prompts.question("Why?", frames=False) == " Why?<end_of_utterance>\nAssistant:"
    assert prompts.answer_end == "<end_of_utterance>\n"
    assert prompts.turn_start() == "User:"


@pytest.mark.parametrize("name", [name for name in CASES if name != "silent-system"])
def test_a_second_turn(name: str) -> None:
    """What a kept answer and a further turn add is what the template writes for them."""
    template, placeholder = CASES[name]
    prompts = make(name)
    image = [{"type": "image"}] if placeholder else []

    def message(role: str, text: str) -> dict[str, object]:
        if placeholder is None:
            return {"role": role, "content": text}
        parts = [{"type": "text", "text": text}]
        return {"role": role, "content": (image if role == "user" else []) + parts}

    import jinja2

    environment = jinja2.Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True)  # noqa: S701
    environment.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(ValueError(text))
    whole = environment.from_string(template).render(
        messages=[message("user", "One?"), message("assistant", "Yes"), message("user", "Two?")],
        add_generation_prompt=True,
        bos_token="<bos>",  # noqa: S106
    )
    mark = "@" if placeholder else ""
    if placeholder:
        whole = whole.replace(placeholder, "<f>@</f>")
    frame = prompts.frame_prefix + mark + prompts.frame_suffix
    # Where the template sets a space before an answer, the model writes it.
    answer = " Yes" if name in ("smolvlm", "llava", "space-before") else "Yes"
    first = prompts.start() + frame + prompts.question("One?") + answer + prompts.answer_end
    assert first + prompts.turn_start() + frame + prompts.question("Two?") == whole


@pytest.mark.parametrize("text", ["", "   ", "a <image> b"])
def test_refused_texts(text: str) -> None:
    prompts = make("smolvlm")
    with pytest.raises(ValueError, match="must not"):
        prompts.question(text)
    with pytest.raises(ValueError, match="must not"):
        prompts.start(text)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", "not a template"),
        ("{{ messages[0].nothing.more }}", "cannot be rendered"),
        ("{{ raise_exception('never') }}", "cannot be rendered (never)"),
        ("{{ 1 / 0 }}", "cannot be rendered (division by zero)"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "cannot be rendered (Range too big"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "cannot be rendered"),
        ("constant", "two images should give '<image>' twice, gave it 0 times"),
        ("<image>, <image>", "stands between images only"),
        ("{{ messages.__class__.__mro__ }}", "is unsafe"),
    ],
)
def test_refused_templates(template: str, message: str) -> None:
    with pytest.raises(BundleError) as caught:
        Prompts(template, template_tokens={}, placeholder="<image>")
    assert str(caught.value).startswith("chat_template.jinja: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_generation_tag_and_date_are_known() -> None:
    template = (
        "{{ strftime_now('%Y') }}{% for m in messages %}{% generation %}{{ m['content'] }}"
        "{% endgeneration %};{% endfor %}{% for x in [1, 2] %}{% break %}{% endfor %}"
    )
    prompts = Prompts(template, template_tokens={})
    assert prompts.start().isdigit()
    assert prompts.question("Why?") == "Why?;"


def test_text_is_prepended_once() -> None:
    prompts = Prompts(CHATML, template_tokens={}, prepend="<s>")
    assert prompts.start("Hi.").startswith("<s><|im_start|>system")
    assert "<s>" not in prompts.question("Why?")
