"""The plugin and the program that plays TensorRT's part, built once per session.

TensorRT's headers come from the PyPI package ``kernel-lens`` (Apache-2.0), which
``make test-export`` installs; without them these tests fail, they are not skipped.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.operator.cases import CASES
from tests.plugin.fake_kernels import write_fake_kernels

ROOT = Path(__file__).parents[2]
SHAPE = (64, 16)  # head dimension and page size of the nodes that tests make themselves


@dataclass(frozen=True)
class Build:
    """A build folder's products."""

    folder: Path

    @property
    def plugin(self) -> Path:
        """The TensorRT plugin library."""
        return self.folder / "plugins/tensorrt/libedgekv_tensorrt.so"

    @property
    def fake_driver(self) -> Path:
        """The stand-in for libcuda.so.1."""
        return self.folder / "plugins/tensorrt/libedgekv_fake_cuda.so"

    @property
    def check(self) -> Path:
        """The program that plays TensorRT's part."""
        return self.folder / "plugins/tensorrt/edgekv_plugin_check"

    @property
    def ort_cuda(self) -> Path:
        """The operator for ONNX Runtime's CUDA provider."""
        return self.folder / "plugins/ort_cuda/libedgekv_ort_cuda.so"

    @property
    def ort_cuda_on_cpu(self) -> Path:
        """The same, for the CPU provider and the fake driver."""
        return self.folder / "plugins/ort_cuda/libedgekv_ort_cuda_on_cpu.so"

    @property
    def page_table_check(self) -> Path:
        """The program that prints the page table of the C++ example."""
        return self.folder / "plugins/examples/edgekv_page_table_check"

    @property
    def plan_check(self) -> Path:
        """The program that prints launch plans."""
        return self.folder / "plugins/cuda/edgekv_plan_check"


def tensorrt_headers() -> Path:
    """The folder with NvInferRuntime.h."""
    spec = importlib.util.find_spec("kernel_lens")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("TensorRT's headers are missing: pip install --no-deps kernel-lens")
    return Path(spec.submodule_search_locations[0]) / "include/tensorrt"


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is kept."""
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


def build(
    folder: Path, kernels: Path, *options: str, targets: tuple[str, ...] = ("edgekv_gpu",)
) -> Build:
    """Configure and build everything for a GPU, or some of it, warnings being errors."""
    configure = [
        "cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_CXX_FLAGS=-Werror -O1",  # with assertions, without debugging symbols
        "-DEDGEKV_TENSORRT=ON", "-DEDGEKV_ORT_CUDA=ON", "-DEDGEKV_PLUGIN_CHECK=ON",
        "-DEDGEKV_EXAMPLES=ON",
        f"-DEDGEKV_TENSORRT_INCLUDE_DIR={tensorrt_headers()}", f"-DEDGEKV_KERNELS_DIR={kernels}",
        *options,
    ]  # fmt: skip
    make = ["cmake", "--build", str(folder), "--parallel", "2", "--target", *targets]
    for command in (configure, make):
        result = run(command)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return Build(folder)


@pytest.fixture(scope="session")
def fake_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a manifest and cubins for the fake driver: for every operator case, and for
    one shape on two architectures."""
    folder = tmp_path_factory.mktemp("kernels")
    cases = {(case.head_dim, case.page_size) for case in CASES}
    write_fake_kernels(folder, {"sm_87": sorted({SHAPE, *cases}), "sm_90": [SHAPE]})
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, fake_kernels: Path) -> Build:
    """The plugin with fake kernels."""
    return build(tmp_path_factory.mktemp("plugin"), fake_kernels)


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory, fake_kernels: Path) -> Build:
    """What walks the plugin's life, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path_factory.mktemp("sanitized")
    targets = ("edgekv_tensorrt", "edgekv_fake_cuda", "edgekv_plugin_check")
    return build(folder, fake_kernels, "-DEDGEKV_SANITIZE=ON", targets=targets)
