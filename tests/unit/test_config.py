import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.config import KVGeometry, format_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("1.5kb", 1500), ("4096", 4096), (" 2 GiB ", 2 << 30), (7, 7)],
)
def test_sizes_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "8 miles", "0", "1e3", "nan", 0, -5])
def test_a_wrong_size_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2s", 2.0), ("500ms", 0.5), ("10m", 600.0), ("1.5", 1.5), (3, 3.0)]
)
def test_durations_as_people_write_them(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-2s", "0s", "soon", float("nan"), float("inf")])
def test_a_wrong_duration_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_seconds(text)


def test_page_bytes_count_every_layer_key_and_value() -> None:
    geometry = KVGeometry(num_layers=6, num_kv_heads=2, head_dim=32, page_size=16, dtype="float16")
    assert geometry.page_bytes == 6 * 2 * 2 * 16 * 32 * 2
    int8 = KVGeometry(num_layers=6, num_kv_heads=2, head_dim=32, page_size=16, dtype="int8")
    assert int8.page_bytes == 6 * 2 * 2 * 16 * (32 + 4)


@pytest.mark.parametrize(("num_tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for_rounds_up(num_tokens: int, pages: int) -> None:
    geometry = KVGeometry(num_layers=1, num_kv_heads=1, head_dim=8, page_size=16, dtype="float32")
    assert geometry.pages_for(num_tokens) == pages


@pytest.mark.parametrize(
    ("size", "text"), [(1, "1 B"), (2048, "2.0 KiB"), (8 << 20, "8.0 MiB"), (3 << 40, "3072.0 GiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(size=st.integers(1, 1 << 48))
def test_a_rounded_size_read_back_is_on_its_side(size: int) -> None:
    assert parse_bytes(format_bytes(size, rounded="up")) >= size
    assert parse_bytes(format_bytes(size, rounded="down"), least=0) <= size
