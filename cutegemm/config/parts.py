# SPDX-License-Identifier: Apache-2.0
"""What kernels know of matrices at compile time, and what every GEMM kernel has besides its mainloop."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.arch.architectures import ARCHITECTURES, DEFAULT
from cutegemm.arch.limits import Limits
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.call_order import numbers
from cutegemm.epilogue.graph import Graph

WORD_BYTES = 16  # of the widest access
BOX_ALIGN = 128  # bytes: alignment of a box in shared memory (PTX ISA, cp.async.bulk.tensor)
# axes of the mainloop's matrices as kernels see them, by role
AXES = {"a": "mk", "b": "nk"}
BOX_ELEMENTS = 256  # of a box along an axis (PTX ISA, tensor maps)


@dataclass(frozen=True, kw_only=True)
class MatrixConfig:
    """What a kernel knows of one matrix when it is compiled.

    `major` names the axis with unit stride ("m", "n", "k"), or is "strided" when no stride is known.
    `load` is "tma" or "direct" for the epilogue's inputs.
    """

    dtype: DType
    major: str
    load: str = "direct"


@dataclass(frozen=True)
class Words:
    """The layout in shared memory of the aligned 16-byte words that hold a tile's unaligned rows.

    Rows whose index differs by a multiple of the elements of a word share the same alignment. They form a class, whose
    words lie in one block. A row has one word more than chunks of 16 bytes, so that neighbouring rows use other banks.

    Attributes:
        count: contiguous rows of a tile, along the operand's unit stride.
        length: elements of a row.
        size: bytes of an element, 2 or 4.
    """

    count: int
    length: int
    size: int

    @property
    def classes(self) -> int:
        """Classes of rows."""
        return WORD_BYTES // self.size

    @property
    def per_class(self) -> int:
        """The most rows of a class."""
        return -(-self.count // self.classes)

    @property
    def chunks(self) -> int:
        """Chunks of 16 bytes of a row."""
        return self.length * self.size // WORD_BYTES

    @property
    def pitch(self) -> int:
        """Bytes from row to row of a class."""
        return (self.chunks + 1) * WORD_BYTES

    @property
    def block(self) -> int:
        """Bytes from class to class."""
        return -(-self.per_class * self.pitch // BOX_ALIGN) * BOX_ALIGN

    @property
    def bytes(self) -> int:
        """Bytes of a stage."""
        return self.classes * self.block


@dataclass(frozen=True, kw_only=True)
class OperandConfig(MatrixConfig):
    """An operand: what a kernel knows of it, and the layout of its tiles in shared memory.

    Attributes:
        role: "a" (M x K) or "b" (N x K, as kernels see it).
        load: "tma", "gather", "shift" or "cp_async" of tensor-core kernels, "direct" of CUDA-core ones.
        width: bytes of one copy of "cp_async"; 16 for "shift" if every batch begins at the same byte of a word, so
            that TMA can load the words; else 0.
        box_rows: rows of its tile that TMA loads if the matrix has no more; the others are zeroed once. 0 is all.
        indexed: whether a tensor of indices names the rows, of a K-major operand that "cp_async" loads.
        swizzle: of its tiles in shared memory, "128B", "64B", "32B" or "none".
        halves: 2 if it holds both halves of a gated pair, whose tiles are adjacent in a stage; else 1.
    """

    role: str
    swizzle: str = "none"
    halves: int = 1
    width: int = 0
    box_rows: int = 0
    indexed: bool = False

    @property
    def axes(self) -> str:
        """The axes of its rows and columns."""
        return AXES[self.role]

    @property
    def k_major(self) -> bool:
        """Whether its tiles are contiguous along K in shared memory."""
        return self.major not in ("m", "n")

    def words(self, rows: int, depth: int) -> Words:
        """The layout of the words that "shift" keeps of a stage of rows x depth, for one half of a gated pair."""
        count, length = (rows, depth) if self.k_major else (depth, rows)
        return Words(count, length, self.dtype.bytes)

    def boxed(self, rows: int, depth: int) -> bool:
        """Whether TMA loads the words of a tile of rows x depth: each class of rows is a box."""
        words = self.words(rows, depth)
        whole = (words.count % words.classes == 0) & (words.pitch <= BOX_ELEMENTS * self.dtype.bytes)
        return whole & (self.load == "shift" and self.width == WORD_BYTES and self.halves == 1)


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What a kernel knows of one stored matrix: its type, unit-stride axis and store ("tma", "staged", "direct")."""

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
    limits: Limits = DEFAULT

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> EpilogueConfig:
        """Rebuild a config from its `to_data`."""
        data = dict(data)
        for name, kind in (("operands", OperandConfig), ("inputs", MatrixConfig), ("outputs", OutputConfig)):
            data[name] = tuple(_part(kind, x) for x in data[name])
        for name in ("tile", "cluster", "vector", "thread_tile", "device_scalars", "early", "evict_first"):
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
    def read(self) -> tuple[MatrixConfig, ...]:
        """The tensors that the epilogue reads: not the scales of blocks, which come last."""
        return self.inputs[: len(self.inputs) - len(self.epilogue.scales)]

    @property
    def host_numbers(self) -> dict[str, str]:
        """Name -> kind of the numbers that a launch passes by value."""
        return numbers(self.epilogue, self.device_scalars)

    @property
    def gates(self) -> int:
        """Accumulator columns per output column: 2 for a gated pair."""
        return 2 if self.epilogue.gated else 1

    @property
    def approximate(self) -> bool:
        """Whether tanh, sigmoid and erf may have an error of 2**-11, that of the hardware's tanh."""
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
