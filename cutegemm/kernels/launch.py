# SPDX-License-Identifier: Apache-2.0
"""A launch's host arguments, taken apart: global tensors of operands, inputs and outputs, and the numbers.

Every GEMM driver takes the same six (`cutegemm.arguments` packs them):
    addresses   of a, b, every tensor input, every stored output, every reduction's partial results, every
                device scalar, in the graph's order; Int64
    shape       (m, n of the output, k, l, batch extent of a, of b, of every tensor input); Int32
    strides     (row, column, batch) of a as m x k, of b as n x k, of every tensor input and stored output
                as m x n, flat; Int64 elements. A gated b is one of its halves, with the step to the other last.
    numbers     the graph's numbers passed by value, in its order: Float32 scalars, Int32 integers
    walk        (group, clusters, partial results per result over rows, columns, all); Int32
    stream
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import GemmConfig, MatrixConfig
from cutegemm.kernels import operands as ops


@dataclass(frozen=True)
class Addresses:
    """The addresses of a launch, by what they are of."""

    a: Any
    b: Any
    inputs: tuple
    outputs: tuple
    partials: tuple
    scalars: tuple

    @staticmethod
    def of(config: GemmConfig, addresses: Any) -> Addresses:
        """Split the flat tuple."""
        found, rest = [], list(addresses)[2:]
        for count in (
            len(config.inputs),
            len(config.outputs),
            len(config.epilogue.reductions),
            len(config.device_scalars),
        ):
            found.append(tuple(rest[:count]))
            rest = rest[count:]
        return Addresses(addresses[0], addresses[1], *found)


@dataclass(frozen=True)
class Strides:
    """The strides of a launch, by what they are of."""

    a: Any
    b: Any
    gate: Any  # from one half of a gated b to the other, or None
    inputs: tuple
    outputs: tuple

    @staticmethod
    def of(config: GemmConfig, strides: Any) -> Strides:
        """Split the flat tuple."""
        flat = list(strides)
        triples = [tuple(flat[i : i + 3]) for i in range(0, len(flat) - len(flat) % 3, 3)]
        gate = flat[-1] if config.epilogue.gated else None
        inputs = 2 + len(config.inputs)
        return Strides(triples[0], triples[1], gate, tuple(triples[2:inputs]), tuple(triples[inputs:]))


def vector_tensor(
    matrix: MatrixConfig, address: Any, extent: Any, strides: Any, batch: Any, kind: str
) -> cute.Tensor:
    """A row or column input as (m, n, l), with stride 0 along what it is the same for."""
    step = strides[1] if kind == "row" else strides[0]
    ptr = cute.make_ptr(
        ops.NUMERIC[matrix.dtype], address, cute.AddressSpace.gmem, assumed_align=matrix.dtype.bytes
    )
    stride = (0, step, strides[2]) if kind == "row" else (step, 0, strides[2])
    return cute.make_tensor(ptr, cute.make_layout((extent[0], extent[1], batch), stride=stride))


def input_tensors(config: GemmConfig, addresses: Addresses, strides: Strides, shape: Any) -> tuple:
    """The graph's tensor inputs as (m, n, l), in its order."""
    found = []
    for i, (kind, matrix) in enumerate(zip(config.epilogue.tensors.values(), config.inputs)):
        batch = shape[6 + i]
        if kind == "matrix":
            extent = (shape[0], shape[1], batch)
            found.append(ops.global_tensor(matrix, addresses.inputs[i], extent, strides.inputs[i], "mn"))
        else:
            found.append(
                vector_tensor(matrix, addresses.inputs[i], shape[:2], strides.inputs[i], batch, kind)
            )
    return tuple(found)


def output_tensors(config: GemmConfig, addresses: Addresses, strides: Strides, shape: Any) -> tuple:
    """The stored outputs as (m, n, l), in the graph's order."""
    extent = (shape[0], shape[1], shape[3])
    return tuple(
        ops.global_tensor(x, addresses.outputs[i], extent, strides.outputs[i], "mn")
        for i, x in enumerate(config.outputs)
    )


def operand_tensors(config: GemmConfig, addresses: Addresses, strides: Strides, shape: Any) -> tuple:
    """A as (m, k, l) and B as (n, k, l), or (n, k, (2, l)) where it is gated."""
    mA = ops.global_tensor(config.a, addresses.a, (shape[0], shape[2], shape[4]), strides.a, "mk")
    extent, stride = b_layout(config, strides, shape)
    return mA, ops.global_tensor(config.b, addresses.b, extent, stride, "nk")


def b_layout(config: GemmConfig, strides: Strides, shape: Any) -> tuple[tuple, tuple]:
    """Extents and strides of B as (n, k, l), or (n, k, (2, l)) where it is gated."""
    extent, stride = (shape[1], shape[2], shape[5]), strides.b
    if config.epilogue.gated is None:
        return extent, stride
    return (*extent[:2], (2, extent[2])), (*stride[:2], (strides.gate, stride[2]))


def scalar_tensors(addresses: Addresses) -> tuple:
    """The device scalars as one-element fp32 tensors."""
    return tuple(
        cute.make_tensor(
            cute.make_ptr(cutlass.Float32, x, cute.AddressSpace.gmem, assumed_align=4), cute.make_layout(1)
        )
        for x in addresses.scalars
    )
