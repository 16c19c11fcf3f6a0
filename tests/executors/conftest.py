"""GPUs made of host memory, one kind a test."""

from __future__ import annotations

import pytest

from tests.executors.host_gpus import HostGpus, use_host_gpus


@pytest.fixture(params=[False, True], ids=["discrete", "integrated"])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> HostGpus:
    return use_host_gpus(monkeypatch, integrated=request.param)
