# SPDX-License-Identifier: Apache-2.0
"""`KernelConfig`: everything compiled into a kernel, and nothing else.

Two problems whose plans hold equal configs share one compiled kernel; shapes, strides, scalars and seeds
are run-time arguments. The config travels to compiler processes and into cache keys as plain data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.arch import sm90 as hw
from cutegemm.arch.architectures import ARCHITECTURES
from cutegemm.arch.instructions import Instruction, instruction
from cutegemm.arch.limits import Limits
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import Graph
from cutegemm.families import FAMILIES, load
from cutegemm.families.family import Roles
from cutegemm.layouts.sm90 import widest_swizzle

PARTIAL_ROWS = 16  # rows of D that one warp of a warpgroup holds, PTX wgmma D fragment
ROW_ALIGN = 16  # bytes: alignment of the row inputs in shared memory
WIDEST_OF_FOUR = 192  # columns of a wgmma that ptxas accepts in a kernel of four warpgroups
WORK_SLOTS = 4  # numbers of works that a dynamic kernel's producer may be ahead of the slowest consumer
SMEM_RESERVED = 1024  # bytes of an SM's shared memory that a CTA takes beside its own


@dataclass(frozen=True, kw_only=True)
class MatrixConfig:
    """What a kernel knows of one matrix when it is compiled.

    `major` names the axis with unit stride ("m", "n", "k"), or is "strided" when no stride is known.
    `load` is "tma" or "direct" of the epilogue's inputs.
    """

    dtype: DType
    major: str
    load: str = "direct"


@dataclass(frozen=True, kw_only=True)
class OperandConfig(MatrixConfig):
    """A factor of the product: what a kernel knows of it, and how its tiles lie in shared memory.

    Attributes:
        role: "a" (M x K) or "b" (N x K, as kernels see it).
        load: "tma" or "gather" of tensor-core kernels, "direct" of CUDA-core ones.
        swizzle: of its tiles in shared memory, "128B", "64B", "32B" or "none".
        halves: 2 where it holds a gated pair's two factors, whose tiles lie side by side in a stage; else 1.
    """

    role: str
    swizzle: str = "none"
    halves: int = 1

    @property
    def k_major(self) -> bool:
        """Whether its tiles are contiguous along K in shared memory."""
        return self.major not in ("m", "n")


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What a kernel knows of one stored matrix: its type, unit-stride axis and way out ("tma", "staged", "direct")."""

    dtype: DType
    major: str
    store: str = "direct"


@dataclass(frozen=True, kw_only=True)
class EpilogueConfig:
    """What every GEMM kernel has beside its mainloop.

    `operands` are A and B; `inputs` the graph's tensors and `outputs` its stored matrices, each in the graph's
    order; `device_scalars` the scalars that arrive as the address of an fp32 number; `limits` the architecture.
    """

    operands: tuple[OperandConfig, OperandConfig]
    epilogue: Graph
    inputs: tuple[MatrixConfig, ...]
    outputs: tuple[OutputConfig, ...]
    device_scalars: tuple[str, ...] = ()
    limits: Limits = hw.LIMITS

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> EpilogueConfig:
        """Rebuild a config from its `to_data`."""
        data = dict(data)
        for name, kind in (("operands", OperandConfig), ("inputs", MatrixConfig), ("outputs", OutputConfig)):
            data[name] = tuple(_part(kind, x) for x in data[name])
        for name in ("tile", "cluster", "vector", "thread_tile", "device_scalars", "early",
                     "evict_first", "evict_last"):  # fmt: skip
            if name in data:
                data[name] = tuple(data[name])
        data["epilogue"] = Graph.from_data(data["epilogue"])
        return cls(**data | {"limits": ARCHITECTURES[data["limits"]]})

    @property
    def a(self) -> OperandConfig:
        """The operand M x K."""
        return self.operands[0]

    @property
    def b(self) -> OperandConfig:
        """The operand N x K."""
        return self.operands[1]

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
        """Whether tanh, sigmoid and erf may err by 2**-11, the hardware's tanh: nothing finer is asked for."""
        stored = bool(self.outputs) and all(x.dtype.bits <= 16 for x in self.outputs)
        return stored and not self.epilogue.reductions

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("operands", "inputs", "outputs"):
            data[name] = [_part_data(x) for x in data[name]]
        return data | {"epilogue": self.epilogue.to_data(), "limits": self.limits.name}


