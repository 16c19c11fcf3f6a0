"""What is said of a bundle that is not one, and ways to make it so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgekv.bundle import Bundle
from edgekv.errors import BundleError


def refused(folder: Path) -> str:
    """What is said of the bundle in ``folder``, which is named first."""
    with pytest.raises(BundleError) as caught:
        Bundle.open(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{folder}: ")
    return message.removeprefix(f"{folder}: ")


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "bundle.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
