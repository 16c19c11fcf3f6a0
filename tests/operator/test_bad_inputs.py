"""Everything the CPU binding refuses, each with one line that says what was wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.operator.harness import ORT_ERRORS, build_model, open_session, run_session

Arrays = dict[str, np.ndarray]
SIZE, PAGES, TOKENS = 4, 5, 3


def good_arrays() -> Arrays:
    """Two rows: two new tokens on page 3 behind a full page 1, and one new token on page 2."""
    table = np.array([[[1, 4, 0], [3, 2, -1]], [[2, 3, 0], [-1, 0, 0]]], np.int32)
    return {
        "query": np.ones((TOKENS, 16), np.float32),
        "key": np.ones((TOKENS, 8), np.float32),
        "value": np.ones((TOKENS, 8), np.float32),
        "key_pool": np.ones((PAGES, 1, SIZE, 8), np.float32),
        "value_pool": np.ones((PAGES, 1, SIZE, 8), np.float32),
        "page_table": table,
        "query_starts": np.array([0, 2, 3], np.int32),
        "slot_mapping": np.array([12, 13, 10], np.int32),
        "kv_limits": np.array([5, 6, 3], np.int32),
        "query_indices": np.array([4, 5, 2], np.int32),
    }


GOOD_ATTRIBUTES: dict[str, object] = {
    "schema_version": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 8,
    "scale": 0.5,
    "inv_freq": [1.0, 0.5],
}


def put(name: str, index: object, value: float) -> Callable[[Arrays], None]:
    """Overwrites one number."""

    def change(arrays: Arrays) -> None:
        arrays[name][index] = value

    return change


def replace(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], None]:
    """Replaces one array."""

    def change(arrays: Arrays) -> None:
        arrays[name] = make(arrays[name])

    return change


def drop(name: str) -> Callable[[Arrays], None]:
    """Leaves one input out."""

    def change(arrays: Arrays) -> None:
        del arrays[name]

    return change


def add(name: str, array: np.ndarray) -> Callable[[Arrays], None]:
    """Gives one more input."""

    def change(arrays: Arrays) -> None:
        arrays[name] = array

    return change


def add_mass(weights: list[float]) -> Callable[[Arrays], None]:
    """Gives a mass of zeros and these weights."""

    def change(arrays: Arrays) -> None:
        arrays["page_mass"] = np.zeros(PAGES, np.float32)
        arrays["mass_weights"] = np.array(weights, np.float32)

    return change


BAD_INPUTS = [
    (put("page_table", (0, 1, 0), 5), "page_table[0][1] names page 5, the pool has pages 0 to 4"),
    (put("page_table", (1, 0, 0), -2), "page_table[1][0] names page -2"),
    (put("page_table", (0, 0, 1), 5), "page_table[0][0] says 5 valid tokens, a page has 4"),
    (put("page_table", (0, 0, 1), -1), "page_table[0][0] says -1 valid tokens"),
    (put("slot_mapping", 1, 20), "slot_mapping[1] = 20, the pool has slots 0 to 19"),
    (put("slot_mapping", 2, -2), "slot_mapping[2] = -2"),
    (put("kv_limits", 1, 7), "kv_limits[1] = 7, row 0 has 6 tokens"),
    (put("kv_limits", 2, -1), "kv_limits[2] = -1, row 1 has 3 tokens"),
    (put("query_starts", 0, 1), "query_starts[0] = 1, must be 0"),
    (put("query_starts", 1, 4), "query_starts[2] = 3 is less than the one before it"),
    (put("query_starts", 2, 2), "query_starts[2] = 2, must be the number of tokens 3"),
    (replace("query", lambda a: a[:, :15]), "query has shape (3, 15), must be (any, 16)"),
    (replace("query", lambda a: a[None]), "query has shape (1, 3, 16), must be (any, 16)"),
    (replace("key", lambda a: a[:2]), "key has shape (2, 8), must be (3, 8)"),
    (replace("value", lambda a: a[:, :7]), "value has shape (3, 7), must be (3, 8)"),
    (drop("key"), "key and value must be given together or not at all"),
    (drop("value"), "key and value must be given together or not at all"),
    (replace("key_pool", lambda a: a[:, :, :0]), "key_pool has pages of 0 slots"),
    (replace("key_pool", lambda a: a[..., :4]), "key_pool has shape (5, 1, 4, 4), must be"),
    (replace("value_pool", lambda a: a[:4]), "value_pool has shape (4, 1, 4, 8), must be"),
    (replace("page_table", lambda a: a[..., :1]), "page_table has 1 numbers per entry"),
    (replace("page_table", lambda a: a[..., :2]), "freq_axes[0] = 0, page_table has 0 rope axes"),
    (replace("page_table", lambda a: a[0]), "page_table has shape (2, 3), must be (any, any, any)"),
    (replace("query_starts", lambda a: a[:2]), "query_starts has shape (2), must be (3)"),
    (replace("slot_mapping", lambda a: a[:2]), "slot_mapping has shape (2), must be (3)"),
    (replace("kv_limits", lambda a: a[:2]), "kv_limits has shape (2), must be (3)"),
    (replace("query_indices", lambda a: a[:2]), "query_indices has shape (2), must be (3)"),
    (add("sinks", np.ones(3, np.float32)), "sinks has shape (3), must be (2)"),
    (
        add("key_scales", np.ones((PAGES, 1, SIZE), np.float32)),
        "key_scales and value_scales are for int8 pools only",
    ),
    (
        add("page_mass", np.zeros(PAGES, np.float32)),
        "page_mass and mass_weights must be given together or not at all",
    ),
    (
        add("mass_weights", np.zeros(2, np.float32)),
        "page_mass and mass_weights must be given together or not at all",
    ),
    (
        add("page_mass", np.zeros(PAGES - 1, np.float32)),
        "page_mass has shape (4), must be (5)",
    ),
    (
        add_mass([0.0, 0.0, 1.0]),
        "mass_weights has shape (3), must be (2)",
    ),
    (add_mass([0.0, float("inf")]), "mass_weights[1] must be a finite number"),
]


def one_line(error: Exception) -> str:
    """What the operator said, without the runtime's frame around it."""
    text = str(error)
    assert "PagedAttention: " in text
    said = text.rsplit("PagedAttention: ", 1)[1]
    assert "\n" not in said.strip()
    return said


