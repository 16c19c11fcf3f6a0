"""One case of the shared list as torch tensors, on any device.

Owns: dtypes of a case other than its own (bfloat16 has no NumPy form, so it is rounded to here),
and the comparison with the oracle. Used by the tests under the interpreter and by
``scripts/gpu_check.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from edgekv import oracle
from edgekv.oracle import Attributes, Inputs
from plugins.triton.launch import Blocks, Node
from plugins.triton.run import Launcher, Operator, Options, Tensors, make_shape
from tests.operator.build import build
from tests.operator.cases import Case

WRITTEN = ("key_pool", "value_pool", "key_scales", "value_scales")
# By the dtype products are computed in: float32 sums, or operands rounded to 11 or 8 bits.
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 8e-2}
SMALL = Blocks(
    decode_m=16, decode_n=16, prefill_m=64, prefill_n=16, prepare_m=16, mass_n=32
)  # steps so short that even small cases are cut into parts


@dataclass(frozen=True)
class Difference:
    """Largest differences from the oracle; ``written`` = pools and scales are the same bits."""

    output: float
    mass: float  # relative to the largest mass, which many tokens add up to
    written: bool


def with_dtype(case: Case, dtype: str) -> Case:
    """The case with queries and pools of a dtype; int8 pools stay."""
    pool = "int8" if case.pool_dtype == "int8" else dtype
    return replace(case, query_dtype=dtype, pool_dtype=pool)  # type: ignore[arg-type]


def to_bfloat16(inputs: Inputs) -> Inputs:
    """Float inputs rounded to what bfloat16 holds, still as float32."""

    def rounded(array: np.ndarray | None) -> np.ndarray | None:
        if array is None or array.dtype != np.float32:
            return array
        return torch.from_numpy(array).bfloat16().float().numpy()

    names = ("query", "key", "value", "key_pool", "value_pool")
    return replace(inputs, **{name: rounded(getattr(inputs, name)) for name in names})


def make_tensors(inputs: Inputs, device: torch.device, *, bfloat16: bool = False) -> Tensors:
    """Copies of the inputs on a device, and an output filled with what must not stay."""
    arrays = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    given = {
        name: torch.from_numpy(np.ascontiguousarray(array).copy()).to(device)
        for name, array in arrays.items()
        if array is not None and name in Tensors.__dataclass_fields__
    }
    if bfloat16:
        for name in ("query", "key", "value", "key_pool", "value_pool"):
            if name in given and given[name].dtype == torch.float32:
                given[name] = given[name].bfloat16()
    given.setdefault("key", None)  # type: ignore[arg-type]
    given.setdefault("value", None)  # type: ignore[arg-type]
    return Tensors(output=torch.full_like(given["query"], 777.0), **given)


def make_operator(
    attributes: Attributes,
    tensors: Tensors,
    *,
    sms: int | None = None,
    sizes: Blocks | None = None,
    launcher: Launcher | None = None,
) -> Operator:
    """The node of a call."""
    node = Node(
        attributes.num_heads,
        attributes.num_kv_heads,
        attributes.head_dim,
        tensors.key_pool.shape[2],
        read_only=tensors.key is None,
        page_mass=tensors.page_mass is not None,
    )
    options = Options(
        attributes.scale,
        attributes.softcap,
        attributes.window,
        attributes.inv_freq,
        attributes.freq_axes,
        attributes.rotary_interleaved,
    )
    shape = make_shape(tensors, head_dim=attributes.head_dim, softcap=attributes.softcap != 0)
    device = tensors.query.device
    return Operator(node, options, shape, device, sms=sms, sizes=sizes, launcher=launcher)


def run(
    attributes: Attributes,
    inputs: Inputs,
    device: torch.device | None = None,
    *,
    sms: int | None = None,
    sizes: Blocks | None = None,
    bfloat16: bool = False,
) -> Tensors:
    """The call's tensors after the call."""
    tensors = make_tensors(inputs, device or torch.device("cpu"), bfloat16=bfloat16)
    make_operator(attributes, tensors, sms=sms, sizes=sizes)(tensors)
    return tensors


def compare(
    case: Case,
    device: torch.device | None = None,
    *,
    sms: int | None = None,
    sizes: Blocks | None = None,
    bfloat16: bool = False,
    launcher: Launcher | None = None,
) -> Difference:
    """Runs a case and sets it beside the oracle."""
    call = build(case)
    inputs = to_bfloat16(call.inputs) if bfloat16 else call.inputs
    tensors = make_tensors(inputs, device or torch.device("cpu"), bfloat16=bfloat16)
    operator = make_operator(call.attributes, tensors, sms=sms, sizes=sizes, launcher=launcher)
    operator(tensors)
    expected = oracle.paged_attention(call.attributes, inputs)
    return Difference(
        output=largest_difference(tensors.output, expected.output),
        mass=largest_difference(tensors.page_mass, expected.page_mass)
        / largest(expected.page_mass),
        written=all(same(getattr(tensors, name), getattr(expected, name)) for name in WRITTEN),
    )


def check(difference: Difference, case: Case, dtype: str | None = None) -> None:
    """Fails if a case's result is not the oracle's."""
    tolerance = TOLERANCE[dtype or case.query_dtype]
    assert difference.output <= tolerance, f"output differs by {difference.output}"
    assert difference.mass <= tolerance, f"page mass differs by {difference.mass}"
    assert difference.written, "pools or scales differ"


def largest_difference(tensor: torch.Tensor | None, expected: np.ndarray | None) -> float:
    """0.0 for nothing; NaN on one side only is infinite."""
    if tensor is None or expected is None:
        assert tensor is None
        assert expected is None
        return 0.0
    got = tensor.float().cpu().numpy()
    if got.size == 0:
        return 0.0
    both_nan = np.isnan(got) & np.isnan(expected)
    difference = np.where(both_nan, 0.0, np.abs(got - expected.astype(np.float32)))
    return float(np.nan_to_num(difference, nan=np.inf).max())


def largest(expected: np.ndarray | None) -> float:
    """At least 1.0."""
    return 1.0 if expected is None else max(1.0, float(np.abs(expected).max(initial=0.0)))


def same(tensor: torch.Tensor | None, expected: np.ndarray | None) -> bool:
    """Equal bit for bit, a NaN to any NaN."""
    if tensor is None or expected is None:
        return tensor is None and expected is None
    got = tensor.cpu()
    if got.dtype == torch.bfloat16:
        got, wanted = got.float(), torch.from_numpy(expected).bfloat16().float()
    else:
        wanted = torch.from_numpy(expected)
    return bool(np.array_equal(got.numpy(), wanted.numpy(), equal_nan=True))
