# SPDX-License-Identifier: Apache-2.0
"""The configs of the kernels that run before and after a GEMM; one that breaks an invariant cannot be made.

`QuantizeConfig` is for the kernel that quantizes to 8 bits, `RowSumConfig` for the one that sums rows by index.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.invariants.rule import Refusal, Rule, check_all
from cutegemm.dtypes import LARGEST, DType, as_dtype
from cutegemm.epilogue.graph import REDUCTIONS

UNITS = ("col", "row", "transposed", "none")
CHUNK = 8  # elements that a thread reads at a time
TILE = 128  # elements of a block of scales along an axis
KINDS = ("1x128", "128x128", "row", "lines", "tensor", "given", "amax", "amax_lines")
MOST_CHUNKS = 8  # of a thread's registers
THREADS = (128, 256, 512, 1024)  # of a CTA that quantises
SUM_THREADS = 128  # threads of a CTA that sums rows
MOST_TERMS = 16  # of a sum: 16 words of 4 registers are 64 of a thread's 255
LEAST_WORDS = 4  # of 16 bytes that such a thread requests at once: 90 KiB or more for an SM


class _Helper:
    """A config as data: element types by name, tuples as lists."""

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        fields = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {name: x.value if isinstance(x, DType) else x for name, x in fields.items()}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Any:
        """Rebuild a config from its `to_data`."""
        types = {name: as_dtype(data[name]) for name in ("source", "dtype") if name in data}
        return cls(**data | types | ({"units": tuple(data["units"])} if "units" in data else {}))


@dataclass(frozen=True, kw_only=True)
class RelayoutConfig(_Helper):
    """Copies of matrices into TMA-addressable workspace."""

    dtype: DType
    # the unit-stride axis that each copy shares with its source, "col" or "row"; "transposed" if rows of the source are
    # adjacent and columns of the copy, of bytes; "none" of whatever else
    units: tuple[str, ...]
    # elements of K of one part, then of the other, of fp32 elements that are split into two of tf32; 0 is no split
    run: int = 0
    family: str = "relayout"

    def __post_init__(self) -> None:
        check_all(_RELAYOUT, self)

    def to_data(self) -> dict[str, Any]:
        """As `_Helper`; `run` only where it is set, and units as a list."""
        data = super().to_data() | {"units": list(self.units)}
        return data if self.run else {name: x for name, x in data.items() if name != "run"}


@dataclass(frozen=True, kw_only=True)
class FinishConfig(_Helper):
    """The finish of reductions in a fixed order: the partial results of each sum, maximum or logsumexp become one.

    `across`: whether neighbours in memory are partial results of different results, or of the same one.
    """

    kind: str
    across: bool
    family: str = "finish"

    def __post_init__(self) -> None:
        check_all(_FINISH, self)


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig(_Helper):
    """The quantisation of a matrix.

    Attributes:
        source, dtype: of its elements and of the values.
        kind: what has a scale, "1x128", "128x128", "row" or the "tensor"; "lines" are rows whose maxima are known.
            "amax" and "amax_lines" find the maxima that "tensor" and "lines" read, and "given" reads the scale.
        threads, chunks: of a CTA, and chunks of elements that each of them holds; a CTA that has a row holds all of it.
        exponents: whether scales of blocks are powers of two, stored as their exponents.
        plain, turned: whether the matrix and whether its transpose are quantised.
    """

    source: DType
    dtype: DType
    kind: str
    threads: int = 256
    chunks: int = MOST_CHUNKS
    exponents: bool = False
    plain: bool = True
    turned: bool = False
    family: str = "quantize"

    def __post_init__(self) -> None:
        check_all(_QUANTIZE, self)

    @property
    def residents(self) -> int:
        """CTAs that share an SM's registers, of which some load while others compute and store."""
        words = self.chunks * CHUNK * self.source.bits // 32
        # beside its elements a thread holds addresses, scales and quotients
        registers = max(40, 22 + words * 9 // 5) + 32 * (self.kind == "given" and self.turned)
        registers = min(registers, 128)
        return max(1, LIMITS.registers_per_sm // (self.threads * registers))

    @property
    def rows(self) -> int:
        """Rows of a CTA's tile."""
        return self.threads * CHUNK // TILE * self.chunks


@dataclass(frozen=True, kw_only=True)
class RowSumConfig(_Helper):
    """Sums of rows of a matrix by index.

    Attributes:
        dtype: of the matrix and of the sums.
        terms: rows that are added to one.
        wide: whether indices are int64 instead of int32.
    """

    dtype: DType
    terms: int
    wide: bool = False
    family: str = "row_sum"

    def __post_init__(self) -> None:
        check_all(_ROW_SUM, self)

    @property
    def rows(self) -> int:
        """Rows of the result of which a thread has a word; it loads those of all their terms at once."""
        return -(-LEAST_WORDS // self.terms)


def _splits(x: RelayoutConfig) -> bool:
    runs = type(x.run) is int and x.run in (4, 8, 16, 32, 64)
    return runs and x.dtype is DType.FP32 and set(x.units) == {"none"}


def _units_refused(x: RelayoutConfig) -> Refusal:
    legal = ", ".join(f'"{unit}"' for unit in UNITS)
    rule = f"a launch makes at least one copy; each one's axis of unit stride is one of {legal}"
    given = x.units if isinstance(x.units, (tuple, list)) else ()
    return "units", x.units, rule, tuple(y if y in UNITS else "none" for y in given) or ("none",)


def _transposed_refused(x: RelayoutConfig) -> Refusal:
    nearest = tuple("none" if y == "transposed" else y for y in x.units)
    return "units", x.units, "elements of one byte are transposed", nearest


def _run_refused(x: RelayoutConfig) -> Refusal:
    rule = "fp32 elements without a unit stride in common are split, in runs of 4 to 64 that divide 64"
    return "run", x.run, rule, 0


def _tiled(x: QuantizeConfig) -> bool:
    """A tile of a block of scales, or that is transposed, has 128 rows; of the latter a thread has eight."""
    whole = x.rows == TILE or not (x.turned or x.kind == "128x128")
    return whole and (x.chunks == CHUNK or not x.turned)


def _tiled_refused(x: QuantizeConfig) -> Refusal:
    rule = f"{x.threads} threads of {x.chunks} chunks do not hold a tile of {TILE} x {TILE} elements"
    if x.turned and x.chunks != CHUNK:
        return "chunks", x.chunks, f"a thread transposes {CHUNK} rows", CHUNK
    every = TILE * TILE // CHUNK  # chunks of a tile
    if not x.turned and every // x.threads <= MOST_CHUNKS:
        return "chunks", x.chunks, rule, every // x.threads
    return "threads", x.threads, rule, every // x.chunks if every // x.chunks in THREADS else THREADS[1]


def _paired(x: QuantizeConfig) -> bool:
    """The maxima of a thread's rows fill whole 32-bit words: two 16-bit rows share one (`eight_bits.maxima`)."""
    combined = x.plain and x.kind in ("1x128", "amax_lines")
    return not combined or x.chunks * x.source.bits % 32 == 0


def _made(x: QuantizeConfig) -> bool:
    """Something is quantised, and a CTA that has a row does not transpose it."""
    return x.plain and not x.turned if x.kind == "row" else x.plain or x.turned


def _made_refused(x: QuantizeConfig) -> Refusal:
    if not x.plain:
        rule = f'kind="{x.kind}" quantises the matrix' + (
            "" if x.kind == "row" else ", its transpose, or both"
        )
        return "plain", x.plain, rule, True
    return "turned", x.turned, 'kind="row" quantises rows, not their transpose', False


def _listed(field: str, legal: tuple[Any, ...], nearest: object = None) -> Rule:
    """A field has one of some values; the first one is the nearest, unless another is named."""
    rule = f"must be one of {', '.join(repr(getattr(y, 'value', y)) for y in legal)}"
    return Rule(
        lambda x: any(type(getattr(x, field)) is type(y) and getattr(x, field) == y for y in legal),
        lambda x: (field, getattr(x, field), rule, nearest or legal[0]),
    )


def _truth(field: str) -> Rule:
    """A field is a bool."""
    return Rule(
        lambda x: isinstance(getattr(x, field), bool),
        lambda x: (field, getattr(x, field), "must be True or False", bool(getattr(x, field))),
    )


def _counted(field: str, most: int) -> Rule:
    """A field is an integer from 1 to what a thread's registers hold."""
    return Rule(
        lambda x: type(getattr(x, field)) is int and 1 <= getattr(x, field) <= most,
        lambda x: (field, getattr(x, field), f"must be from 1 to {most}, which registers hold", most),
    )


_QUANTIZE = (
    _listed("family", ("quantize",)),
    _listed("source", (DType.FP16, DType.BF16, DType.FP32), DType.BF16),
    _listed("dtype", tuple(LARGEST)),
    _listed("kind", KINDS, "row"),
    _listed("threads", THREADS, THREADS[1]),
    *map(_truth, ("exponents", "plain", "turned")),
    _counted("chunks", MOST_CHUNKS),
    Rule(_made, _made_refused),
    Rule(_tiled, _tiled_refused),
    Rule(
        _paired,
        lambda x: (
            "chunks",
            x.chunks,
            "the maxima of two rows of 16-bit elements share a word",
            x.chunks + 1,
        ),
    ),
    Rule(
        lambda x: not x.exponents or x.kind in ("1x128", "128x128"),
        lambda x: ("exponents", x.exponents, "scales of blocks alone are powers of two", False),
    ),
)
_RELAYOUT = (
    _listed("family", ("relayout",)),
    _listed("dtype", tuple(DType), DType.BF16),
    Rule(
        lambda x: isinstance(x.units, tuple) and len(x.units) > 0 and all(unit in UNITS for unit in x.units),
        _units_refused,
    ),
    Rule(lambda x: x.dtype.bytes == 1 or "transposed" not in x.units, _transposed_refused),
    Rule(lambda x: (x.run == 0 and type(x.run) is int) or _splits(x), _run_refused),
)
_ROW_SUM = (
    _listed("family", ("row_sum",)),
    _listed("dtype", (DType.BF16, DType.FP16, DType.FP32)),
    _truth("wide"),
    _counted("terms", MOST_TERMS),
)
_FINISH = (
    _listed("family", ("finish",)),
    _listed("kind", REDUCTIONS),
    _truth("across"),
)
