"""What each kind of value is, and how a wrong one is named."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from edgekv.checks import finite, path_of, positive, shown, switch, whole


def test_numbers_get_pythons_own_types() -> None:
    assert (whole(np.int8(7), "n"), type(whole(np.int8(7), "n"))) == (7, int)
    assert (finite(np.float32(0.5), "x"), type(finite(np.float32(0.5), "x"))) == (0.5, float)
    assert (whole(-3, "n"), positive(1e-300, "x"), switch(False, "on")) == (-3, 1e-300, False)


@pytest.mark.parametrize(
    ("value", "bounds", "said"),
    [
        (0, {"least": 1}, "n must be a whole number from 1, got 0"),
        (9, {"least": 1, "most": 8}, "n must be a whole number from 1 to 8, got 9"),
        (9, {"most": 8}, "n must be a whole number up to 8, got 9"),
        (2**63, {}, "n must be a whole number that fits 64 bits, got 9223372036854775808"),
        (True, {}, "n must be a whole number, got True"),
        (1.0, {}, "n must be a whole number, got 1.0"),
        ("1", {}, "n must be a whole number, got '1'"),
    ],
)
def test_what_is_no_whole_number(value: object, bounds: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        whole(value, "n", **bounds)
    assert str(refused.value) == said


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, "1", True, 1j, [1.0]])
def test_what_is_no_finite_number(value: object) -> None:
    with pytest.raises(ValueError, match="x must be a finite number, got "):
        finite(value, "x")


@pytest.mark.parametrize("path", ["a", Path("a"), PurePosixPath("a")])
def test_paths(path: object) -> None:
    assert path_of(path, "p") == Path("a")


def test_a_name_may_be_as_long_as_file_systems_allow(tmp_path: Path) -> None:
    path_of("ä" * 127, "p")
    path_of("/".join(["x" * 255] * 15), "p")
    for long in ("ä" * 128, "/".join(["x" * 255] * 16) + "/"):
        with pytest.raises(ValueError, match="at most 4095 bytes, 255 a name"):
            path_of(long, "p")
    (tmp_path / ("ä" * 127)).touch()


def test_a_wrong_value_is_shown_on_one_short_line() -> None:
    class Strange:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("a\n b") == r"'a\n b'"
    assert shown(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert shown("x" * 100) == f"'{'x' * 58}…"
    assert shown(Strange()) == "<Strange>"
    assert shown(10**5000) in ("<int>", f"1{'0' * 58}…")
