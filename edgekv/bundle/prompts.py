"""A chat template cut into the parts that a session appends one by one.

Owns: rendering the template as ``transformers`` does (same sandbox, same switches) and finding,
with marker words, what stands before the first image, around a question and after an answer.
Guarantees: ``start + frames + question`` is, character by character, what the template writes for
one user message of images and text; each part can be tokenised alone.
Does not know: tokens, frames as pictures, or which parts stay in the context.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from edgekv.errors import BundleError

if TYPE_CHECKING:
    from edgekv.bundle.manifest import Manifest

Content = str | list[dict[str, str]]

# Marker words: letters only, so that no template trims or escapes them.
_ASK, _ASK_AGAIN, _TELL, _SAID = "QedgekvaskQ", "QedgekvagainQ", "QedgekvtellQ", "QedgekvsaidQ"
_IMAGE = {"type": "image"}


class Prompts:
    """The parts of a conversation over one stream of frames.

    ``start(instructions)``, then per frame ``frame_prefix``, the image tokens, ``frame_suffix``,
    then ``question(text)`` and the generated answer. To keep a dialogue: ``answer_end`` (in place
    of the end token the model wrote), ``turn_start()``, more frames, the next ``question``.
    """

    def __init__(
        self,
        template: str,
        *,
        template_tokens: Mapping[str, str],
        placeholder: str | None = None,  # None = text only
        frame_prefix: str = "",
        frame_suffix: str = "",
        prepend: str = "",
    ) -> None:
        """Compile and probe the template. Raises BundleError when it cannot be cut into parts."""
        self._template = _compile(template)
        self._tokens = dict(template_tokens)
        self._placeholder = placeholder
        self._prepend = prepend
        self._lists = placeholder is not None and self._takes_lists()
        self._has_system = self._takes_system()
        separator = self._image_separator()
        self.frame_prefix = frame_prefix
        self.frame_suffix = frame_suffix + separator
        self._separator = separator
        self.answer_end = self._find_answer_end()

    @classmethod
    def from_manifest(cls, template: str, manifest: Manifest) -> Prompts:
        """The prompts of an opened bundle. Raises BundleError."""
        prompt, frame = manifest.prompt, manifest.frame_text
        return cls(
            template,
            template_tokens=prompt.template_tokens,
            prepend=prompt.prepend,
            placeholder=None if frame is None else frame.placeholder,
            frame_prefix="" if frame is None else frame.prefix,
            frame_suffix="" if frame is None else frame.suffix,
        )

    def start(self, instructions: str | None = None) -> str:
        """Everything before the first frame (before the question, for a text-only model)."""
        return self._prepend + self._start(instructions)

    def question(self, text: str, *, frames: bool = True) -> str:
        """Everything from the question to the point where the model begins to answer.

        ``frames=False`` when no frame stands between the turn's start and the question.
        Raises ValueError when the text is empty or holds the model's image placeholder.
        """
        self.check_text(text, "question")
        if frames and self._placeholder is not None:
            rendered = self._render([self._user(_IMAGE, text)], generate=True)
            rest = _after(rendered, self._placeholder)
            return rest.removeprefix(self._separator)
        rendered = self._render([self._user(text)], generate=True)
        return rendered.removeprefix(self._start(None))

    def turn_start(self) -> str:
        """What opens a further user turn, up to its first frame (or question, if text only)."""
        between = self._between_turns()
        return between.removeprefix(self.answer_end)

    def render(self, question: str, *, num_frames: int, instructions: str | None = None) -> str:
        """The whole template at once, image placeholders unexpanded: what the parts must equal."""
        text = self._render(self._messages(instructions, [_IMAGE] * num_frames, question), True)
        return self._prepend + text

    # -- finding the parts ----------------------------------------------------------------------

    def _start(self, instructions: str | None) -> str:
        if instructions is not None:
            self.check_text(instructions, "instructions")
        images = [] if self._placeholder is None else [_IMAGE]
        rendered = self._render(self._messages(instructions, images, _ASK), True)
        if self._placeholder is not None:
            return _before(rendered, self._placeholder)
        # A space left at the end would be torn from the word it belongs to in tokenizing.
        return _before(rendered, _ASK).rstrip(" ")

    def _image_separator(self) -> str:
        """What the template writes between two images of one message, usually nothing."""
        if self._placeholder is None:
            return ""
        rendered = self._render([self._user(_IMAGE, _IMAGE, _ASK)], True)
        pieces = rendered.split(self._placeholder)
        if len(pieces) != 3:
            raise BundleError(
                f"chat_template.jinja: two images should give {self._placeholder!r} twice, "
                f"gave it {len(pieces) - 1} times"
            )
        if not pieces[2].startswith(pieces[1]):
            raise BundleError(
                f"chat_template.jinja: text {pieces[1]!r} stands between images only, "
                "frames cannot be appended one by one"
            )
        return pieces[1]

    def _find_answer_end(self) -> str:
        last = _after(self._render([self._user(_ASK), self._said()], False), _SAID)
        between = self._between_turns()
        length = 0
        while length < min(len(last), len(between)) and last[length] == between[length]:
            length += 1
        return last[:length]

    def _between_turns(self) -> str:
        images = [] if self._placeholder is None else [_IMAGE]
        turns = [self._user(*images, _ASK), self._said(), self._user(*images, _ASK_AGAIN)]
        rest = _after(self._render(turns, True), _SAID)
        if self._placeholder is not None:
            return _before(rest, self._placeholder)
        return _before(rest, _ASK_AGAIN).rstrip(" ")

    def _takes_lists(self) -> bool:
        """Whether a message without images may have its content as a list of parts."""
        try:
            rendered = self._render([{"role": "user", "content": [_text(_ASK)]}], True)
        except BundleError:
            return False
        return rendered.count(_ASK) == 1 and "'type'" not in rendered

    def _takes_system(self) -> bool:
        images = [] if self._placeholder is None else [_IMAGE]  # some refuse both together
        try:
            rendered = self._render(
                [self._message("system", [_TELL]), self._user(*images, _ASK)], True
            )
        except BundleError:
            return False
        return rendered.count(_TELL) == 1

    # -- messages -------------------------------------------------------------------------------

    def _messages(
        self, instructions: str | None, images: Sequence[dict[str, str]], question: str
    ) -> list[dict[str, Any]]:
        if instructions is None:
            return [self._user(*images, question)]
        if self._has_system:
            return [self._message("system", [instructions]), self._user(*images, question)]
        if not images:
            return [self._user(f"{instructions}\n\n{question}")]
        return [self._user(f"{instructions}\n\n", *images, question)]

    def _user(self, *parts: str | dict[str, str]) -> dict[str, Any]:
        return self._message("user", parts)

    def _said(self) -> dict[str, Any]:
        return self._message("assistant", [_SAID])

    def _message(self, role: str, parts: Sequence[str | dict[str, str]]) -> dict[str, Any]:
        content: Content
        if self._lists or any(isinstance(part, dict) for part in parts):
            content = [_text(part) if isinstance(part, str) else part for part in parts]
        else:
            content = "".join(part for part in parts if isinstance(part, str))
        return {"role": role, "content": content}

    def _render(self, messages: list[dict[str, Any]], generate: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=generate,
                **self._tokens,
            )
        except Exception as error:  # a template computes, and fails as any program does
            raise BundleError(f"chat_template.jinja: cannot be rendered ({error})") from None

    def check_text(self, text: str, what: str) -> None:
        """Raises ValueError unless a user's text can be tokenised and shows no image by itself."""
        if not isinstance(text, str):
            raise ValueError(f"{what} must be a text, got {type(text).__name__}")
        if not text.strip():
            raise ValueError(f"{what} must not be empty")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            broken = f"character {error.start} is half a surrogate pair"
            raise ValueError(f"{what} must be Unicode text, {broken}") from None
        if self._placeholder is not None and self._placeholder in text:
            raise ValueError(f"{what} must not hold the image placeholder {self._placeholder!r}")


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; here its body is written as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": _raise_exception,
        "strftime_now": lambda text: datetime.now().strftime(text),
    }
    environment.globals.update(functions)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        raise BundleError(f"chat_template.jinja: not a template ({error})") from None


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _before(rendered: str, marker: str) -> str:
    head, found, _ = rendered.partition(marker)
    if not found:
        raise BundleError(f"chat_template.jinja: drops {marker!r} from the user's message")
    return head


def _after(rendered: str, marker: str) -> str:
    _, found, tail = rendered.partition(marker)
    if not found:
        raise BundleError(f"chat_template.jinja: drops {marker!r} from the conversation")
    return tail
