# SPDX-License-Identifier: Apache-2.0
"""What kernels know of matrices, and what every GEMM kernel has beside its mainloop."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.arch import sm90 as hw
from cutegemm.arch.architectures import ARCHITECTURES
from cutegemm.arch.limits import Limits
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import Graph

WORD_BYTES = 16  # of the widest access


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
        load: "tma", "gather", "shift" or "cp_async" of tensor-core kernels, "direct" of CUDA-core ones.
        width: bytes of one copy of "cp_async", else 0.
        box_rows: rows of its tile that TMA loads, where the matrix has no more; the others are zeroed once. 0 is all.
        swizzle: of its tiles in shared memory, "128B", "64B", "32B" or "none".
        halves: 2 where it holds a gated pair's two factors, whose tiles lie side by side in a stage; else 1.
    """

    role: str
    swizzle: str = "none"
    halves: int = 1
    width: int = 0
    box_rows: int = 0

    @property
    def k_major(self) -> bool:
        """Whether its tiles are contiguous along K in shared memory."""
        return self.major not in ("m", "n")

    def word_bytes(self, rows: int, depth: int) -> int:
        """Shared memory of the words that "shift" keeps of a stage of rows x depth: one a line beyond its chunks."""
        if self.load != "shift":
            return 0
        lines, length = (rows, depth) if self.k_major else (depth * self.halves, rows // self.halves)
        return lines * (length * self.dtype.bytes + WORD_BYTES)


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


def _part_data(part: MatrixConfig | OutputConfig) -> dict[str, str]:
    return dataclasses.asdict(part) | {"dtype": part.dtype.value}


def _part(kind: type, data: dict[str, str]) -> Any:
    return kind(**(data | {"dtype": as_dtype(data["dtype"])}))
