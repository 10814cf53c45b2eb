# SPDX-License-Identifier: Apache-2.0
"""The launches of a plan, a `Step` each, with their arguments by name (`launch_layout`).

A step has the `config` of its kernel, a `name` for texts, the arguments that are the same for every call of a plan
(`fixed`), and all arguments of one call (`values`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutegemm.config import FinishConfig, GemmConfig, KernelConfig, RelayoutConfig
from cutegemm.launch_layout import COUNTERS, ORDERED, Values, layout_of
from cutegemm.problems import Operand, Problem

Named = dict[str, dict[str, Any]]  # group -> field -> value
MOST_ROWS = (1 << 31) - 1  # of a group


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A copy of an operand, or of one half of a gated b, into workspace."""

    operand: str  # "a" or "b"
    source: Operand
    target: Operand
    source_offset: int = 0  # bytes from the operand's first element to the source's
    offset: int  # bytes, of the copy in the workspace
    run: int = 0  # as `RelayoutConfig.run`; the copy's columns lie along K then

    @property
    def unit(self) -> str:
        """What `RelayoutConfig.units` says of the copy; one that splits is of none."""
        if self.run:
            return "none"
        if self.source.unit_col and self.target.unit_col:
            return "col"
        if self.source.unit_row and self.target.unit_row:
            return "row"
        bytewise = self.source.dtype.bytes == 1
        return "transposed" if bytewise and self.source.unit_row and self.target.unit_col else "none"


@dataclass(frozen=True, kw_only=True)
class Relayout:
    """All copies of a run, in one launch."""

    config: RelayoutConfig
    copies: tuple[Copy, ...]

    @staticmethod
    def of(copies: tuple[Copy, ...]) -> Relayout:
        """The launch of at least one copy."""
        units = tuple(x.unit for x in copies)
        config = RelayoutConfig(dtype=copies[0].source.dtype, units=units, run=copies[0].run)
        return Relayout(config=config, copies=copies)

    @property
    def name(self) -> str:
        return f"relayout {' and '.join(sorted({x.operand for x in self.copies}))}"

    def fixed(self) -> Named:
        shape: dict[str, int] = {}
        strides: dict[str, tuple[int, int, int]] = {}
        for i, x in enumerate(self.copies):
            shape |= {f"rows.{i}": x.source.rows, f"cols.{i}": x.source.cols, f"batch.{i}": x.source.batch}
            strides |= {f"source.{i}": x.source.strides, f"target.{i}": x.target.strides}
        return {"shape": shape, "strides": strides}

    def values(self, addresses: Mapping[str, int], workspace: int, numbers: Mapping[str, float]) -> Values:
        places: dict[str, int] = {}
        for i, x in enumerate(self.copies):
            places[f"source.{i}"] = addresses[x.operand] + x.source_offset
            places[f"target.{i}"] = workspace + x.offset
        return self.fixed() | {"addresses": places}


@dataclass(frozen=True, kw_only=True)
class Ends:
    """How a launch reads the ends of its groups (`kernels.schedule.group_ends`), and which groups it computes."""

    width: int = 1  # 32-bit words of a number
    lead: int = 0  # 1 where the first group's begin stands before the ends
    tail: bool = True  # whether rows of no group are zeroed
    count: int = 1  # groups
    indices: int = 0  # 32-bit words of an index that names a row; 0 if rows lie as they are multiplied
    rows: int = 0  # how many rows indices may name
    sizes: tuple[int, int] = (0, MOST_ROWS)  # least and most rows of the groups that the launch computes

    @property
    def schedule(self) -> dict[str, int]:
        """What a launch is told of them."""
        return {
            "ends.width": self.width,
            "ends.lead": self.lead,
            "tail": int(self.tail),
            "groups": self.count,
            "rows.width": self.indices,
            "rows.extent": self.rows,
            "rows.least": self.sizes[0],
            "rows.most": self.sizes[1],
        }


