# SPDX-License-Identifier: Apache-2.0
"""The host arguments of a launch: names, types and order. Imports neither torch nor the DSL.

A driver takes a few groups of numbers, each a flat tuple, and then the stream. The fields of a group have
names, so that code that fills or reads them does not use positions:

    plans       computes the values by name (`plans.steps`) and packs them
    kernels     unpack the arguments that they are traced with (`kernels.host.launch_arguments`)
    compiling   traces and records a launch with sample values of the right types
    running     packs once what does not change between calls; a call's tensors are in the order of the
                group "addresses" (`epilogue.call_order`)

To add an argument, add one line to the table below. It is then packed, traced, sampled and unpacked everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm.config import (
    Config,
    FinishConfig,
    GemmConfig,
    KernelConfig,
    QuantizeConfig,
    RelayoutConfig,
    RowSumConfig,
)
from cutegemm.epilogue.call_order import tensors

# workspace of a split-K reduction: fp32 partial tiles, and per tile the number of splits that have arrived
SPLIT_PLACES = ("split.partials", "split.counters")
WORK_COUNTER = "work.counter"  # numbers of work tiles taken, then clusters that take no more
GROUP_ENDS = "group.ends"  # one past the last row of each group, Int32
ROW_INDICES = "group.rows"  # indices of the operand rows that a launch multiplies, in the order of the groups
# addresses that a tile scheduler reads, by the scheduler's name (`KernelConfig.tile_scheduler`)
SCHEDULER_READS: dict[str, tuple[str, ...]] = {
    "dynamic": (WORK_COUNTER,),
    "grouped": (GROUP_ENDS,),
    "depth": (GROUP_ENDS,),
    "dynamic_depth": (GROUP_ENDS, WORK_COUNTER),
    "dynamic_grouped": (GROUP_ENDS, WORK_COUNTER),
}
# Extents and strides of 16 elements satisfy every alignment a config may require, also 16 bytes of 8-bit operands.
EXTENT = 16
_GROUPED = (
    ("ends.width", "int32", 1),
    ("ends.lead", "int32", 0),
    ("groups", "int32", 1),
    ("tail", "int32", 0),
    ("rows.least", "int32", 0),
    ("rows.most", "int32", EXTENT),
)
# 32-bit words of an index, and the number of rows that can be indexed
_INDEXED = (("rows.width", "int32", 1), ("rows.extent", "int32", EXTENT))
COUNTERS = "run.counters"  # base address of all counters of a run (`KernelPlan.counter_bytes`)
INT32, INT64, FLOAT32 = "int32", "int64", "float32"
Values = Mapping[str, Mapping[str, Any]]  # group -> field -> number, or triple of numbers

# most SMs of a GPU whose clusters have places ("order"), and places in one number
MOST_SMS, ORDERED = 132, 4
STRIDES = (EXTENT, EXTENT, EXTENT * EXTENT)


@dataclass(frozen=True)
class Field:
    """One argument, or several in a row.

    Attributes:
        name: an identifier, or two joined by a dot; names of epilogue inputs have no dot.
        kind: "int32", "int64" or "float32".
        sample: a value of a small legal problem, a tuple if the field has several numbers; None for an address.
    """

    name: str
    kind: str
    sample: int | float | tuple[int, ...] | None

    @property
    def width(self) -> int:
        """Numbers that the field takes."""
        return len(self.sample) if isinstance(self.sample, tuple) else 1


@dataclass(frozen=True)
class Group:
    """Arguments that are passed as one flat tuple."""

    name: str
    fields: tuple[Field, ...]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The fields' names in order."""
        return tuple(x.name for x in self.fields)

    @functools.cached_property
    def kinds(self) -> tuple[str, ...]:
        """The type of every number of the flat tuple."""
        return tuple(x.kind for x in self.fields for _ in range(x.width))

    def width(self, name: str) -> int:
        """Numbers that a field takes."""
        return next(x.width for x in self.fields if x.name == name)

    def pack(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The flat tuple of values by name; names that are not fields are ignored."""
        flat: list[Any] = []
        for x in self.fields:
            flat += values[x.name] if x.width > 1 else (values[x.name],)
        return tuple(flat)

    def unpack(self, flat: Any) -> dict[str, Any]:
        """The values by name; fields of several numbers are tuples."""
        found, at, numbers = {}, 0, tuple(flat)
        for x in self.fields:
            found[x.name] = numbers[at : at + x.width] if x.width > 1 else numbers[at]
            at += x.width
        return found

    def sample(self, address: int) -> tuple[int | float, ...]:
        """Values of a small legal problem; all addresses are `address`."""
        return self.pack({x.name: address if x.sample is None else x.sample for x in self.fields})


@dataclass(frozen=True)
class LaunchLayout:
    """The groups that a config's driver takes, in order; the stream comes after them."""

    groups: tuple[Group, ...]

    def __getitem__(self, name: str) -> Group:
        return next(x for x in self.groups if x.name == name)

    def pack(self, values: Values) -> tuple[tuple[Any, ...], ...]:
        """All groups from values by group and name."""
        return tuple(x.pack(values[x.name]) for x in self.groups)

    def unpack(self, arguments: Any) -> dict[str, dict[str, Any]]:
        """Values by group and name."""
        return {x.name: x.unpack(flat) for x, flat in zip(self.groups, arguments, strict=True)}

    def sample(self, address: int = 1024) -> tuple[tuple[int | float, ...], ...]:
        """Arguments of a launch over matrices of 16 x 16 elements, all at one address."""
        return tuple(x.sample(address) for x in self.groups)


@functools.lru_cache(maxsize=4096)
def layout_of(config: Config) -> LaunchLayout:
    """The arguments that a config's driver takes."""
    if isinstance(config, RelayoutConfig):
        return _relayout(len(config.units))
    if isinstance(config, QuantizeConfig):
        return _quantize()
    if isinstance(config, RowSumConfig):
        return _row_sum()
    return _finish() if isinstance(config, FinishConfig) else _gemm(config)


def _gemm(config: GemmConfig) -> LaunchLayout:
    """Every GEMM driver takes the same groups."""
    passed = tensors(config.epilogue, config.device_scalars, tuple(x.role for x in config.operands))
    numbers = [
        Field(name, INT32, 0) if kind == "integer" else Field(name, FLOAT32, 0.0)
        for name, kind in config.host_numbers.items()
    ]
    return _layout(
        # the call's tensors, partial results of epilogue reductions, and workspace of splits and schedulers
        addresses=[Field(x, INT64, None) for x in (*(x.name for x in passed), *_in_workspace(config))],
        # m and n of the output, k, the batch; then the batch extent of each tensor that all batches may share. A
        # sample has batch 0 and so no tiles; its k is too small to give every split a k tile
        shape=[
            *(Field(x, INT32, EXTENT) for x in "mnk"),
            Field("l", INT32, 0 if isinstance(config, KernelConfig) else 1),
            *(Field(f"{x.name}.l", INT32, 1) for x in passed if x.role.shared),
        ],
        # (row, column, batch), elements: of a as m x k, of b as n x k, of inputs and outputs as m x n; for an
        # operand with a gated pair, the strides of one half and the distance to the other
        strides=[
            *(Field(x.name, INT64, STRIDES) for x in passed if x.role.strided),
            *(Field(f"{x.role}.gate", INT64, EXTENT * EXTENT) for x in config.operands if x.halves == 2),
        ],
        # passed by value, in the graph's order; a group cannot be empty
        numbers=numbers or [Field("no.number", FLOAT32, 0.0)],
        # tiles per panel, clusters launched, partial results per result over rows, columns and all; of splits by GPC
        # the clusters' places; for groups the form of their ends (`kernels.schedule.group_ends`), whether rows outside
        # all groups are zeroed, and of how many rows the groups are that the launch computes
        schedule=[
            *(Field(x, INT32, 1) for x in ("group", "clusters", "partials.m", "partials.n", "partials.all")),
            *_order(config),
            *(Field(*x) for x in _GROUPED if isinstance(config, KernelConfig) and config.grouped),
            *(Field(*x) for x in _INDEXED if _indexed(config)),
        ],
    )


def placed(config: KernelConfig) -> bool:
    """Whether a launch gives each cluster its place: work tiles lie by GPC. CTAs without clusters are in order."""
    return config.by_gpc and config.cluster_size > 1


def _order(config: GemmConfig) -> tuple[Field, ...]:
    """The place of each cluster, a byte each (`placed`)."""
    if not isinstance(config, KernelConfig) or not placed(config):
        return ()
    return (Field("order", INT32, (0,) * (-(-MOST_SMS // config.cluster_size // ORDERED))),)


def _in_workspace(config: GemmConfig) -> tuple[str, ...]:
    if not isinstance(config, KernelConfig):
        return ()
    sums = {"workspace": SPLIT_PLACES, "atomic": SPLIT_PLACES, "launch": SPLIT_PLACES[:1]}
    rows = (ROW_INDICES,) if _indexed(config) else ()
    return (*sums.get(config.split_reduction, ()), *SCHEDULER_READS.get(config.tile_scheduler, ()), *rows)


def _indexed(config: GemmConfig) -> bool:
    return any(x.indexed for x in config.operands)


def _relayout(copies: int) -> LaunchLayout:
    """The fields of each copy, with its index after the dot."""
    extents = (("rows", EXTENT), ("cols", EXTENT), ("batch", 1))
    ends = [f"{x}.{i}" for i in range(copies) for x in ("source", "target")]
    return _layout(
        addresses=[Field(x, INT64, None) for x in ends],
        shape=[Field(f"{x}.{i}", INT32, sample) for i in range(copies) for x, sample in extents],
        # (row, column, batch), elements
        strides=[Field(x, INT64, STRIDES) for x in ends],
    )


def _finish() -> LaunchLayout:
    return _layout(
        addresses=[Field(x, INT64, None) for x in ("partials", "results")],
        # partial results per result, and results
        extent=[Field(x, INT32, 1) for x in ("parts", "results")],
    )


def _quantize() -> LaunchLayout:
    # the source, values and scales of the matrix and of its transpose, and maxima
    places = ("source", "values", "scale", "turned", "turned.scale", "most", "turned.most")
    return _layout(
        addresses=[Field(x, INT64, None) for x in places],
        shape=[Field("rows", INT32, 1), Field("columns", INT32, EXTENT), Field("batch", INT32, 1)],
        # row and batch strides in elements
        strides=[
            Field(f"{x}.{step}", INT64, EXTENT)
            for x in ("source", "values", "turned")
            for step in ("row", "batch")
        ],
    )


def _row_sum() -> LaunchLayout:
    return _layout(
        addresses=[Field(x, INT64, None) for x in ("source", "index", "target")],
        # rows of the source, 16-byte words of a row, rows of the target; log2 of the threads side by side along a row
        shape=[
            Field(x, INT32, sample)
            for x, sample in (("rows", EXTENT), ("words", 2), ("sums", 1), ("spread", 1))
        ],
        # row pitch of the source in words; rows of the target and its indices are contiguous
        strides=[Field("source", INT64, 2)],
    )


def _layout(**groups: list[Field]) -> LaunchLayout:
    return LaunchLayout(tuple(Group(name, tuple(fields)) for name, fields in groups.items()))


__all__ = ["FLOAT32", "INT32", "INT64", "Field", "Group", "LaunchLayout", "Values", "layout_of"]
