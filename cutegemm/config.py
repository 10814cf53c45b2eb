# SPDX-License-Identifier: Apache-2.0
"""`KernelConfig`: everything compiled into a kernel, and nothing else.

Two problems whose plans hold equal configs share one compiled kernel; shapes, strides, alpha and beta
are run-time arguments. The config travels to compiler processes and into cache keys as plain data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm import hardware as hw
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import Graph

FAMILIES = ("warp_specialized", "multistage", "simt", "relayout")


def setmaxnreg(family: str, gathers: bool) -> dict[int, tuple[int, int]]:
    """Consumer warpgroups -> (producer, consumer) registers per thread, where the kernel moves registers.

    A gathering producer with fewer than 96 spills its loads in flight.
    """
    if family != "warp_specialized":
        return {}
    return {2: (96, 200), 3: (96, 136)} if gathers else {2: (40, 232), 3: (32, 160)}


@dataclass(frozen=True, kw_only=True)
class MatrixConfig:
    """What a kernel knows of one matrix when it is compiled.

    `major` names the axis with unit stride ("m", "n", "k"), or is "strided" when no stride is known.
    `load` is "tma" or "gather" for A and B of tensor-core kernels and "direct" elsewhere.
    """

    dtype: DType
    major: str
    load: str = "direct"


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """A tensor-core kernel: the tile, the rings, the roles and the epilogue."""

    family: str
    a: MatrixConfig
    b: MatrixConfig
    c: MatrixConfig | None
    d: MatrixConfig
    tile: tuple[int, int, int]  # (BLK_M, BLK_N, BLK_K), elements
    cluster: tuple[int, int]  # CTAs along (M, N)
    stages: int
    swizzle: tuple[str, str]  # of A and of B
    consumers: int  # warpgroups that compute
    store: str
    epi_n: int  # columns a warpgroup stores at once
    epi_stages: int
    persistent: bool
    raster: str  # axis walked fastest
    epilogue: Graph

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster."""
        return self.cluster[0] * self.cluster[1]

    @property
    def producers(self) -> int:
        """Warpgroups that only load."""
        return 1 if self.family == "warp_specialized" else 0

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return (self.producers + self.consumers) * hw.WARPGROUP

    @property
    def rows_per_pass(self) -> int:
        """Rows of the CTA tile that one wgmma of every consumer covers together."""
        return hw.WGMMA_M * self.consumers

    @property
    def passes(self) -> int:
        """Passes over the CTA tile's rows: WGMMAs along M of each consumer."""
        return self.tile[0] // self.rows_per_pass

    @property
    def pieces_n(self) -> int:
        """Pieces of EPI_N columns in the CTA tile."""
        return self.tile[1] // self.epi_n

    @property
    def gathers(self) -> bool:
        """Whether an operand is loaded by the producer warpgroup's threads."""
        return "gather" in (self.a.load, self.b.load)

    @property
    def registers(self) -> tuple[int, int] | None:
        """(producer, consumer) registers per thread set by setmaxnreg; None keeps the launch's allocation.

        Over the warpgroups they sum to at most 512, the registers of an SM divided by 128 threads.
        """
        return setmaxnreg(self.family, self.gathers).get(self.consumers)

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("a", "b", "c", "d"):
            data[name] = None if data[name] is None else _matrix_data(data[name])
        return data | {"epilogue": self.epilogue.to_data()}


@dataclass(frozen=True, kw_only=True)
class SimtConfig:
    """A CUDA-core kernel: fp32 accumulation by fused multiply-add, any strides.

    `vector` is how many elements of A, B and D one global access moves. More than 1 needs the extent along
    the unit-stride axis, every other stride and the base address to be multiples of that many elements; at
    most 16 bytes for A and B, and 1 or 4 elements for D.
    """

    a: MatrixConfig
    b: MatrixConfig
    c: MatrixConfig | None
    d: MatrixConfig
    tile: tuple[int, int, int]
    epilogue: Graph
    vector: tuple[int, int, int] = (1, 1, 1)
    thread_tile: tuple[int, int] = (8, 8)  # (M, N) elements of D that one thread owns
    family: str = "simt"

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.tile[0] * self.tile[1] // (self.thread_tile[0] * self.thread_tile[1])

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        data = {name: getattr(self, name) for name in ("family", "tile", "vector", "thread_tile")}
        data["epilogue"] = self.epilogue.to_data()
        for name in ("a", "b", "c", "d"):
            matrix = getattr(self, name)
            data[name] = None if matrix is None else _matrix_data(matrix)
        return data


@dataclass(frozen=True, kw_only=True)
class RelayoutConfig:
    """A copy of one matrix into TMA-addressable workspace whose unit-stride axis is the source's fastest."""

    dtype: DType
    unit: str  # source axis with unit stride: "col", "row" or "none"
    family: str = "relayout"

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return {"family": self.family, "dtype": self.dtype.value, "unit": self.unit}


Config = KernelConfig | SimtConfig | RelayoutConfig


def config_from_data(data: dict[str, Any]) -> Config:
    """Rebuild a config from its `to_data`."""
    data = dict(data)
    if data["family"] == "relayout":
        return RelayoutConfig(dtype=as_dtype(data["dtype"]), unit=data["unit"])
    for name in ("a", "b", "c", "d"):
        if data[name] is not None:
            data[name] = MatrixConfig(**(data[name] | {"dtype": as_dtype(data[name]["dtype"])}))
    for name in ("tile", "cluster", "swizzle", "vector", "thread_tile"):
        if name in data:
            data[name] = tuple(data[name])
    data["epilogue"] = Graph.from_data(data["epilogue"])
    return SimtConfig(**data) if data["family"] == "simt" else KernelConfig(**data)


def _matrix_data(matrix: MatrixConfig) -> dict[str, str]:
    return {"dtype": matrix.dtype.value, "major": matrix.major, "load": matrix.load}
