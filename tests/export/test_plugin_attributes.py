"""Every node of the operator says what TensorRT's parser asks, in new bundles and in the demo's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import onnx_ir as ir
import pytest

from edgekv.bundle import Bundle
from edgekv.config import KVDtype
from edgekv.names import OP_DOMAIN, OP_NAME, OP_VERSION
from tests.export.conftest import Exported

DEMO = Path(__file__).parents[2] / "models" / "demo"


def check(graph: ir.Graph, mass_layer: int | None) -> None:
    nodes = [n for n in graph if (n.domain, n.op_type) == (OP_DOMAIN, OP_NAME)]
    assert nodes
    taken = [value.name or "" for value in graph.inputs]
    for layer, node in enumerate(nodes):
        assert node.attributes["plugin_version"].as_string() == str(OP_VERSION)
        assert node.attributes["plugin_namespace"].as_string() == "edgekv"
        num_outputs = node.attributes["num_outputs"].as_int()
        pools = 4 if any(name.startswith("key_scales") for name in taken) else 2
        assert num_outputs == 1 + pools + (layer == mass_layer)
        assert num_outputs == sum(output.name != "" for output in node.outputs)


@pytest.mark.parametrize("name", ["llama"])
def test_exported_nodes(name: str, exported: Callable[[str], Exported]) -> None:
    """Output, two pools, and in one layer the mass of the pages."""
    traced = exported(name).traced
    check(traced.graph.graph, traced.mass_layer)


@pytest.mark.parametrize("kv_dtype", get_args(KVDtype))
def test_the_demo_bundle(kv_dtype: KVDtype) -> None:
    """The graphs in the repository are as the exporter writes them."""
    bundle = Bundle.open(DEMO)
    check(ir.load(bundle.decoder_path_for(kv_dtype)).graph, bundle.manifest.mass_layer)
