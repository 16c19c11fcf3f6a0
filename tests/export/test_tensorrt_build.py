"""The real ONNX parser and builder of NVIDIA's (TensorRT-RTX) over exported graphs, without a GPU.

What is built is cut at the operator (see ``rtx``): the operator itself is the plugin's to prove.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

pytest.importorskip("tensorrt_rtx_bindings", reason="pip install 'edgekv[gpu-test]'")

from edgekv import names
from edgekv.bundle import Bundle
from edgekv.demo_bundle import demo_bundle_path
from edgekv.errors import BudgetError, ExecutorError
from edgekv.executors import EngineSource, device_reports
from edgekv.executors.cuda_driver import CudaDriver
from edgekv.executors.signature import Signature, decoder_signature, vision_signature
from edgekv.executors.tensorrt.engine_cache import EngineKey, cached_engine
from edgekv.executors.tensorrt.jobs import vision_job
from edgekv.executors.tensorrt.profiles import (
    Profile,
    Range,
    StepLimits,
    decoder_profiles,
    vision_profile,
)
from edgekv.export.build import ExportOptions, export_bundle
from tests.executors.host_cuda import HostCuda
from tests.export import rtx
from tests.export.vlm import save_vlm

trt: Any = rtx.stand_in()

from edgekv.executors.tensorrt.build import (  # noqa: E402 - after the stand-in
    BuildOptions,
    Log,
    build_engine,
    create_network,
    load_plugins,
    network_signature,
)
from edgekv.executors.tensorrt.running import provide_engine  # noqa: E402

EXPORTS = ["demo", "20-fp16", "23-int4"]


@pytest.fixture(scope="module", params=EXPORTS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The demo bundle, or a tiny model of its family exported with an opset and kind of weights."""
    if request.param == "demo":
        return Bundle.open(demo_bundle_path())
    opset, weights = request.param.split("-")
    root = tmp_path_factory.mktemp(request.param)
    save_vlm("SmolVLM", root / "hf")
    options = ExportOptions(weights=weights, opset=int(opset))
    export_bundle(root / "hf", root / "bundle", options, lambda _: None)
    return Bundle.open(root / "bundle")


def signatures(bundle: Bundle) -> tuple[Signature, Signature]:
    """The decoder's and the vision graph's."""
    manifest, image = bundle.manifest, bundle.image
    assert image is not None
    return decoder_signature(
        bundle.geometry,
        hidden_size=manifest.hidden_size,
        vocab_size=manifest.vocab_size,
        page_mass=manifest.mass_layer is not None,
    ), vision_signature(
        height=image.height,
        width=image.width,
        tokens_per_image=bundle.tokens_per_image,
        hidden_size=manifest.hidden_size,
    )


def parsed(graph: Path) -> Signature:
    network = create_network(trt.Builder(log := Log()))
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(str(graph)), parser.get_error(0).desc()
    return network_signature(network)


def test_every_node_but_the_operator_is_accepted(bundle: Bundle, tmp_path: Path) -> None:
    refused = rtx.refused_nodes(bundle.decoder_path)
    assert {(node.operator, "Plugin not found" in node.reason) for node in refused} == {
        (names.OP_NAME, True)
    }
    assert len(refused) == bundle.geometry.num_layers
    # The parser looks no further behind a refused node; without them it reads all of the rest.
    cut = tmp_path / "cut.onnx"
    assert rtx.cut_at_operator(bundle.decoder_path, cut) == bundle.geometry.num_layers
    assert rtx.refused_nodes(cut) == []
    vision = bundle.vision_path
    assert vision is not None
    assert rtx.refused_nodes(vision) == []


