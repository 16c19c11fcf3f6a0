import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgekv.textstream import TextStream


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token a byte: every character beyond ASCII takes several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({character: k for k, character in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def pieces(tokenizer: Tokenizer, text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream = TextStream(tokenizer, stop)
    out = []
    for token in tokenizer.encode(text).ids:
        out.append(stream.push(token))
        if stream.stopped:
            return out, True
    return [*out, stream.finish()], False


@pytest.mark.parametrize("text", ["plain", "Grüße, 東京 🚦 und 👩‍👩‍👧", "é", "🚦"])
def test_pieces_join_to_the_text_and_never_break_a_character(
    tokenizer: Tokenizer, text: str
) -> None:
    out, _ = pieces(tokenizer, text)
    assert "".join(out) == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(out)


def test_an_unfinished_character_is_not_emitted(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    emitted = [stream.push(token) for token in tokenizer.encode("a🚦").ids[:-1]]
    assert "".join(emitted) + stream.finish() == "a"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("yes. and more", (".",), "yes"),
        ("one STOP two", ("STOP",), "one "),
        ("a STO b", ("STOP",), "a STO b"),
        ("aab", ("ab",), "a"),
        ("x END", ("END", "x"), ""),
    ],
)
def test_stop_strings_end_the_text_before_them(
    tokenizer: Tokenizer, text: str, stop: tuple[str, ...], expected: str
) -> None:
    out, stopped = pieces(tokenizer, text, stop)
    assert "".join(out) == expected
    assert stopped == any(mark in text for mark in stop)


def test_no_piece_gives_away_the_beginning_of_a_stop_string(tokenizer: Tokenizer) -> None:
    out, _ = pieces(tokenizer, "go STOP", ("STOP",))
    assert out == ["g", "o", " ", "", "", "", ""]
