"""From cubins to libraries in the package."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from plugins.cuda.build_libraries import build_libraries, find_headers
from tests.plugin.conftest import tensorrt_headers


def test_without_tensorrt_headers_the_op_is_built_alone(tmp_path: Path, fake_kernels: Path) -> None:
    """What is left out is said, with what to do."""
    made = build_libraries(
        fake_kernels, tmp_path, build=tmp_path / "build", native=tmp_path / "native"
    )
    assert [path.name for path in made.built] == ["libedgekv_ort_cuda.so"]
    assert ctypes.CDLL(str(made.built[0])).RegisterCustomOps
    (reason,) = made.left_out
    assert "no NvInferRuntime.h" in reason
    assert "--headers" in reason


def test_a_fault_of_the_build_is_said(tmp_path: Path) -> None:
    """A folder without a manifest makes no library."""
    with pytest.raises(RuntimeError, match="cmake"):
        build_libraries(tmp_path, tmp_path, build=tmp_path / "build", native=tmp_path / "native")
    assert not (tmp_path / "native").exists()


def test_headers_are_found_in_the_package_that_brings_them() -> None:
    """``make test-export`` installs it; a folder that is named is the only one looked at."""
    assert find_headers(None) is not None
    assert find_headers(tensorrt_headers()) == tensorrt_headers()
    assert find_headers(Path("/nowhere")) is None