@dataclass(frozen=True, kw_only=True)
class Multiply:
    """The GEMM, or the reduction of the splits that the GEMM before it left, which applies the epilogue."""

    config: GemmConfig
    extents: tuple[int, int, int, int]  # (m, n, k, l): of the output, and the GEMM's k
    # a, b, inputs and stored outputs as the kernel sees them, by name; a gated pair as one half
    operands: Mapping[str, Operand] = field(hash=False)
    factors: tuple[str, str] = ("a", "b")  # the caller's operands that are the kernel's a and b
    gate: int | None = None  # elements between the first elements of a gated pair's halves
    raster: tuple[str, int]  # (axis, group)
    clusters: int
    # partial results per result of a reduction over rows, columns and all
    parts: tuple[int, int, int] = (0, 0, 0)
    # byte offsets of copied operands and of partial results that a launch finishes, by name
    in_workspace: Mapping[str, int] = field(default_factory=dict, hash=False)
    # byte offsets of its counters among the run's
    counted: Mapping[str, int] = field(default_factory=dict, hash=False)
    groups: Ends | None = None
    order: tuple[int, ...] = ()  # the place of each cluster if they are ordered by GPC (`plans.gpcs`)

    @staticmethod
    def of(problem: Problem, views: tuple[Operand, Operand], **rest: Any) -> Multiply:
        """The step of a problem whose a and b the kernel sees as `views`."""
        a, b = views
        return Multiply(
            extents=(a.rows, b.cols, problem.k, problem.batch),
            operands={"a": a, "b": b, **dict(problem.inputs), **dict(problem.outputs)},
            **rest,
        )

    @property
    def name(self) -> str:
        adds = isinstance(self.config, KernelConfig) and not self.config.multiplies
        large = self.groups is not None and self.groups.sizes[0] > 0
        return "add parts" if adds else "gemm of large groups" if large else "gemm"

    @property
    def swapped(self) -> bool:
        """Whether the kernel computes D^T = B^T A^T."""
        return self.factors == ("b", "a")

    def along_d(self, extents: tuple[int, ...]) -> tuple[int, ...]:
        """Extents along (m, n, ...) of the kernel's GEMM, such as its tile, along D's axes."""
        m, n, *rest = extents
        return (n, m, *rest) if self.swapped else (m, n, *rest)

    def fixed(self) -> Named:
        strides = {name: x.strides for name, x in self.operands.items()}
        row, col, batch = strides["b"]
        return {
            "shape": dict(zip("mnkl", self.extents))
            | {f"{name}.l": x.batch for name, x in self.operands.items()},
            # the kernel sees b as n x k
            "strides": strides | {"b": (col, row, batch), "a.gate": self.gate, "b.gate": self.gate},
            "schedule": {"group": self.raster[1], "clusters": self.clusters}
            | dict(zip(("partials.m", "partials.n", "partials.all"), self.parts))
            | ({"order": self._order} if self.order else {})
            | (self.groups.schedule if self.groups else {}),
        }

    @property
    def _order(self) -> tuple[int, ...]:
        """The places as numbers of the launch, `ORDERED` bytes each."""
        words = layout_of(self.config)["schedule"].width("order")
        return struct.unpack(f"<{words}i", bytes(self.order).ljust(words * ORDERED, b"\0"))

    def values(self, addresses: Mapping[str, int], workspace: int, numbers: Mapping[str, float]) -> Values:
        copies = {name: workspace + offset for name, offset in self.in_workspace.items()}
        counters = {name: addresses[COUNTERS] + offset for name, offset in self.counted.items()}
        factors = {role: addresses[name] for role, name in zip("ab", self.factors, strict=True)}
        return self.fixed() | {
            "addresses": {**addresses, **factors, **copies, **counters},
            "numbers": {"no.number": 0.0, **numbers},
        }


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The finish of a reduction: it reduces partial results in workspace to results."""

    config: FinishConfig
    output: str  # the reduction's name
    offset: int  # bytes, of the partial results in the workspace
    parts: int  # partial results per result
    results: int

    @property
    def name(self) -> str:
        return f"finish {self.output}"

    def fixed(self) -> Named:
        return {"extent": {"parts": self.parts, "results": self.results}}

    def values(self, addresses: Mapping[str, int], workspace: int, numbers: Mapping[str, float]) -> Values:
        places = {"partials": workspace + self.offset, "results": addresses[self.output]}
        return self.fixed() | {"addresses": places}


Step = Relayout | Multiply | Finish
