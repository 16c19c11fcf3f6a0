"""From a Hugging Face folder to a bundle: the steps in order.

Owns: the order, and the manifest's numbers. Each step lives in a module of its own.
Guarantees: either a complete bundle stands at the target, or nothing changed there.
Does not know: how progress is shown; the caller passes a function that takes one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import onnx_ir as ir
import torch

from edgekv import names
from edgekv.bundle.manifest import (
    EMBED,
    ENCODER,
    FORMAT_VERSION,
    VISION,
    CrossSettings,
    Manifest,
    QueryOutput,
    WeightsKind,
)
from edgekv.bundle.writer import check_target, hash_files, staged_folder, write_manifest
from edgekv.config import KVDtype, KVGeometry
from edgekv.errors import BundleError
from edgekv.export.attention import LayerCall, use_paged_attention
from edgekv.export.cross import export_cross, export_encoder
from edgekv.export.decoder import DecoderPlan, export_decoder
from edgekv.export.families import CrossPart, Parts, load_parts
from edgekv.export.graph import tidy
from edgekv.export.pools import set_pool_dtype
from edgekv.export.probe import Probe, fixed_context, freeze_frequencies, probe_attention
from edgekv.export.prompt import generation_defaults, write_prompt_files
from edgekv.export.queries import expose_queries
from edgekv.export.source import open_source
from edgekv.export.vision import export_vision
from edgekv.export.weights import store_weights

_EXTERNAL_FROM_BYTES = 1024  # smaller tensors stay inside the .onnx file


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What a user may choose."""

    weights: WeightsKind = "fp16"
    kv_dtype: Literal["float32", "float16"] = "float16"  # what is used when none is named
    page_size: int = 16
    opset: int = 23
    max_context: int | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page size must be at least 1, got {self.page_size}")
        if not 20 <= self.opset <= 23:
            raise ValueError(f"opset must be 20 to 23, got {self.opset}")
        if self.weights == "int4" and self.opset < 21:
            raise ValueError("int4 weights need opset 21 or newer (block-wise DequantizeLinear)")
        if self.max_context is not None and self.max_context < 1:
            raise ValueError(f"max context must be at least 1, got {self.max_context}")


def export_bundle(
    source_path: Path,
    target: Path,
    options: ExportOptions,
    progress: Callable[[str], None],
) -> Manifest:
    """Export the model at ``source_path`` to the bundle folder ``target``. Raises BundleError."""
    check_target(target.absolute(), replace=options.replace)
    progress("reading configuration and tokenizer")
    source = open_source(source_path)
    progress("loading weights")
    parts = load_parts(source)
    with staged_folder(target, replace=options.replace) as folder:
        vision = None if parts.vision is None else parts.vision.settings
        prompt = write_prompt_files(
            folder,
            source,
            parts.frame_text,
            parts.model.generation_config,
            template=parts.chat_template,
        )
        vocab_size, hidden_size = _write_embeddings(folder, parts, options.weights)
        progress("tracing the decoder")
        traced = trace_decoder(
            parts.model, hidden_size, options, forward=parts.decoder, cross=parts.cross
        )
        decoders = save_decoders(folder, traced, options.weights)
        cross = None
        if parts.cross is not None:
            progress("tracing the encoder and the cross-attention")
            cross = _save_cross(folder, parts, traced, hidden_size, options)
        if parts.vision is not None:
            progress("tracing the vision tower")
            parts.model.set_attn_implementation("sdpa")
            graph = export_vision(parts.vision.module, parts.vision.settings, options.opset)
            _save(graph, folder, VISION, options.weights if options.weights == "fp32" else "fp16")
        progress("hashing files")
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            name=target.absolute().name,
            family=parts.family,
            operator_version=names.OP_VERSION,
            opset=options.opset,
            weights=options.weights,
            geometry=traced.geometry,
            decoders=decoders,
            shiftable=traced.probe.shiftable,
            rotations=(distinct := tuple(dict.fromkeys(traced.probe.rotations))),
            layer_rotations=tuple(map(distinct.index, traced.probe.rotations)),
            mass_layer=traced.mass_layer,
            queries=traced.queries,
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            max_context_tokens=_max_context(parts.text_config, options.max_context),
            vision=vision,
            cross=cross,
            prompt=prompt,
            generation=generation_defaults(parts.model.generation_config),
            files=hash_files(folder),
        )
        write_manifest(folder, manifest)
    return manifest


def _write_embeddings(folder: Path, parts: Parts, weights: WeightsKind) -> tuple[int, int]:
    """Rows as the model's own embedding layer yields them, its scaling included."""
    layer = parts.model.get_input_embeddings()
    vocab_size = int(layer.weight.shape[0])
    # A family's own decoder answers for giving a logit for every row.
    head = None if parts.decoder is not None else parts.model.get_output_embeddings()
    if head is not None and head.weight.shape[0] != vocab_size:
        raise BundleError(
            f"the model has {vocab_size} embedding rows but {head.weight.shape[0]} logits"
        )
    with torch.no_grad():
        rows = layer(torch.arange(vocab_size)).numpy()
    if weights != "fp32" and np.abs(rows).max() < np.finfo(np.float16).max:
        rows = rows.astype(np.float16)
    np.save(folder / EMBED, np.ascontiguousarray(rows))
    return vocab_size, int(rows.shape[1])


