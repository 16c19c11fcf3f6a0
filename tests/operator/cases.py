"""The one list of operator calls on which the oracle, every kernel and every runtime must agree.

Owns: what a case is made of, and the list. Data only: ``build.py`` makes the arrays.

A *piece* is a run of tokens stored page-aligned (a frame, a text). A row *uses* pieces in order,
each with a shift; two rows may use one piece with different shifts, or only its first tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Limits = Literal["causal", "bidirectional", "all", "nothing"]


@dataclass(frozen=True)
class Piece:
    """``num_tokens`` tokens on pages of their own; the last ``num_new`` are written by the call."""

    num_tokens: int
    num_new: int = 0


@dataclass(frozen=True)
class Use:
    """A row's use of a piece: where it stands now, and how many of its tokens the row has.

    ``shift`` is cut or filled with zeros to the case's number of axes.
    """

    piece: int
    shift: tuple[int, ...] = (0,)
    num_tokens: int | None = None


@dataclass(frozen=True)
class Row:
    """One sequence. Its queries are the new tokens of its pieces, then ``num_unwritten`` more."""

    uses: tuple[Use, ...]
    limits: Limits = "causal"
    num_unwritten: int = 0


@dataclass(frozen=True)
class Case:
    """Everything a call is made of; arrays follow from it."""

    name: str
    pieces: tuple[Piece, ...]
    rows: tuple[Row, ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    page_size: int = 8
    num_axes: int = 1
    rotary_dim: int | None = None  # None = all of head_dim, 0 = no rotation
    freq_axes: tuple[int, ...] = ()
    interleaved: bool = False
    softcap: float = 0.0
    window: int = 0
    sinks: bool = False
    read_only: bool = False
    query_dtype: Literal["float32", "float16"] = "float32"
    pool_dtype: Literal["float32", "float16", "int8"] = "float32"
    empty_columns: bool = False  # unused page-table entries between the used ones
    mass_weights: tuple[float, ...] = ()  # one a row; empty = the node has no page_mass
    seed: int = 0

    def __str__(self) -> str:
        return self.name


def _mixed(**options: object) -> Case:
    """Two rows, decode and prefill, with a partial page in the middle and three runs of shifts."""
    pieces = (Piece(5), Piece(19), Piece(16), Piece(9, 1), Piece(12), Piece(21, 13))
    rows = (
        Row((Use(0), Use(1, (-17, 3, -2)), Use(2, (-17, 3, -2)), Use(3))),
        Row((Use(0), Use(4, (-40, 0, 5)), Use(5, (-3, -3, -3)))),
    )
    return Case(pieces=pieces, rows=rows, **options)  # type: ignore[arg-type]


def _axes(count: int, sections: tuple[int, ...]) -> tuple[int, ...]:
    axes = tuple(axis for axis, size in enumerate(sections) for _ in range(size))
    assert len(axes) == count
    return axes


SHAPES = [
    (4, 4, 32, 8), (4, 2, 40, 16), (9, 3, 64, 16), (8, 1, 80, 8), (3, 1, 96, 32),
    (2, 1, 128, 16), (2, 2, 256, 8), (6, 2, 8, 4), (5, 5, 20, 8), (40, 1, 16, 8),
]  # Hq, Hk, D, S; the last group is wider than a kernel's block of rows  # fmt: skip

_PLAIN = [
    Case("decode", (Piece(23, 1),), (Row((Use(0),)),)),
    Case("prefill", (Piece(37, 37),), (Row((Use(0),)),)),
    Case("prefill-one-page", (Piece(8, 8),), (Row((Use(0),)),)),
    Case("first-token", (Piece(1, 1),), (Row((Use(0),)),)),
    Case("chunk-after-context", (Piece(30), Piece(26, 20)), (Row((Use(0, (-9,)), Use(1))),)),
    Case("many-query-blocks", (Piece(60, 50),), (Row((Use(0),)),), num_heads=4, num_kv_heads=1),
    Case("long-decode", (Piece(900, 1),), (Row((Use(0),)),), num_heads=2, num_kv_heads=1),
    Case(
        "long-decode-many-shifts",
        (*(Piece(60 + i) for i in range(11)), Piece(3, 2)),
        (Row((*(Use(i, (-7 * i,)) for i in range(11)), Use(11))),),
        num_heads=3,
        num_kv_heads=1,
        page_size=16,
        sinks=True,
        window=500,
    ),
    Case(  # more page-table columns than a GPU program scans at once, and a run's end far behind
        "many-pages",
        (Piece(3300), Piece(1220, 1)),
        (Row((Use(0, (-3,)), Use(1))),),
        num_heads=1,
        num_kv_heads=1,
        head_dim=16,
        page_size=4,
    ),
    Case(  # more rows than a GPU program searches at once
        "many-rows",
        tuple(Piece(1 + i % 3, 1) for i in range(40)),
        tuple(Row((Use(i),)) for i in range(40)),
        num_heads=2,
        head_dim=16,
        page_size=4,
        num_kv_heads=1,
    ),
    *(
        _mixed(
            name=f"mixed-{hq}x{hk}x{d}-page{s}-{dtype}",
            num_heads=hq,
            num_kv_heads=hk,
            head_dim=d,
            page_size=s,
            pool_dtype=dtype,
        )
        for i, (hq, hk, d, s) in enumerate(SHAPES)
        for dtype in (("float32", "float16", "int8") if i in (2, 3) else ("float32",))
    ),
    _mixed(name="half-query", query_dtype="float16", pool_dtype="float16"),
    _mixed(name="half-query-odd-dim", query_dtype="float16", pool_dtype="float32", head_dim=20),
    _mixed(name="half-query-int8", query_dtype="float16", pool_dtype="int8", head_dim=40),
    _mixed(name="softcap", softcap=1.5),
    _mixed(name="window", window=11),
    _mixed(name="window-one", window=1),
    _mixed(name="sinks", sinks=True),
    _mixed(name="all-options", sinks=True, window=20, softcap=4.0, rotary_dim=16, interleaved=True),
    _mixed(name="partial-rotary", rotary_dim=12, head_dim=40),
    _mixed(name="interleaved", interleaved=True),
    _mixed(name="interleaved-partial", interleaved=True, rotary_dim=24, head_dim=80),
    _mixed(name="no-rotation", rotary_dim=0),
    _mixed(name="no-rope-axes", rotary_dim=0, num_axes=0),
    _mixed(name="axes-in-sections", num_axes=3, freq_axes=_axes(16, (4, 6, 6))),
    _mixed(name="axes-interleaved", num_axes=3, freq_axes=tuple(i % 3 for i in range(16))),
    Case(
        "large-shifts",
        (Piece(9), Piece(14), Piece(4, 2)),
        (Row((Use(0, (1_000_003,)), Use(1, (-999_983,)), Use(2))),),
    ),
    _mixed(name="unused-entries-between", empty_columns=True),
    Case(
        "shared-pages-two-shifts",
        (Piece(6), Piece(20), Piece(3, 1), Piece(4, 2)),
        (
            Row((Use(0), Use(1, (-5,)), Use(2))),
            Row((Use(0), Use(1, (-23,), num_tokens=13), Use(3))),
        ),
    ),
    Case(
        "image-attends-within-itself",
        (Piece(5), Piece(18, 18), Piece(4, 4)),
        (Row((Use(0), Use(1)), "bidirectional"), Row((Use(0, (2,)), Use(2)))),
    ),
    Case(
        "read-only-cross",
        (Piece(30), Piece(11)),
        (Row((Use(0),), "all", num_unwritten=7), Row((Use(1),), "all", num_unwritten=1)),
        read_only=True,
        rotary_dim=0,
    ),
    Case(
        "read-only-int8-rotated",
        (Piece(30), Piece(11)),
        (Row((Use(0, (-4,)), Use(1)), "all", num_unwritten=3),),
        read_only=True,
        pool_dtype="int8",
    ),
    Case("not-written", (Piece(12),), (Row((Use(0, (-3,)),), num_unwritten=4),)),
    Case("sees-nothing", (Piece(9, 3),), (Row((Use(0),), "nothing"),), sinks=True),
    Case("empty-row", (Piece(9, 2), Piece(7)), (Row((Use(1),)), Row((Use(0),)), Row(()))),
    Case("row-without-pages", (), (Row((), num_unwritten=2),)),
    Case("no-tokens", (Piece(9),), (Row((Use(0),)),)),
    Case("no-rows", (), ()),
]

# Each of these again with page_mass, and the weights of its rows.
_WEIGHED = {
    "decode": (1.0,),
    "prefill": (0.5,),
    "chunk-after-context": (2.0,),
    "long-decode-many-shifts": (1.0,),
    "mixed-9x3x64-page16-float16": (1.0, 0.25),
    "mixed-8x1x80-page8-int8": (1.0, 1.0),
    "mixed-40x1x16-page8-float32": (-1.0, 3.0),
    "half-query": (0.0, 1.0),
    "all-options": (1.0, 0.5),
    "window-one": (1.0, 1.0),
    "softcap": (0.0, 0.0),
    "axes-in-sections": (1.0, 1.0),
    "unused-entries-between": (1.0, 1.0),
    "shared-pages-two-shifts": (1.0, 0.5),
    "image-attends-within-itself": (1.0, 1.0),
    "read-only-cross": (1.0, 0.0),
    "read-only-int8-rotated": (1.0,),
    "sees-nothing": (1.0,),
    "empty-row": (1.0, 1.0, 1.0),
    "row-without-pages": (1.0,),
    "no-tokens": (1.0,),
}

CASES = _PLAIN + [
    replace(case, name=f"{case.name}-mass", mass_weights=_WEIGHED[case.name])
    for case in _PLAIN
    if _WEIGHED.get(case.name)
]


def case_named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)
