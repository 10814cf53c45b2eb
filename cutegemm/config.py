# SPDX-License-Identifier: Apache-2.0
"""`KernelConfig`: everything compiled into a kernel, and nothing else.

Two problems whose plans hold equal configs share one compiled kernel; shapes, strides, scalars and seeds
are run-time arguments. The config travels to compiler processes and into cache keys as plain data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm import hardware as hw
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import Graph

PARTIAL_ROWS = 16  # rows of D that one warp of a warpgroup holds, PTX wgmma D fragment
SIMT_LANES = (8, 4)  # threads of a CUDA-core warp along (M, N)


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
class OutputConfig:
    """What a kernel knows of one stored matrix: its type, unit-stride axis and way out ("tma", "staged", "direct")."""

    dtype: DType
    major: str
    store: str = "direct"


@dataclass(frozen=True, kw_only=True)
class EpilogueConfig:
    """What every GEMM kernel has beside its mainloop.

    `inputs` are the graph's tensors and `outputs` its stored matrices, each in the graph's order;
    `device_scalars` the scalars that arrive as the address of an fp32 number.
    """

    a: MatrixConfig
    b: MatrixConfig
    epilogue: Graph
    inputs: tuple[MatrixConfig, ...]
    outputs: tuple[OutputConfig, ...]
    device_scalars: tuple[str, ...] = ()

    @property
    def d(self) -> OutputConfig | None:
        """The first stored matrix."""
        return self.outputs[0] if self.outputs else None

    @property
    def input_of(self) -> dict[str, MatrixConfig]:
        """The graph's tensors by name."""
        return dict(zip(self.epilogue.tensors, self.inputs, strict=True))

    @property
    def host_numbers(self) -> dict[str, str]:
        """Name -> kind of the numbers that a launch passes by value."""
        return {name: kind for name, kind in self.epilogue.numbers.items() if name not in self.device_scalars}

    @property
    def gates(self) -> int:
        """Accumulator columns per output column: 2 for a gated pair."""
        return 2 if self.epilogue.gated else 1

    @property
    def approximate(self) -> bool:
        """Whether tanh and sigmoid may err by 2**-11, the hardware's tanh: nothing finer than that is asked for."""
        stored = bool(self.outputs) and all(x.dtype.bits <= 16 for x in self.outputs)
        return stored and not self.epilogue.reductions

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("a", "b"):
            data[name] = _part_data(data[name])
        for name in ("inputs", "outputs"):
            data[name] = [_part_data(x) for x in data[name]]
        return data | {"epilogue": self.epilogue.to_data()}


@dataclass(frozen=True, kw_only=True)
class KernelConfig(EpilogueConfig):
    """A tensor-core kernel: the tile, the rings, the roles and the epilogue."""

    family: str
    tile: tuple[int, int, int]  # (BLK_M, BLK_N, BLK_K), elements; BLK_N counts accumulators
    cluster: tuple[int, int]  # CTAs along (M, N)
    stages: int
    swizzle: tuple[str, str]  # of A and of B
    consumers: int  # warpgroups that compute
    pingpong: bool  # each on tiles of its own, one's epilogue under another's mainloop; else all share a tile
    epi_n: int  # columns a warpgroup stores at once
    epi_stages: int  # staging buffers of each output
    input_stages: int  # pieces of the matrix inputs that TMA holds ready
    persistent: bool
    raster: str  # axis walked fastest

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
    def team(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 1 if self.pingpong else self.consumers

    @property
    def rows_per_pass(self) -> int:
        """Rows of the CTA tile that one wgmma of every warpgroup of a team covers together."""
        return hw.WGMMA_M * self.team

    @property
    def passes(self) -> int:
        """Passes over the CTA tile's rows: WGMMAs along M of each consumer."""
        return self.tile[0] // self.rows_per_pass

    @property
    def columns(self) -> int:
        """Output columns of the CTA tile."""
        return self.tile[1] // self.gates

    @property
    def pieces_n(self) -> int:
        """Pieces of EPI_N columns in the CTA tile."""
        return self.columns // self.epi_n

    @property
    def pieces(self) -> int:
        """Pieces that each consumer warpgroup stores per tile."""
        return self.passes * self.pieces_n

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of the output that one partial result of a reduction covers."""
        return PARTIAL_ROWS, self.columns

    @property
    def partials_per_tile(self) -> int:
        """Partial results that a tile gives to a reduction over everything: one per warp that shares it."""
        return self.team * hw.WARPGROUP // hw.WARP

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


@dataclass(frozen=True, kw_only=True)
class SimtConfig(EpilogueConfig):
    """A CUDA-core kernel: fp32 accumulation by fused multiply-add, any strides.

    `vector` is how many elements of A, B and D one global access moves. More than 1 needs the extent along
    the unit-stride axis, every other stride and the base address to be multiples of that many elements; at
    most 16 bytes for A and B, and 1 or 4 elements for D.
    """

    tile: tuple[int, int, int]
    vector: tuple[int, int, int] = (1, 1, 1)
    thread_tile: tuple[int, int] = (8, 8)  # (M, N) elements of D that one thread owns
    family: str = "simt"

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.tile[0] * self.tile[1] // (self.thread_tile[0] * self.thread_tile[1])

    @property
    def columns(self) -> int:
        """Output columns of the CTA tile."""
        return self.tile[1] // self.gates

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of the output that one partial result of a reduction covers: a warp's."""
        return SIMT_LANES[0] * self.thread_tile[0], SIMT_LANES[1] * self.thread_tile[1] // self.gates

    @property
    def partials_per_tile(self) -> int:
        """Partial results that a tile gives to a reduction over everything: one per warp."""
        return self.threads // hw.WARP


@dataclass(frozen=True, kw_only=True)
class RelayoutConfig:
    """A copy of one matrix into TMA-addressable workspace whose unit-stride axis is the source's fastest."""

    dtype: DType
    unit: str  # source axis with unit stride: "col", "row" or "none"
    family: str = "relayout"

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return {"family": self.family, "dtype": self.dtype.value, "unit": self.unit}


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


GemmConfig = KernelConfig | SimtConfig
Config = GemmConfig | RelayoutConfig | FinishConfig


def config_from_data(data: dict[str, Any]) -> Config:
    """Rebuild a config from its `to_data`."""
    data = dict(data)
    if data["family"] == "relayout":
        return RelayoutConfig(dtype=as_dtype(data["dtype"]), unit=data["unit"])
    if data["family"] == "finish":
        return FinishConfig(**data)
    for name in ("a", "b"):
        data[name] = _part(MatrixConfig, data[name])
    data["inputs"] = tuple(_part(MatrixConfig, x) for x in data["inputs"])
    data["outputs"] = tuple(_part(OutputConfig, x) for x in data["outputs"])
    for name in ("tile", "cluster", "swizzle", "vector", "thread_tile", "device_scalars"):
        if name in data:
            data[name] = tuple(data[name])
    data["epilogue"] = Graph.from_data(data["epilogue"])
    return SimtConfig(**data) if data["family"] == "simt" else KernelConfig(**data)


def _part_data(part: MatrixConfig | OutputConfig) -> dict[str, str]:
    return dataclasses.asdict(part) | {"dtype": part.dtype.value}


def _part(kind: type, data: dict[str, str]) -> Any:
    return kind(**(data | {"dtype": as_dtype(data["dtype"])}))
