# SPDX-License-Identifier: Apache-2.0
"""The epilogue graph evaluated inside a kernel, element by element; what elements share is computed once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import GemmConfig
from cutegemm.epilogue.graph import COMPARISONS, LEAVES, LOGIC, Node
from cutegemm.kernels.epilogue import element_functions as functions
from cutegemm.kernels.host.operand_layouts import batch_at

TRUTHS = (*COMPARISONS, *LOGIC)
WHOLE = ("add", "sub", "mul")  # of integers they are integers, modulo 2**32
_DEPENDS = {"row": {"column"}, "col": {"row"}, "scalar": set(), "integer": set(), "const": set()}


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs as a kernel holds them: tensors (m, n, l) in global memory and numbers, by name."""

    tensors: dict[str, Any]
    numbers: dict[str, Any]
    scalars: dict[str, Any]  # one-element fp32 tensors of the numbers that lie on the device
    shape: Any  # (m, n) of the output, run time

    def read(self) -> Inputs:
        """The inputs with every number in a register; an earlier launch may write those on the device."""
        return dataclasses.replace(
            self, numbers=self.numbers | {name: x[0] for name, x in self.scalars.items()}
        )

    def element(self, name: str, coord: tuple[Any, Any, Any]) -> Any:
        """One element of a row or column input, Float32 or Int32, outside the output the nearest one inside.

        What is computed from the latter is never stored, and a load without a branch is cheaper than a guarded one.
        """
        tensor = self.tensors[name]
        row = cutlass.min(coord[0], self.shape[0] - 1)
        col = cutlass.min(coord[1], self.shape[1] - 1)
        whole = issubclass(tensor.element_type, cutlass.Integer)
        return tensor[row, col, batch_at(tensor, coord[2])].to(cutlass.Int32 if whole else cutlass.Float32)

    def matrix_element(
        self, name: str, first: tuple[Any, Any, Any], step: tuple[int, int], ends: tuple[Any, Any]
    ) -> Any:
        """One element of a matrix input as fp32, 0 where nothing is stored.

        A run may store an output over a matrix that it reads, so an element is read by the thread that stores
        it and by no other. The load is predicated: no branch, and no address to clamp.

        Args:
            first: (m, n, l) of some element of the thread, the same for many.
            step: (m, n) from there to the wanted one, known at compile time.
            ends: (m, n) from which on nothing is stored.
        """
        tensor = self.tensors[name]
        inside = [cutlass.Boolean(step[i] < ends[i] - first[i]) for i in (0, 1)]
        start = tensor.iterator + cute.crd2idx((*first[:2], batch_at(tensor, first[2])), tensor.layout)
        return _load_if(start + cute.crd2idx((*step, 0), tensor.layout), inside[0] & inside[1])


def _load_if(source: Any, wanted: Any) -> Any:
    """The element at a pointer as fp32, or 0 and no access."""
    bits = source.dtype.width
    # the narrowest registers are of 16 bits
    word = cutlass.Uint32 if bits == 32 else cutlass.Uint16
    ptx = f"mov.b{word.width} {{$w0}}, 0;\n\t@{{$r1}} ld.global.b{bits} {{$w0}}, [{{$r0}}];"
    rW = cute.make_rmem_tensor(1, word)
    rW[0] = cute.arch.inline_ptx(ptx, write_only_types=[word], read_only_args=[source, wanted])
    rX = cute.make_tensor(cute.recast_ptr(rW.iterator, dtype=source.dtype), cute.make_layout(1))
    return rX[0].to(cutlass.Float32)


def bind(config: GemmConfig, tensors: tuple, numbers: tuple, scalars: tuple, shape: Any) -> Inputs:
    """Inputs from a launch's arguments.

    Args:
        tensors: the graph's tensors in global memory.
        numbers: those passed by value.
        scalars: those passed by address; `Inputs.read` loads them.
        shape: (m, n) of the output.
    """
    given, read = dict(zip(config.host_numbers, numbers)), dict(zip(config.device_scalars, scalars))
    return Inputs(dict(zip(config.epilogue.tensors, tensors)), given, read, shape)


@dataclass
class Fusion:
    """One evaluation of the graph over a subtile of the output.

    Elements are known by (row key, column key): values that depend on the column alone, say a bias times a
    scale, are computed once per column key, and so on. Make a new one for every subtile.
    """

    config: GemmConfig
    leaf: (
        Callable  # (node, row key, column key) -> value of an acc, matrix, row or col leaf: Float32, or Int32
    )
    coord: Callable  # (row key, column key) -> (m, n, l)
    numbers: dict[str, Any]
    _known: dict = field(default_factory=dict)

    def __call__(self, row: Any, column: Any) -> list[Any]:
        """The values of all outputs at one element."""
        graph = self.config.epilogue
        table = functions.FAST if self.config.approximate else functions.FINE
        depends: list[set] = []
        values: list[Any] = []
        for index, node in enumerate(graph.nodes):
            depends.append(_depends(node, depends))
            key = (index, row if "row" in depends[-1] else None, column if "column" in depends[-1] else None)
            if key not in self._known:
                self._known[key] = self._value(node, values, row, column, table)
            values.append(self._known[key])
        return [values[x.node] for x in graph.outputs]

    def _value(self, node: Node, values: list, row: Any, column: Any, table: dict) -> Any:
        if node.op == "const":
            return cutlass.Float32(node.value)
        if node.op in ("scalar", "integer"):
            return self.numbers[node.value]
        if node.op in LEAVES:
            return self.leaf(node, row, column)
        args = [values[a] for a in node.args]
        if node.op == "random":
            m, n, batch = self.coord(row, column)
            return functions.uniform(*args, (n, m, batch) if self.config.epilogue.swapped else (m, n, batch))
        if node.op in WHOLE and all(isinstance(x, cutlass.Int32) for x in args):
            return cutlass.Int32(table[node.op](*args))
        args = [wide(x) for x in args]
        if node.op == "erf" and self.config.approximate:
            value, factor = self._scaled(node.args[0], values)
            return functions.erf_fast(wide(value), factor)
        value = table[node.op](*args, *(() if node.value is None else (node.value,)))
        # of constants the DSL's functions give bare values, which lack a numeric type's methods
        return cutlass.Boolean(value) if node.op in TRUTHS else cutlass.Float32(value)

    def _scaled(self, index: int, values: list[Any]) -> tuple[Any, float]:
        """A value as (another one, the constant that multiplies it)."""
        nodes = self.config.epilogue.nodes
        if nodes[index].op == "mul":
            for factor, other in (nodes[index].args, reversed(nodes[index].args)):
                if nodes[factor].op == "const" and 1e-3 < abs(nodes[factor].value) < 1e3:
                    return values[other], nodes[factor].value
        return values[index], 1.0


def wide(value: Any) -> Any:
    """A value as fp32 if it is an integer."""
    return cutlass.Float32(value) if isinstance(value, cutlass.Int32) else value


def _depends(node: Node, earlier: list[set]) -> set:
    """The coordinates a node's value varies with."""
    if node.op in ("acc", "matrix", "random"):
        return {"row", "column"}
    if node.op in LEAVES:
        return _DEPENDS[node.op]
    return set().union(*(earlier[a] for a in node.args))
