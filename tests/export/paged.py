"""A decoder graph driven by hand: just enough of a cache to compare logits.

Owns: the pools, a shuffled list of free pages, the tables of one step. The real cache lives in
``edgekv.cache``; this one only appends and forks, so that a fault there cannot hide one here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgekv import names, native
from edgekv.config import KVGeometry

_NUMPY = {"float32": np.float32, "float16": np.float16}


@dataclass
class Row:
    """One sequence of full pages and a last one; pages before ``moved`` stand ``shift`` further."""

    pages: list[int] = field(default_factory=list)
    num_tokens: int = 0
    moved: int = 0
    shift: int = 0
    offset: int = 0  # added to the positions of new tokens


def open_graph(path: Path) -> ort.InferenceSession:
    """A CPU session with the operator registered."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "4")
    options.register_custom_ops_library(str(native.ort_library_path()))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class PagedDecoder:
    """Steps of an exported decoder over pages taken in random order."""

    def __init__(
        self, path: Path, geometry: KVGeometry, *, page_size: int = 4, num_pages: int = 64
    ) -> None:
        self.session = open_graph(path)
        self.page_size = page_size
        self.axes = geometry.num_rope_axes
        shape = (num_pages, geometry.num_kv_heads, page_size, geometry.head_dim)
        self.pools: dict[str, ort.OrtValue] = {}
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        for layer in range(geometry.num_layers):
            for name in (names.key_pool(layer), names.value_pool(layer)):
                array = np.full(shape, np.nan, _NUMPY[geometry.dtype])  # garbage must not matter
                self.arrays[name] = array
                self.pools[name] = ort.OrtValue.ortvalue_from_numpy(array)
        self.mass = np.zeros(num_pages, np.float32)
        self.pools[names.PAGE_MASS] = ort.OrtValue.ortvalue_from_numpy(self.mass)
        self.free = list(np.random.default_rng(7).permutation(num_pages))

    def fork(self, row: Row) -> Row:
        """A row with the same past; the last page is copied if it is not full."""
        child = Row(list(row.pages), row.num_tokens)
        if row.num_tokens % self.page_size:
            child.pages[-1] = self.free.pop()
            for array in self.arrays.values():
                array[child.pages[-1]] = array[row.pages[-1]]
        return child

    def step(
        self,
        rows: list[tuple[Row, np.ndarray[Any, Any]]],
        *,
        logits: list[int] | None = None,
        mass_weight: float = 0.0,
    ) -> np.ndarray[Any, Any]:
        """Append embeddings (n, hidden) to each row; logits of all tokens, or of those named."""
        slots, indices, positions, starts = [], [], [], [0]
        for row, embeds in rows:
            for index in range(row.num_tokens, row.num_tokens + len(embeds)):
                if index % self.page_size == 0:
                    row.pages.append(self.free.pop())
                slots.append(row.pages[-1] * self.page_size + index % self.page_size)
                indices.append(index)
                positions.append(index + row.offset)
            row.num_tokens += len(embeds)
            starts.append(starts[-1] + len(embeds))
        total = starts[-1]
        feeds = {
            names.INPUTS_EMBEDS: np.concatenate([embeds for _, embeds in rows]),
            names.POSITION_IDS: np.array(positions if self.axes <= 1 else [positions] * self.axes),
            names.LOGIT_INDICES: np.array(range(total) if logits is None else logits, np.int64),
            names.PAGE_TABLE: self._table([row for row, _ in rows]),
            names.QUERY_STARTS: np.array(starts, np.int32),
            names.SLOT_MAPPING: np.array(slots, np.int32),
            names.KV_LIMITS: np.array(indices, np.int32) + np.int32(1),
            names.QUERY_INDICES: np.array(indices, np.int32),
            names.MASS_WEIGHTS: np.full(len(rows), mass_weight, np.float32),
        }
        return self._run(feeds)

    def _table(self, rows: list[Row]) -> np.ndarray[Any, Any]:
        width = max(len(row.pages) for row in rows) + 1  # one unused entry, always
        table = np.full((len(rows), width, 2 + self.axes), -1, np.int32)
        for index, row in enumerate(rows):
            count = len(row.pages)
            table[index, :count, 0] = row.pages
            table[index, :count, 1] = self.page_size
            table[index, count - 1, 1] = row.num_tokens - (count - 1) * self.page_size
            table[index, :count, 2:] = 0
            table[index, : row.moved, 2:] = row.shift
        return table

    def _run(self, feeds: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        binding = self.session.io_binding()
        binding.bind_output(names.LOGITS)  # first, as results come in the order of binding
        binding.bind_output(names.QUERIES)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, value in self.pools.items():
            binding.bind_ortvalue_input(name, value)
            target = names.PAGE_MASS_OUT if name == names.PAGE_MASS else name
            binding.bind_ortvalue_output(target.replace("pool.", "pool_out."), value)
        self.session.run_with_iobinding(binding)
        self.queries = binding.get_outputs()[1].numpy()
        return binding.get_outputs()[0].numpy()
