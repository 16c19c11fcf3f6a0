"""Launches what ``compile.py`` made, through CUDA's driver: the very code that ships.

Owns: loaded modules and the packing of arguments. Guarantees: launches on torch's current stream,
in torch's context; a driver error is raised with its number and the call. Compiled in parallel
before the first launch, because Triton compiles one kernel at a time.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch

from plugins.triton.compile import Cubin, compile_variant
from plugins.triton.variants import Variant

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
STATIC_LIMIT = 48 * 1024  # bytes of shared memory that need no attribute
Packed = ctypes.c_int32 | ctypes.c_float | ctypes.c_void_p
C_TYPES: dict[str, Callable[[Any], Packed]] = {"i32": ctypes.c_int32, "fp32": ctypes.c_float}


def variant_key(variant: Variant) -> tuple[object, ...]:
    """What tells compiled variants apart; combine is the same for every pool."""
    constants = tuple(sorted(variant.constants.items()))
    shape = variant.shape
    pool = "" if variant.kernel == "combine" else shape.pool_dtype
    return variant.kernel, shape.query_dtype, pool, variant.num_warps, constants


def compile_all(
    variants: Iterable[Variant], arch: str, tick: Callable[[int, int], None]
) -> dict[tuple[object, ...], Cubin]:
    """Cubins by ``variant_key``, on every core. ``tick`` is told (done, total)."""
    wanted = {variant_key(v): v for v in variants}
    result: dict[tuple[object, ...], Cubin] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        running = {pool.submit(compile_variant, v, arch): key for key, v in wanted.items()}
        for done in as_completed(running):
            result[running[done]] = done.result()
            tick(len(result), len(wanted))
    return result


def pack(cubin: Cubin, given: Mapping[str, Any]) -> list[Packed]:
    """The kernel's parameters in order; tensors become addresses, ``null`` becomes 0."""
    packed: list[Packed] = []
    for name, kind in cubin.args:
        if kind.startswith("*"):
            value = None if name == "null" else given[name]
            assert value is None or isinstance(value, torch.Tensor)
            packed.append(ctypes.c_void_p(0 if value is None else value.data_ptr()))
        else:
            packed.append(C_TYPES[kind](given[name]))
    return packed


class CubinLauncher:
    """Launches variants from a set of cubins."""

    def __init__(self, cubins: Mapping[tuple[object, ...], Cubin]) -> None:
        torch.cuda.init()
        torch.cuda.current_stream()  # the context must exist before a module is loaded into it
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._cubins = cubins
        self._functions: dict[tuple[object, ...], ctypes.c_void_p] = {}

    def __call__(
        self, variant: Variant, grid: tuple[int, int, int], given: Mapping[str, Any]
    ) -> None:
        """One launch."""
        key = variant_key(variant)
        cubin = self._cubins[key]
        if key not in self._functions:
            self._functions[key] = self._load(cubin)
        packed = pack(cubin, given)
        pointers = (ctypes.c_void_p * len(packed))(*(ctypes.addressof(one) for one in packed))
        self._check(
            "cuLaunchKernel", self._functions[key], *(ctypes.c_uint(n) for n in grid),
            ctypes.c_uint(32 * variant.num_warps), ctypes.c_uint(1), ctypes.c_uint(1),
            ctypes.c_uint(cubin.shared_bytes),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), pointers, None,
        )  # fmt: skip

    def _load(self, cubin: Cubin) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin.data))
        symbol = ctypes.c_char_p(cubin.symbol.encode())
        self._check("cuModuleGetFunction", ctypes.byref(function), module, symbol)
        if cubin.shared_bytes > STATIC_LIMIT:
            bytes_ = ctypes.c_int(cubin.shared_bytes)
            self._check("cuFuncSetAttribute", function, ctypes.c_int(MAX_DYNAMIC_SHARED), bytes_)
        return function

    def _check(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with CUDA error {code}")