def test_decoder_parts_build_for_both_profiles(bundle: Bundle, tmp_path: Path) -> None:
    """With the profiles the runtime uses, and with what the operator gives as inputs."""
    cut = tmp_path / "cut.onnx"
    rtx.cut_at_operator(bundle.decoder_path, cut)
    signature = parsed(cut)
    limits = StepLimits(num_pages=300, page_size=bundle.geometry.page_size, max_columns=300)
    profiles = rtx.profiles_of_cut(signature, decoder_profiles(signatures(bundle)[0], limits))
    options = BuildOptions(weights=bundle.manifest.weights)
    engine = build_engine(cut, profiles, signature, options, logger=Log())
    assert len(memoryview(engine)) > 50_000


def test_vision_engine_is_built_once_and_again_for_another_size(
    bundle: Bundle, tmp_path: Path
) -> None:
    graph, signature = bundle.vision_path, signatures(bundle)[1]
    assert graph is not None
    built: list[str] = []
    seen: list[tuple[str, float]] = []

    def engine(device: str) -> bytes:
        key = EngineKey(
            bundle=bundle.manifest.name,
            bundle_sha256=bundle.weights_sha256,
            graph=graph.name,
            tensorrt=trt.__version__,
            device=device,
            compute_capability=(8, 6),
            plugin_sha256="",
            profiles=(vision_profile(signature),),
        )

        def build() -> Any:
            built.append(device)
            options = BuildOptions(weights=bundle.manifest.weights)
            return build_engine(
                graph, key.profiles, signature, options, logger=Log(),
                progress=lambda phase, share: seen.append((phase, share)),
            )  # fmt: skip

        return bytes(cached_engine(tmp_path, key, build))

    first = engine("A")
    assert engine("A") == first
    assert built == ["A"]
    engine("B")
    assert built == ["A", "B"]
    assert len(first) > 50_000
    assert seen
    assert all(0 <= share <= 1 for _, share in seen)
    assert seen[-1][1] == 1


def test_a_report_that_fails_ends_the_build_and_is_what_the_caller_gets(bundle: Bundle) -> None:
    graph, signature = bundle.vision_path, signatures(bundle)[1]
    assert graph is not None
    told: list[str] = []

    def report(phase: str, share: float) -> None:
        told.append(phase)
        if share:
            raise ZeroDivisionError("the window was closed")

    with pytest.raises(ZeroDivisionError, match="the window was closed"):
        build_engine(
            graph, [vision_profile(signature)], signature, BuildOptions(), logger=Log(),
            progress=report,
        )  # fmt: skip
    assert told


def test_a_graph_that_is_not_the_bundles_is_refused(bundle: Bundle) -> None:
    graph, wrong = (
        bundle.vision_path,
        vision_signature(height=1, width=1, tokens_per_image=1, hidden_size=1),
    )
    assert graph is not None
    with pytest.raises(ExecutorError, match=r"vision.onnx: expected an input pixel_values \(any,"):
        build_engine(graph, [vision_profile(wrong)], wrong, BuildOptions(), logger=Log())


def test_a_decoder_without_the_plugin_says_which_node(bundle: Bundle) -> None:
    signature = signatures(bundle)[0]
    limits = StepLimits(num_pages=8, page_size=bundle.geometry.page_size, max_columns=8)
    with pytest.raises(
        ExecutorError, match=r"cannot read decoder.onnx: node .*\(PagedAttention\): .*Plugin not"
    ):
        build_engine(
            bundle.decoder_path, decoder_profiles(signature, limits), signature, BuildOptions(),
            logger=Log(),
        )  # fmt: skip


def test_a_profile_outside_the_graph_says_so() -> None:
    bundle = Bundle.open(demo_bundle_path())
    graph, signature = bundle.vision_path, signatures(bundle)[1]
    assert graph is not None
    shape = (1, 3, 7, 7)
    profile = Profile("vision", {names.PIXEL_VALUES: Range(shape, shape, shape)})
    with pytest.raises(ExecutorError, match=r"cannot build vision.onnx: .*pixel_values"):
        build_engine(graph, [profile], signature, BuildOptions(), logger=Log())