@dataclass(frozen=True)
class TracedDecoder:
    """A decoder graph in fp32, and what the manifest says about it."""

    graph: ir.Model
    geometry: KVGeometry
    probe: Probe
    mass_layer: int
    queries: QueryOutput
    cross_geometry: KVGeometry | None = None


def trace_decoder(
    model: Any,
    hidden_size: int,
    options: ExportOptions,
    *,
    forward: Any = None,
    cross: CrossPart | None = None,
) -> TracedDecoder:
    """Switch ``model`` to the operator, look at its layers, trace it. Raises BundleError.

    ``forward`` is called in place of ``model`` where a family needs it.
    """
    use_paged_attention(model)
    freeze_frequencies(model)
    modules = {} if cross is None else {layer: place for place, layer in enumerate(cross.layers)}
    try:
        probe = probe_attention(model, hidden_size, forward=forward, cross=modules)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise BundleError(
            f"model type {model.config.model_type!r} cannot be run with the attention interface "
            f"({str(error).splitlines()[0][:200]})"
        ) from error
    geometry = _geometry(probe.calls, options, probe.num_rope_axes)
    cross_geometry = _geometry(probe.cross_calls, options, 0) if modules else None
    plan = DecoderPlan(
        forward=forward or model,
        geometry=geometry,
        hidden_size=hidden_size,
        layers=probe.layers,
        rotations=probe.rotations,
        mass_layer=(mass_layer := choose_mass_layer(geometry.num_layers)),
        cross_geometry=cross_geometry,
        cross_modules=modules,
    )
    graph = export_decoder(plan, options.opset)
    tidy(graph)
    expose_queries(graph, mass_layer)
    return TracedDecoder(
        graph=graph,
        geometry=geometry,
        probe=probe,
        mass_layer=mass_layer,
        queries=QueryOutput(mass_layer, probe.calls[mass_layer].scale),
        cross_geometry=cross_geometry,
    )


def choose_mass_layer(num_layers: int) -> int:
    """Whose attention says which pages are used: two thirds of the way through the layers."""
    return 2 * num_layers // 3


def _geometry(calls: Sequence[LayerCall], options: ExportOptions, num_axes: int) -> KVGeometry:
    return KVGeometry(
        num_layers=len(calls),
        num_kv_heads=int(calls[0].key.shape[1]),
        head_dim=int(calls[0].key.shape[3]),
        page_size=options.page_size,
        dtype=options.kv_dtype,
        num_rope_axes=num_axes,
    )


def save_decoders(folder: Path, traced: TracedDecoder, weights: WeightsKind) -> dict[str, str]:
    """Save the graph once for each KV dtype and the weights once; returns dtype -> file name."""
    return _save_by_kv_dtype(folder, "decoder", traced.graph, traced.geometry.dtype, weights)


def _save_by_kv_dtype(
    folder: Path, name: str, graph: ir.Model, dtype: KVDtype, weights: WeightsKind
) -> dict[str, str]:
    first = f"{name}.onnx"
    _save(graph, folder, first, weights)
    files: dict[str, str] = {dtype: first}
    for other in get_args(KVDtype):
        if other not in files:
            files[other] = f"{name}.{other}-kv.onnx"
            again = ir.load(folder / first)  # its weights stay references into the .data file
            set_pool_dtype(again, other)
            ir.save(again, folder / files[other])
    return files


def _save_cross(
    folder: Path, parts: Parts, traced: TracedDecoder, hidden_size: int, options: ExportOptions
) -> CrossSettings:
    part, geometry = parts.cross, traced.cross_geometry
    assert part is not None
    assert geometry is not None
    parts.model.set_attn_implementation("sdpa")
    encoder, (num_states, states_hidden) = export_encoder(part, options.opset)
    _save(encoder, folder, ENCODER, options.weights if options.weights == "fp32" else "fp16")
    use_paged_attention(parts.model)
    graph = export_cross(
        part,
        geometry,
        num_states=num_states,
        states_hidden=states_hidden,
        decoder_hidden=hidden_size,
        opset=options.opset,
    )
    return CrossSettings(
        geometry=geometry,
        graphs=_save_by_kv_dtype(folder, "cross", graph, geometry.dtype, options.weights),
        hidden_size=states_hidden,
        states_per_part=part.states_per_part,
        placeholder=part.placeholder,
        default_question=part.default_question,
        tiles=part.tiles,
        audio=part.audio,
    )


def _save(graph: ir.Model, folder: Path, name: str, weights: WeightsKind) -> None:
    store_weights(graph, weights)
    ir.save(
        graph,
        folder / name,
        external_data=f"{name}.data",
        size_threshold_bytes=_EXTERNAL_FROM_BYTES,
    )


def _max_context(config: Any, wished: int | None) -> int:
    trained = fixed_context(config) or wished
    if trained is None:
        raise BundleError("the model states no maximum context, give one with --max-context")
    return trained if wished is None else min(trained, wished)
