"""The operator on torch tensors: the launches of ``launch.md``, from Python.

Owns: the readable launcher. On a GPU it runs compiled kernels, under ``TRITON_INTERPRET=1`` (set
before this module is imported) the same kernels on the CPU. Guarantees: between ``Operator(...)``
and the launches nothing is allocated but what ``workspace`` gives; nothing is read from the
device. Checks nothing: the callers' rules of docs/paged_attention.md hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from plugins.triton import launch
from plugins.triton.kernels import COMPILER_OPTIONS, KERNELS, constants_of
from plugins.triton.launch import Blocks, Node, Plan, Sizes
from plugins.triton.variants import PoolDtype, QueryDtype, Shape, Variant, blocks, variants

QUERY_DTYPES: dict[torch.dtype, QueryDtype] = {
    torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
}  # fmt: skip
POOL_DTYPES: dict[torch.dtype, PoolDtype] = {**QUERY_DTYPES, torch.int8: "int8"}
PARTS = {
    "starts": torch.int32, "run_ends": torch.int32, "lse": torch.float32, "stats": torch.float32,
    "partial": torch.float32,
}  # fmt: skip


Launcher = Callable[[Variant, tuple[int, int, int], Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Options:
    """Attributes of a node that are not sizes; names as in docs/paged_attention.md."""

    scale: float
    softcap: float = 0.0
    window: int = 0
    inv_freq: tuple[float, ...] = ()
    freq_axes: tuple[int, ...] = ()
    rotary_interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Tensors:
    """Inputs and outputs of a call, contiguous and on one device. Pools are written in place."""

    output: torch.Tensor  # (T, Hq * D), out
    query: torch.Tensor  # (T, Hq * D)
    key: torch.Tensor | None  # (T, Hk * D), None = read-only pages
    value: torch.Tensor | None
    key_pool: torch.Tensor  # (P, Hk, S, D)
    value_pool: torch.Tensor
    page_table: torch.Tensor  # (B, M, 2 + A) int32
    query_starts: torch.Tensor  # (B + 1,) int32
    slot_mapping: torch.Tensor  # (T,) int32
    kv_limits: torch.Tensor  # (T,) int32
    query_indices: torch.Tensor  # (T,) int32
    sinks: torch.Tensor | None = None  # (Hq,) float32
    key_scales: torch.Tensor | None = None  # (P, Hk, S) float32
    value_scales: torch.Tensor | None = None
    page_mass: torch.Tensor | None = None  # (P,) float32, added to
    mass_weights: torch.Tensor | None = None  # (B,) float32


class Operator:
    """One node: its variants and its constants on the device."""

    def __init__(
        self,
        node: Node,
        options: Options,
        shape: Shape,
        device: torch.device,
        *,
        sms: int | None = None,  # None = as many as the device has
        sizes: Blocks | None = None,  # None = as compiled ahead of time
        launcher: Launcher | None = None,  # None = Triton's own, which compiles at the first launch
    ) -> None:
        self.node, self.options = node, options
        self.sms = num_sms(device) if sms is None else sms
        self.launcher = launcher or launch_with_triton
        self.blocks = sizes or blocks(shape)
        self.variants = {(v.kernel, v.config): v for v in variants(shape, self.blocks)}
        pairs = len(options.inv_freq)
        self.turns = torch.tensor(launch.turns(options.inv_freq), dtype=torch.int64, device=device)
        axes = options.freq_axes or (0,) * pairs
        self.freq_axes = torch.tensor(axes, dtype=torch.int32, device=device)

    def plan_for(self, tensors: Tensors) -> Plan:
        """Launches and workspace of a call."""
        B, M = tensors.page_table.shape[:2]
        return launch.plan(self.node, Sizes(tensors.query.shape[0], B, M), self.blocks, self.sms)

    def __call__(self, tensors: Tensors, workspace: torch.Tensor | None = None) -> None:
        """One call. ``workspace`` is uint8, at least ``plan_for(tensors).workspace_bytes`` long."""
        plan = self.plan_for(tensors)
        if workspace is None:
            device = tensors.query.device
            workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
        given = self._arguments(tensors, plan, workspace)
        for one in plan.launches:
            self.launcher(self.variants[one.kernel, one.config], one.grid, given)

    def _arguments(
        self, tensors: Tensors, plan: Plan, workspace: torch.Tensor
    ) -> dict[str, object]:
        """Every argument a kernel may name; pointers a call lacks are the query's, never read."""
        node, options = self.node, self.options
        B, M, stride = tensors.page_table.shape
        given: dict[str, object] = {
            name: getattr(tensors, name) for name in Tensors.__dataclass_fields__
        }
        for name, dtype in PARTS.items():
            offset, size = plan.workspace.get(name, (0, 0))
            given[name] = workspace[offset : offset + size].view(dtype)
        for name, like in (("key", tensors.query), ("value", tensors.query)):
            given[name] = like if given[name] is None else given[name]
        for name in ("sinks", "key_scales", "value_scales"):
            given[name] = given["starts"] if given[name] is None else given[name]
        return given | {
            "turns": self.turns, "freq_axes": self.freq_axes,
            "num_tokens": tensors.query.shape[0], "num_rows": B, "num_columns": M,
            "table_stride": stride, "num_heads": node.num_heads,
            "num_kv_heads": node.num_kv_heads, "rotary_pairs": len(options.inv_freq),
            "interleaved": int(options.rotary_interleaved), "window": options.window,
            "has_sinks": int(tensors.sinks is not None),
            "has_lse": int(tensors.page_mass is not None),
            "num_splits": plan.num_splits, "num_writers": plan.num_writers,
            "scale": options.scale, "softcap": options.softcap,
        }  # fmt: skip


def make_shape(tensors: Tensors, *, head_dim: int, softcap: bool) -> Shape:
    """The shape whose variants serve these tensors."""
    return Shape(
        head_dim,
        tensors.key_pool.shape[2],
        QUERY_DTYPES[tensors.query.dtype],
        POOL_DTYPES[tensors.key_pool.dtype],
        softcap,
    )


def launch_with_triton(
    variant: Variant, grid: tuple[int, int, int], given: Mapping[str, object]
) -> None:
    """Compiles what is new to this process, or interprets."""
    kernel = KERNELS[variant.kernel]
    constants = constants_of(variant)
    names = [name for name in kernel.arg_names if name not in constants]
    options = {"num_warps": variant.num_warps, **COMPILER_OPTIONS}
    kernel[grid](*(given[name] for name in names), **constants, **options)


def num_sms(device: torch.device) -> int:
    """Multiprocessors of a device; 1 for the interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
