# SPDX-License-Identifier: Apache-2.0
"""The configs of the kernels that run before and after a GEMM."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.dtypes import DType, as_dtype


@dataclass(frozen=True, kw_only=True)
class RelayoutConfig:
    """Copies of matrices into TMA-addressable workspace, whose unit-stride axes are the sources' fastest."""

    dtype: DType
    # of every copy the source's axis with unit stride: "col", "row" or "none"
    units: tuple[str, ...]
    family: str = "relayout"

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return {"family": self.family, "dtype": self.dtype.value, "units": list(self.units)}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> RelayoutConfig:
        """Rebuild a config from its `to_data`."""
        return cls(dtype=as_dtype(data["dtype"]), units=tuple(data["units"]))


@dataclass(frozen=True, kw_only=True)
class FinishConfig:
    """The ordered finish of a reduction: partial results of each of many sums, maxima or logsumexps into one.

    `across` tells how partials lie: neighbours in memory belong to different results, or to the same one.
    """

    kind: str
    across: bool
    family: str = "finish"

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> FinishConfig:
        """Rebuild a config from its `to_data`."""
        return cls(**data)