def test_a_node_of_a_newer_opset_comes_with_advice(tmp_path: Path) -> None:
    """As RMSNormalization is to TensorRT 10.3."""
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    node = helper.make_node("NotYetKnown", ["x"], ["y"], name="norm")
    model = helper.make_model(helper.make_graph([node], "g", [shape], [result]))
    path = tmp_path / "decoder.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        ExecutorError, match=r"node norm \(NotYetKnown\): .*; try a bundle exported with --opset 20"
    ):
        build_engine(path, [], Signature({}, {}), BuildOptions(), logger=Log())


def test_no_graph_at_all(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(ExecutorError, match=r"TensorRT cannot read decoder.onnx"):
        build_engine(path, [], Signature({}, {}), BuildOptions(), logger=Log())


def test_engines_are_provided_once_for_what_they_are_for(
    bundle: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the executor asks for them: by bundle, device, TensorRT and profiles; refused before the
    build begins when it would not fit."""
    graph, signature = bundle.vision_path, signatures(bundle)[1]
    assert graph is not None
    job, seen = vision_job(graph, signature), []

    def provide(folder: Path, cuda: HostCuda) -> bytes:
        source = EngineSource(
            folder,
            bundle.manifest.name,
            bundle.weights_sha256,
            bundle.manifest.weights,
            lambda *said: seen.append(said),
        )
        return bytes(provide_engine(job, source, cuda))

    first = provide(tmp_path, HostCuda())
    assert {name for name, _, _ in seen} == {graph.name}
    seen.clear()
    assert provide(tmp_path, HostCuda()) == first
    assert not seen
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
    with pytest.raises(BudgetError, match=r"building the engine of vision\.onnx takes"):
        provide(tmp_path / "other", HostCuda(limit=1000))
    assert not (tmp_path / "other").exists()


def test_a_plugin_that_cannot_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libedgekv_tensorrt.so"
    library.write_bytes(b"no library")
    with pytest.raises(ExecutorError, match=r"TensorRT cannot load .*libedgekv_tensorrt.so: "):
        load_plugins([library], Log())


@pytest.mark.skipif(not device_reports()[0].problems, reason="there is a GPU here")
def test_no_driver_is_one_line() -> None:
    with pytest.raises(ExecutorError, match=r"^CUDA: [^\n]*$"):
        CudaDriver()


FIND_PLUGIN = """
import os, sys
import numpy as np
import tensorrt_rtx_bindings as trt
from edgekv import names

class Creator(trt.IPluginCreatorV3One):
    def __init__(self):
        super().__init__()
        self.name, self.plugin_namespace = names.OP_NAME, names.OP_DOMAIN
        self.plugin_version = str(names.OP_VERSION)
        empty, kind = np.zeros(1), trt.PluginFieldType
        kinds = {"schema_version": kind.INT32, "num_outputs": kind.INT32, "inv_freq": kind.FLOAT32}
        self.field_names = trt.PluginFieldCollection(
            [trt.PluginField(name, empty, kind) for name, kind in kinds.items()]
        )
    def create_plugin(self, name, fields, phase):
        print(*sorted(field.name for field in fields))
        sys.stdout.flush()
        os._exit(0)  # what follows would abort the process

creator = Creator()
trt.get_plugin_registry().register_creator(creator, names.OP_DOMAIN)
log = trt.Logger(trt.Logger.INTERNAL_ERROR)
network = trt.Builder(log).create_network(0)
trt.OnnxParser(network, log).parse_from_file(sys.argv[1])
"""


def test_the_parser_asks_for_our_plugin_by_the_operators_version(bundle: Bundle) -> None:
    """Name, version and namespace as the plugin library registers itself with, and its fields."""
    command = [sys.executable, "-c", FIND_PLUGIN, str(bundle.decoder_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stdout == "inv_freq num_outputs schema_version\n", answer.stderr