@pytest.mark.parametrize(("change", "expected"), BAD_INPUTS, ids=[text for _, text in BAD_INPUTS])
def test_bad_input_is_refused_and_nothing_is_written(
    change: Callable[[Arrays], None], expected: str
) -> None:
    arrays = good_arrays()
    change(arrays)
    pools = [arrays["key_pool"].copy(), arrays["value_pool"].copy()]
    outputs = None if "key" in arrays else 3
    session = open_session(build_model(arrays, GOOD_ATTRIBUTES, outputs))
    with pytest.raises((*ORT_ERRORS, RuntimeError)) as caught:
        run_session(session, arrays, in_place=True)
    assert one_line(caught.value).startswith(expected)
    np.testing.assert_array_equal(arrays["key_pool"], pools[0])
    np.testing.assert_array_equal(arrays["value_pool"], pools[1])


def test_good_input_is_accepted() -> None:
    arrays = good_arrays()
    session = open_session(build_model(arrays, GOOD_ATTRIBUTES))
    np.testing.assert_allclose(run_session(session, arrays, in_place=True)["output"], 1.0)


BAD_ATTRIBUTES: list[tuple[dict[str, object], str]] = [
    ({"schema_version": 1}, "schema_version = 1, this library implements 2"),
    ({"schema_version": None}, "attribute schema_version (int) is missing"),
    ({"num_heads": None}, "attribute num_heads (int) is missing"),
    ({"scale": None}, "attribute scale (float) is missing"),
    ({"scale": float("nan")}, "scale must be a finite number"),
    ({"num_heads": 0}, "num_heads = 0, must be 1 to"),
    ({"num_heads": 2**40}, "num_heads = 1099511627776 does not fit 32 bits"),
    ({"num_heads": 3, "num_kv_heads": 2}, "num_kv_heads = 2 does not divide num_heads = 3"),
    ({"num_kv_heads": 0}, "num_kv_heads = 0 does not divide"),
    ({"head_dim": -8}, "head_dim = -8, must be 1 to"),
    ({"window": -1}, "window = -1, must be 0 or positive"),
    ({"window": 1.5}, "attribute window must be of type int"),
    ({"softcap": -1.0}, "softcap must be 0 or a positive number"),
    ({"softcap": 30}, "attribute softcap must be of type float"),
    ({"inv_freq": [1.0] * 5}, "inv_freq has 5 values, more than half of head_dim = 8"),
    ({"inv_freq": 1.0}, "attribute inv_freq must be of type floats"),
    ({"inv_freq": [1.0, float("inf")]}, "inv_freq[1] must be a finite number"),
    ({"freq_axes": [0]}, "freq_axes has 1 values, inv_freq has 2"),
    ({"freq_axes": [0, -1]}, "freq_axes[1] = -1, must be 0 or positive"),
    ({"freq_axes": [0.0, 0.0]}, "attribute freq_axes must be of type ints"),
    ({"rotary_interleaved": 2}, "rotary_interleaved = 2, must be 0 or 1"),
]


@pytest.mark.parametrize(
    ("change", "expected"), BAD_ATTRIBUTES, ids=[text for _, text in BAD_ATTRIBUTES]
)
def test_bad_attribute_is_refused_at_load(change: dict[str, object], expected: str) -> None:
    attributes = {k: v for k, v in {**GOOD_ATTRIBUTES, **change}.items() if v is not None}
    with pytest.raises(ORT_ERRORS) as caught:
        open_session(build_model(good_arrays(), attributes))
    assert one_line(caught.value).startswith(expected)


def test_pools_that_are_written_need_their_outputs() -> None:
    arrays = good_arrays()
    session = open_session(build_model(arrays, GOOD_ATTRIBUTES, num_outputs=1))
    with pytest.raises((*ORT_ERRORS, RuntimeError)) as caught:
        run_session(session, arrays, in_place=False)
    assert one_line(caught.value).startswith("the node has 1 outputs, must have 3")


def test_int8_pools_need_scales() -> None:
    arrays = good_arrays()
    for name in ("key_pool", "value_pool"):
        arrays[name] = arrays[name].astype(np.int8)
    session = open_session(build_model(arrays, GOOD_ATTRIBUTES))
    with pytest.raises((*ORT_ERRORS, RuntimeError)) as caught:
        run_session(session, arrays, in_place=True)
    assert one_line(caught.value).startswith("input key_scales is missing")


def test_unknown_instruction_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEKV_CPU_ISA", "sse9")
    with pytest.raises(ORT_ERRORS) as caught:
        open_session(build_model(good_arrays(), GOOD_ATTRIBUTES))
    assert one_line(caught.value).startswith("EDGEKV_CPU_ISA must be one of")
