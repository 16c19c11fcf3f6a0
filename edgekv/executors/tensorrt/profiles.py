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
Purpose = Literal["decode", "prefill", "vision"]

# The open dimensions of each input, in order: the letters of docs/paged_attention.md; "B + 1"
# counts edges of rows.
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
}
_POOL = ("P", "S")


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step an engine takes."""

    num_pages: int  # of the pool
    page_size: int
    max_columns: int  # pages one sequence may hold
    max_step_tokens: int = 256  # of a prefill chunk
    max_rows: int = 8  # sequences in one step

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


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
    pages, columns = power_of_two(limits.num_pages), power_of_two(limits.max_columns)
    rows = limits.max_rows
    shared = {
        "B": (1, 1, rows),
        "B + 1": (2, 2, rows + 1),
        "M": (1, min(256, columns), columns),
        "P": (1, pages, pages),
        "S": (limits.page_size,) * 3,
    }
    chunk = max(limits.max_step_tokens, rows)
    decode = {**shared, "T": (1, 1, rows), "N": (1, 1, rows)}
    prefill = {**shared, "T": (1, chunk, chunk), "N": (1, 1, rows)}
    return (
        Profile("decode", _ranges(signature, decode)),
        Profile("prefill", _ranges(signature, prefill)),
    )


def vision_profile(signature: Signature) -> Profile:
    """Pictures one at a time: a static shape is what TensorRT is fastest at."""
    ((name, (_, dims)),) = signature.taken.items()
    shape = (1, *(size for size in dims[1:] if size is not None))
    return Profile("vision", {name: Range(shape, shape, shape)})


def _ranges(signature: Signature, bounds: Mapping[str, tuple[int, int, int]]) -> dict[str, Range]:
    return {
        name: Range(*(_filled(name, dims, bounds, which) for which in range(3)))
        for name, (_, dims) in signature.taken.items()
    }


def _filled(
    name: str,
    dims: Iterable[int | None],
    bounds: Mapping[str, tuple[int, int, int]],
    which: int,
) -> Dims:
    letters = iter(_OPEN.get(name, _POOL))
    return tuple(bounds[next(letters)][which] if size is None else size for size in dims)