@dataclass(frozen=True, kw_only=True)
class KernelConfig(EpilogueConfig):
    """A tensor-core kernel: the tile, the rings, the roles and the epilogue."""

    family: str
    tile: tuple[int, int, int]  # (BLK_M, BLK_N, BLK_K), elements; BLK_N counts accumulators
    cluster: tuple[int, int]  # CTAs along (M, N)
    stages: int
    consumers: int  # warpgroups that compute
    pingpong: bool  # each on tiles of its own, one's epilogue under another's mainloop; else all share a tile
    epi_n: int  # columns a warpgroup stores at once
    epilogue_stages: int  # staging buffers of each output
    input_stages: int  # pieces of the matrix inputs that TMA holds ready
    persistent: bool
    raster: str  # axis walked fastest
    ctas_per_sm: int = 1  # that registers and shared memory leave room for
    trigger: str = (
        "never"  # when the next launch may begin: "never" early, at the "start", after the last of "loads"
    )
    early: tuple[str, ...] = ()  # roles of operands that are loaded before earlier launches have ended
    # "a", "b", "d": what L2 gives up first, and last
    evict_first: tuple[str, ...] = ()
    evict_last: tuple[str, ...] = ()
    splits: int = 1  # parts that K is cut into
    streamed: bool = False  # clusters cut tiles along K so that each does the same number of k tiles
    dynamic: bool = False  # clusters take works from a counter
    split_reduction: str = "none"  # how they are added: "cluster" (by its CTAs), "workspace" (by the last)

    @property
    def instruction(self) -> Instruction:
        """The tensor cores' instruction for the operands' types."""
        return instruction(self.a.dtype, self.b.dtype)

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster_parts

    @property
    def walk(self) -> str:
        """The kernel's walk over tiles and k tiles (`kernels.frame.WALKS`)."""
        return "stream_k" if self.streamed else "dynamic" if self.dynamic else "static"

    @property
    def work_readers(self) -> int:
        """Warps of a cluster that follow a dynamic walk."""
        warps = hw.WARPGROUP // hw.WARP
        return self.cluster_size * (self.consumers * warps + (warps if self.gathers else 1))

    def evicted(self, name: str) -> str | None:
        """Whether L2 is to give up lines of "a", "b" or "d" (all outputs) "first" or "last"; None says nothing."""
        return "first" if name in self.evict_first else "last" if name in self.evict_last else None

    @property
    def adds_up(self) -> bool:
        """Whether a tile may be the sum of several CTAs' parts of K."""
        return self.splits > 1 or self.streamed

    @property
    def cluster_parts(self) -> int:
        """CTAs of a cluster along K."""
        return self.splits if self.split_reduction == "cluster" else 1

    @property
    def slices(self) -> int:
        """CTAs of a cluster that store a tile, each its share of the columns: as many as whole pieces of 8 allow."""
        if self.cluster_parts == 1 or "".join(str(x.halves) for x in self.operands) != "11":
            return 1
        return max(x for x in range(1, self.cluster_parts + 1) if self.columns % (8 * x) == 0)

    @property
    def stored_columns(self) -> int:
        """Output columns of the CTA tile that one CTA stores."""
        return self.columns // self.slices

    @property
    def slice_values(self) -> int:
        """fp32 accumulators of a thread that belong to one slice."""
        return self.tile[0] * self.tile[1] // (self.slices * self.team * hw.WARPGROUP)

    def slice_index(self, part: int, value: int) -> int:
        """Where the accumulator of a slice's value-th number lies among a thread's accumulators."""
        of_pass, whole = self.tile[1] // self.slices // 2, self.tile[1] // 2
        return value // of_pass * whole + part * of_pass + value % of_pass

    @property
    def roles(self) -> Roles:
        """What the family's warpgroups do."""
        return FAMILIES[self.family].roles

    @property
    def producers(self) -> int:
        """Warpgroups that only load."""
        return self.roles.producers

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return (self.producers + self.consumers) * hw.WARPGROUP

    @property
    def team(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 1 if self.pingpong else self.consumers

    @property
    def mma_columns(self) -> int:
        """Columns of one wgmma: the tile's, or half of them where four warpgroups leave too few registers at launch.

        The launch gives each thread of 512 but 128 registers, and ptxas wants an instruction's operands within that.
        """
        narrow = self.threads > 3 * hw.WARPGROUP and self.tile[1] > WIDEST_OF_FOUR
        return self.tile[1] // 2 if narrow else self.tile[1]

    @property
    def rows_per_pass(self) -> int:
        """Rows of the CTA tile that one wgmma of every warpgroup of a team covers together."""
        return hw.WGMMA_M * self.team

    @property
    def passes(self) -> int:
        """Passes over the CTA tile's output rows; a pair of halves along M takes two WGMMAs each."""
        return self.rows // self.rows_per_pass

    @property
    def rows(self) -> int:
        """Output rows of the CTA tile."""
        return self.tile[0] // self.a.halves

    @property
    def columns(self) -> int:
        """Output columns of the CTA tile."""
        return self.tile[1] // self.b.halves

    @property
    def pieces_n(self) -> int:
        """Pieces of EPI_N columns that a CTA stores of its tile."""
        return self.stored_columns // self.epi_n

    @property
    def pieces(self) -> int:
        """Pieces that each consumer warpgroup stores per tile."""
        return self.passes * self.pieces_n

    def piece_swizzle(self, matrix: MatrixConfig | OutputConfig) -> str:
        """The widest swizzle that the contiguous extent of a piece of `matrix` allows."""
        contiguous = hw.WGMMA_M if matrix.major == "m" else self.epi_n
        return widest_swizzle(contiguous, matrix.dtype.bits)

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of the output that one partial result of a reduction covers."""
        return PARTIAL_ROWS, self.stored_columns

    @property
    def partials_per_tile(self) -> int:
        """Partial results that a tile gives to a reduction over everything: one per warp that shares it."""
        return self.team * hw.WARPGROUP // hw.WARP

    @property
    def smem_limit(self) -> int:
        """Bytes of shared memory of a CTA: its share of an SM's, 1 KiB of which every CTA takes (CG, table 28)."""
        return (self.limits.smem_bytes + SMEM_RESERVED) // self.ctas_per_sm - SMEM_RESERVED

    @property
    def gathers(self) -> bool:
        """Whether an operand is loaded by the producer warpgroup's threads."""
        return any(x.load == "gather" for x in self.operands)

    @property
    def copies(self) -> bool:
        """Whether an operand is loaded by TMA."""
        return any(x.load == "tma" for x in self.operands)

    @property
    def registers(self) -> tuple[int, int] | None:
        """(producer, consumer) registers per thread set by setmaxnreg; None keeps the launch's allocation.

        Over the warpgroups of an SM's CTAs they sum to at most 512, an SM's registers divided by 128 threads.
        """
        if self.ctas_per_sm > 1:
            return self.roles.shared_registers.get(self.consumers)
        return self.roles.registers.get(self.gathers, {}).get(self.consumers)


@dataclass(frozen=True, kw_only=True)
class SimtConfig(EpilogueConfig):
    """A CUDA-core kernel: fp32 accumulation by fused multiply-add, any strides.

    `vector` is how many elements of A, B and D one global access moves. More than 1 needs the extent along
    the unit-stride axis, every other stride and the base address to be multiples of that many elements; at
    most 16 bytes for A and B (1 element of 16 bits), and 1 or 4 elements for D.
    """

    tile: tuple[int, int, int]
    vector: tuple[int, int, int] = (1, 1, 1)
    # (M, N) elements of D that one thread owns
    thread_tile: tuple[int, int] = (8, 8)
    # of a warp's lanes, how many lie along M: 2, 4, 8 or 16; the others along N
    lanes_m: int = 8
    # whether tiles come through registers, two in shared memory; else by cp.async into a ring (fp32 only)
    staged: bool = True
    # shared-memory tiles of A and B in a ring
    stages: int = 2
    # warps of the CTA that share an output, each with its part of every tile's K
    slices: int = 1
    # CTAs of a cluster that share an output tile, each with its part of K
    split: int = 1
    # steps of four k that the mainloop unrolls
    unroll: int = 1
    # CTAs per SM that registers are left for
    residents: int = 1
    family: str = "simt"

    @property
    def cluster_size(self) -> int:
        """CTAs per cluster: those that share out a tile's K."""
        return self.split

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of a warp along (M, N)."""
        return self.lanes_m, hw.WARP // self.lanes_m

    @property
    def owners(self) -> int:
        """Threads that hold one copy of the tile's accumulators."""
        return self.tile[0] * self.tile[1] // (self.thread_tile[0] * self.thread_tile[1])

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return self.owners * self.slices

    @property
    def columns(self) -> int:
        """Output columns of the CTA tile."""
        return self.tile[1] // self.gates

    @property
    def shares(self) -> bool:
        """Whether several threads hold partial sums of an output, which meet in shared memory."""
        return self.slices * self.split > 1

    @property
    def finished(self) -> tuple[int, int]:
        """(M, N) accumulators that a thread takes through the epilogue at once: its own, or a patch of the sums."""
        return (4, 4 * self.gates) if self.shares else self.thread_tile

    @property
    def partial_width(self) -> tuple[int, int]:
        """Rows and columns of the output that one partial result of a reduction covers: a warp's."""
        rows, columns = self.finished
        return self.lanes[0] * rows, self.lanes[1] * columns // self.gates

    @property
    def partials_per_tile(self) -> int:
        """Partial results that a tile gives to a reduction over everything."""
        rows, columns = self.partial_width
        return self.tile[0] * self.columns // (rows * columns)


@dataclass(frozen=True, kw_only=True)
class RelayoutConfig:
    """A copy of one matrix into TMA-addressable workspace whose unit-stride axis is the source's fastest."""

    dtype: DType
    unit: str  # source axis with unit stride: "col", "row" or "none"
    family: str = "relayout"

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return {"family": self.family, "dtype": self.dtype.value, "unit": self.unit}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> RelayoutConfig:
        """Rebuild a config from its `to_data`."""
        return cls(dtype=as_dtype(data["dtype"]), unit=data["unit"])


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


@dataclass(frozen=True, kw_only=True)
class ClearConfig:
    """Zeroes the counters of a kernel that runs after it."""

    family: str = "clear"

    def to_data(self) -> dict[str, Any]:
        """A JSON-serialisable form; `config_from_data` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> ClearConfig:
        """Rebuild a config from its `to_data`."""
        return cls(**data)


GemmConfig = KernelConfig | SimtConfig
Config = GemmConfig | RelayoutConfig | FinishConfig | ClearConfig


def config_from_data(data: dict[str, Any]) -> Config:
    """Rebuild a config from its `to_data`."""
    kind = load(FAMILIES[data["family"]].config)
    config: Config = kind.from_data(data)
    return config


def _part_data(part: MatrixConfig | OutputConfig) -> dict[str, str]:
    return dataclasses.asdict(part) | {"dtype": part.dtype.value}


def _part(kind: type, data: dict[str, str]) -> Any:
    return kind(**(data | {"dtype": as_dtype(data["dtype"])}))
