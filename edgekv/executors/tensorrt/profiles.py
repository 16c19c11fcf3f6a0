"""Which shapes an engine is built for: one optimisation profile for decode, one for prefill.

Owns: the meaning of every open dimension of ``edgekv.names`` and its bounds. Guarantees: whatever
the runtime sends lies inside a profile, or one line says what does not; two runs with budgets of
about the same size share an engine, since the pool's bound is rounded up to a power of two.
Does not know TensorRT, files or memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from edgekv import names
from edgekv.errors import ExecutorError
from edgekv.executors.device_table import power_of_two
from edgekv.executors.signature import Signature

Dims = tuple[int, ...]
Purpose = Literal["decode", "prefill", "vision", "encoder", "cross"]

# The open dimensions of each input, in order: the letters of docs/paged_attention.md; "B + 1"
# counts edges of rows, "MX" and "PX" are M and P of what cross-attention reads.
_OPEN: dict[str, tuple[str, ...]] = {
    names.INPUTS_EMBEDS: ("T",),
    names.POSITION_IDS: ("T",),
    names.LOGIT_INDICES: ("N",),
    names.PAGE_TABLE: ("B", "M"),
    names.QUERY_STARTS: ("B + 1",),
    names.SLOT_MAPPING: ("T",),
    names.KV_LIMITS: ("T",),
    names.QUERY_INDICES: ("T",),
    names.MASS_WEIGHTS: ("B",),
    names.PAGE_MASS: ("P",),
    names.CROSS_PAGE_TABLE: ("B", "MX"),
    names.CROSS_KV_LIMITS: ("T",),
    names.PIXEL_VALUES: ("pictures",),
}
_POOL, _CROSS_POOL = ("P", "S"), ("PX", "S")

Bounds = tuple[int, int, int]  # least, usual, most


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step an engine takes."""

    num_pages: int  # of the pool
    page_size: int
    max_columns: int  # pages one sequence may hold
    max_step_tokens: int = 256  # of a prefill chunk
    max_rows: int = 8  # sequences in one step
    num_cross_pages: int = 0  # of the pools that cross-attention reads, 0 = there are none

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least = int(name != "num_cross_pages")
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Range:
    """Shapes of one input: the least, the one to be fastest at, the largest."""

    least: Dims
    usual: Dims
    most: Dims

    @property
    def all(self) -> tuple[Dims, Dims, Dims]:
        """Least, usual, most."""
        return self.least, self.usual, self.most

    def admits(self, shape: Dims) -> bool:
        """Whether a tensor of ``shape`` may be sent."""
        return len(shape) == len(self.least) and all(
            low <= size <= high
            for low, size, high in zip(self.least, shape, self.most, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """One optimisation profile: a range for each input."""

    purpose: Purpose
    ranges: Mapping[str, Range]

    def check(self, shapes: Mapping[str, Dims]) -> None:
        """Raise ExecutorError naming the first input that the engine was not built for."""
        for name, shape in shapes.items():
            wanted = self.ranges[name]
            if not wanted.admits(shape):
                raise ExecutorError(
                    f"the engine's {self.purpose} profile takes {name} from {wanted.least} to "
                    f"{wanted.most}, got {shape}"
                )


def decoder_profiles(signature: Signature, limits: StepLimits) -> tuple[Profile, Profile]:
    """Decode (a token a row) and prefill (chunks) of a decoder with this signature."""
    rows = limits.max_rows
    shared = {
        "B": (1, 1, rows),
        "B + 1": (2, 2, rows + 1),
        "M": _columns(limits.max_columns),
        "P": _pages(limits.num_pages),
        "S": (limits.page_size,) * 3,
    }
    if limits.num_cross_pages:  # an input may have all of them
        shared["MX"] = _columns(limits.num_cross_pages)
        shared["PX"] = _pages(limits.num_cross_pages)
    chunk = max(limits.max_step_tokens, rows)
    decode = {**shared, "T": (1, 1, rows), "N": (1, 1, rows)}
    prefill = {**shared, "T": (1, chunk, chunk), "N": (1, 1, rows)}
    return (
        Profile("decode", _ranges(signature, decode)),
        Profile("prefill", _ranges(signature, prefill)),
    )


def vision_profile(signature: Signature) -> Profile:
    """Pictures one at a time: a static shape is what TensorRT is fastest at."""
    return Profile("vision", _ranges(signature, {"pictures": (1, 1, 1)}))


def encoder_profile(signature: Signature) -> Profile:
    """The encoder of what cross-attention sees, whose graph has one shape."""
    return Profile("encoder", _ranges(signature, {}))


def cross_profile(signature: Signature, *, num_pages: int, page_size: int) -> Profile:
    """What writes cross pools of ``num_pages`` pages, one input at a time."""
    bounds = {"PX": _pages(num_pages), "S": (page_size,) * 3}
    return Profile("cross", _ranges(signature, bounds))


def _pages(num_pages: int) -> Bounds:
    """Of a pool; rounded up, so that budgets of about one size share an engine."""
    most = power_of_two(num_pages)
    return 1, most, most


def _columns(max_columns: int) -> Bounds:
    """Of a page table."""
    most = power_of_two(max_columns)
    return 1, min(256, most), most


def _ranges(signature: Signature, bounds: Mapping[str, Bounds]) -> dict[str, Range]:
    return {
        name: Range(*(_filled(name, dims, bounds, which) for which in range(3)))
        for name, (_, dims) in signature.taken.items()
    }


def _filled(
    name: str,
    dims: Iterable[int | None],
    bounds: Mapping[str, Bounds],
    which: int,
) -> Dims:
    letters = iter(_OPEN.get(name, _CROSS_POOL if names.is_cross_pool(name) else _POOL))
    return tuple(bounds[next(letters)][which] if size is None else size for size in dims)
