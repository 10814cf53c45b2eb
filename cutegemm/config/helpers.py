# SPDX-License-Identifier: Apache-2.0
"""The configs of the kernels that run before and after a GEMM; one that breaks an invariant cannot be made.

`QuantizeConfig` is that of the kernel which makes operands of 8 bits.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.invariants.rule import Refused, Rule, check_all
from cutegemm.dtypes import LARGEST, DType, as_dtype
from cutegemm.epilogue.graph import REDUCTIONS

UNITS = ("col", "row", "transposed", "none")
CHUNK = 8  # elements that a thread reads at a time
TILE = 128  # elements of a block of scales along an axis
KINDS = ("1x128", "128x128", "row", "lines", "tensor", "given", "amax", "amax_lines")
MOST_CHUNKS = 8  # of a thread's registers


@dataclass(frozen=True, kw_only=True)
class RelayoutConfig:
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
        """A JSON-serialisable form; `config_from_data` reads it back."""
        data = {"family": self.family, "dtype": self.dtype.value, "units": list(self.units)}
        return data | ({"run": self.run} if self.run else {})

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> RelayoutConfig:
        """Rebuild a config from its `to_data`."""
        return cls(dtype=as_dtype(data["dtype"]), units=tuple(data["units"]), run=data.get("run", 0))


@dataclass(frozen=True, kw_only=True)
class FinishConfig:
    """The finish of reductions in a fixed order: the partial results of each sum, maximum or logsumexp become one.

    `across`: whether neighbours in memory are partial results of different results, or of the same one.
    """

    kind: str
    across: bool
    family: str = "finish"

    def __post_init__(self) -> None:
        check_all(_FINISH, self)

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> FinishConfig:
        """Rebuild a config from its `to_data`."""
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig:
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

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return dataclasses.asdict(self) | {"source": self.source.value, "dtype": self.dtype.value}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> QuantizeConfig:
        """Rebuild a config from its `to_data`."""
        return cls(**data | {"source": as_dtype(data["source"]), "dtype": as_dtype(data["dtype"])})


def _splits(x: RelayoutConfig) -> bool:
    return x.run in (4, 8, 16, 32, 64) and x.dtype is DType.FP32 and set(x.units) == {"none"}


def _units_refused(x: RelayoutConfig) -> Refused:
    legal = ", ".join(f'"{unit}"' for unit in UNITS)
    rule = f"a launch makes at least one copy; each one's axis of unit stride is one of {legal}"
    return "units", x.units, rule, ("none",)


def _transposed_refused(x: RelayoutConfig) -> Refused:
    return "units", x.units, "elements of one byte are transposed", ("none",)


def _run_refused(x: RelayoutConfig) -> Refused:
    rule = "fp32 elements without a unit stride in common are split, in runs of 4 to 64 that divide 64"
    return "run", x.run, rule, 0


def _kind_refused(x: FinishConfig) -> Refused:
    return "kind", x.kind, f"must be one of {', '.join(map(repr, REDUCTIONS))}", REDUCTIONS[0]


def _across_refused(x: FinishConfig) -> Refused:
    return "across", x.across, "must be True or False", True


def _tiled(x: QuantizeConfig) -> bool:
    """A tile of a block of scales, or that is transposed, has 128 rows; of the latter a thread has eight."""
    whole = x.rows == TILE or not (x.turned or x.kind == "128x128")
    return whole and (x.chunks == CHUNK or not x.turned)


def _made(x: QuantizeConfig) -> bool:
    """A CTA that has a row cannot transpose it."""
    return x.plain and not x.turned if x.kind == "row" else x.plain or x.turned


_WIDE = (DType.FP16, DType.BF16, DType.FP32)
_QUANTIZE = (
    Rule(
        lambda x: x.source in _WIDE, lambda x: ("source", x.source, "must be fp16, bf16 or fp32", DType.BF16)
    ),
    Rule(lambda x: x.dtype in LARGEST, lambda x: ("dtype", x.dtype, "must be fp8 or int8", DType.FP8_E4M3)),
    Rule(lambda x: x.kind in KINDS, lambda x: ("kind", x.kind, f"must be one of {', '.join(KINDS)}", "row")),
    Rule(
        lambda x: x.threads in (128, 256, 512, 1024),
        lambda x: ("threads", x.threads, "must be 128, 256, 512 or 1024", 256),
    ),
    Rule(
        lambda x: 1 <= x.chunks <= MOST_CHUNKS,
        lambda x: ("chunks", x.chunks, f"must be from 1 to {MOST_CHUNKS}, which registers hold", MOST_CHUNKS),
    ),
    Rule(
        _tiled,
        lambda x: ("chunks", x.chunks, f"{x.threads} threads hold {TILE} x {TILE} elements", MOST_CHUNKS),
    ),
    Rule(
        _made,
        lambda x: (
            "turned",
            x.turned,
            f'kind="{x.kind}" makes values of rows, of their transpose, or both',
            False,
        ),
    ),
    Rule(
        lambda x: not x.exponents or x.kind in ("1x128", "128x128"),
        lambda x: ("exponents", x.exponents, "scales of blocks alone are powers of two", False),
    ),
)
_RELAYOUT = (
    Rule(lambda x: len(x.units) > 0 and all(unit in UNITS for unit in x.units), _units_refused),
    Rule(lambda x: x.dtype.bytes == 1 or "transposed" not in x.units, _transposed_refused),
    Rule(lambda x: x.run == 0 or _splits(x), _run_refused),
)
_FINISH = (
    Rule(lambda x: x.kind in REDUCTIONS, _kind_refused),
    Rule(lambda x: isinstance(x.across, bool), _across_refused),
)
