# SPDX-License-Identifier: Apache-2.0
"""The configs of the kernels that run before and after a GEMM; one that breaks an invariant cannot be made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.config.invariants.rule import Rule, check_all
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import REDUCTIONS

Refused = tuple[str, object, str, object]
UNITS = ("col", "row", "none")


@dataclass(frozen=True, kw_only=True)
class RelayoutConfig:
    """Copies of matrices into TMA-addressable workspace."""

    dtype: DType
    # the unit-stride axis that each copy shares with its source, "col" or "row"; "none" if they differ
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


def _splits(x: RelayoutConfig) -> bool:
    return x.run in (4, 8, 16, 32, 64) and x.dtype is DType.FP32 and set(x.units) == {"none"}


def _units_refused(x: RelayoutConfig) -> Refused:
    legal = ", ".join(f'"{unit}"' for unit in UNITS)
    rule = f"a launch makes at least one copy; each one's axis of unit stride is one of {legal}"
    return "units", x.units, rule, ("none",)


def _run_refused(x: RelayoutConfig) -> Refused:
    rule = "fp32 elements without a unit stride in common are split, in runs of 4 to 64 that divide 64"
    return "run", x.run, rule, 0


def _kind_refused(x: FinishConfig) -> Refused:
    return "kind", x.kind, f"must be one of {', '.join(map(repr, REDUCTIONS))}", REDUCTIONS[0]


def _across_refused(x: FinishConfig) -> Refused:
    return "across", x.across, "must be True or False", True


_RELAYOUT = (
    Rule(lambda x: len(x.units) > 0 and all(unit in UNITS for unit in x.units), _units_refused),
    Rule(lambda x: x.run == 0 or _splits(x), _run_refused),
)
_FINISH = (
    Rule(lambda x: x.kind in REDUCTIONS, _kind_refused),
    Rule(lambda x: isinstance(x.across, bool), _across_refused),
)
