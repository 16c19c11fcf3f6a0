"""Runs the kernels as Python, on the CPU. The variable is read when the kernels are imported."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _quiet_garbage() -> Iterator[None]:
    """Pools hold NaN and infinities on purpose; NumPy would warn of each."""
    with np.errstate(all="ignore"):
        yield
