"""The four kernels by name, and a variant's constants as Triton wants them."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from plugins.triton.attend import attend
from plugins.triton.combine import combine
from plugins.triton.mass import mass
from plugins.triton.prepare import prepare
from plugins.triton.variants import Variant

KERNELS = {"prepare": prepare, "attend": attend, "combine": combine, "mass": mass}
# Left alone, ptxas spills to fit one more block on a multiprocessor; it is memory we wait for.
COMPILER_OPTIONS = {"enable_fp_fusion": True, "maxnreg": 255}
DTYPES = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}


def constants_of(variant: Variant) -> dict[str, Any]:
    """The variant's constants, its dtype as a Triton dtype.

    Triton's interpreter holds bfloat16 as bits and multiplies those as integers, so there the
    products are taken in float32.
    """
    constants: dict[str, Any] = dict(variant.constants)
    if "DOT" in constants:
        constants["DOT"] = DTYPES[constants["DOT"]]
        if constants["DOT"] == tl.bfloat16 and triton.knobs.runtime.interpret:
            constants |= {"DOT": tl.float32, "PRECISION": "ieee"}
    return constants
