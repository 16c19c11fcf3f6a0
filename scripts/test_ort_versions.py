"""Runs the operator's tests on other ONNX Runtime versions, each in its own virtual environment.

    python scripts/test_ort_versions.py                   the oldest pyproject.toml allows
    python scripts/test_ort_versions.py 1.25.1 newest     these versions

The newest is what pip puts into a fresh .venv, so ``make test`` has these tests on it already.

Environments are kept under build/ort/ and reused. pip builds the library once, from this tree.
Exit code 0 when every version passes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "ort"
TEST_PACKAGES = ("numpy", "onnx", "pytest", "hypothesis")


def oldest_allowed() -> str:
    """The lower bound on onnxruntime in pyproject.toml, as a full version."""
    match = re.search(r'"onnxruntime>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    if match is None:
        raise SystemExit("pyproject.toml has no lower bound on onnxruntime")
    return match[1] if match[1].count(".") == 2 else f"{match[1]}.0"


def run(*command: str | Path) -> int:
    """Runs a command in the project's root and returns its exit code."""
    print("+", *command, flush=True)
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode


def build_wheel() -> Path:
    """A wheel of this tree."""
    folder = WORK / "wheel"
    for old in folder.glob("*.whl"):
        old.unlink()
    if run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT) != 0:
        raise SystemExit("the wheel does not build")
    return next(folder.glob("edgekv-*.whl"))


def test_version(version: str, wheel: Path) -> bool:
    """True when the operator's tests pass on this version ('newest' = what pip picks)."""
    folder = WORK / version
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    wanted = "onnxruntime" if version == "newest" else f"onnxruntime=={version}"
    install = (python, "-m", "pip", "install", "-q")
    return (
        run(*install, wanted, *TEST_PACKAGES) == 0
        and run(*install, "--no-deps", "--force-reinstall", wheel) == 0
        and run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/operator") == 0
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "versions", nargs="*", help="onnxruntime versions, or newest (default: the oldest)"
    )
    versions = parser.parse_args().versions or [oldest_allowed()]
    wheel = build_wheel()
    failed = [version for version in versions if not test_version(version, wheel)]
    for version in versions:
        print(f"onnxruntime {version}: {'FAILED' if version in failed else 'passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
