# SPDX-License-Identifier: Apache-2.0
"""A launch's host arguments, taken apart: global tensors of operands, inputs and outputs, and the numbers.

Every GEMM driver takes the groups of `cutegemm.launch_layout`; `named` gives a group's numbers by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import Config, GemmConfig, KernelConfig, MatrixConfig, OperandConfig
from cutegemm.kernels.host import operand_layouts as ops
from cutegemm.kernels.memory_views import elements_at
from cutegemm.launch_layout import layout_of


def named(config: Config, group: str, flat: Any) -> dict[str, Any]:
    """The numbers of a group of a launch's arguments by name: `named(config, "schedule", schedule)["clusters"]`."""
    return layout_of(config)[group].unpack(flat)


def options(config: KernelConfig, schedule: Any) -> dict[str, Any]:
    """What the `launch` of a kernel that multiplies takes beside its stream, from the group "schedule".

    Clusters of one CTA get no cluster attribute. With one, the GPU would distribute them over GPCs in turn.
    """
    return {
        "cluster": (config.cluster_size, 1, 1) if config.cluster_size > 1 else None,
        "grid": (named(config, "schedule", schedule)["clusters"] * config.cluster_size, 1, 1),
        "block": (config.threads, 1, 1),
        "min_blocks_per_mp": config.ctas_per_sm,
        # two CTAs want all of L1 as shared memory
        "preferred_smem_carveout": 100 if config.ctas_per_sm > 1 else None,
        "use_pdl": config.trigger != "never",
    }


def launch_thread(config: KernelConfig, schedule: Any, thread: Any) -> tuple[Any, Any]:
    """(which, of how many) of a launch's consumers' threads this is, from the thread's number among its CTA's."""
    block, _, _ = cute.arch.block_idx()
    each = config.consumers * hw.WARPGROUP
    return block * each + thread, schedule.clusters * (config.cluster_size * each)


@dataclass(frozen=True)
class Addresses:
    """The addresses of a launch, by what they are of."""

    operands: tuple
    inputs: tuple
    outputs: tuple
    partials: tuple
    scalars: tuple

    @staticmethod
    def of(config: GemmConfig, addresses: Any) -> Addresses:
        """From the group "addresses"."""
        by_name = named(config, "addresses", addresses)
        graph = config.epilogue

        def of(names: Iterable[str]) -> tuple:
            return tuple(by_name[name] for name in names)

        return Addresses(
            operands=of(x.role for x in config.operands),
            inputs=of(graph.tensors),
            outputs=of(x.name for x in graph.stores),
            partials=of(x.name for x in graph.reductions),
            scalars=of(config.device_scalars),
        )


@dataclass(frozen=True)
class Strides:
    """The strides of a launch, by what they are of."""

    operands: dict[str, Any]  # by role
    gates: dict[str, Any]  # from one half of a gated pair to the other, by role
    inputs: tuple
    outputs: tuple

    @staticmethod
    def of(config: GemmConfig, strides: Any) -> Strides:
        """From the group "strides"."""
        by_name = named(config, "strides", strides)
        graph = config.epilogue
        return Strides(
            operands={x.role: by_name[x.role] for x in config.operands},
            gates={x.role: by_name[f"{x.role}.gate"] for x in config.operands if x.halves == 2},
            inputs=tuple(by_name[name] for name in graph.tensors),
            outputs=tuple(by_name[x.name] for x in graph.stores),
        )


def _strided(matrix: MatrixConfig, address: Any, shape: tuple, strides: tuple) -> cute.Tensor:
    """A view of global memory of which nothing is known but the alignment of elements."""
    start = elements_at(ops.NUMERIC[matrix.dtype], address).iterator
    return cute.make_tensor(start, cute.make_layout(shape, stride=strides))


def input_tensors(config: GemmConfig, addresses: Addresses, strides: Strides, shape: Any) -> tuple:
    """The graph's tensor inputs as (m, n, l), in its order."""
    found, extents = [], named(config, "shape", shape)
    for i, (name, kind) in enumerate(config.epilogue.tensors.items()):
        of = (config.inputs[i], addresses.inputs[i], (extents["m"], extents["n"], extents[f"{name}.l"]))
        row, column, batch = strides.inputs[i]
        if kind == "matrix":
            found.append(ops.global_tensor(*of, strides.inputs[i], "mn"))
        elif kind in ("row", "col"):
            # the same for all rows, or for all columns
            found.append(_strided(*of, (0, column, batch) if kind == "row" else (row, 0, batch)))
    return tuple(found)


def scale_tensors(config: GemmConfig, addresses: Addresses, strides: Strides, shape: Any) -> tuple:
    """Scales of operands' blocks as (blocks of rows or columns, blocks of K, l)."""
    found, extents = [], named(config, "shape", shape)
    for i, scale in enumerate(config.epilogue.scales, len(config.read)):
        row, column, batch = strides.inputs[i]
        along, over = (row, column) if scale.axis == "m" else (column, row)
        # its own extents bound nothing: what is read is clamped to the GEMM's
        size = (extents[scale.axis], extents["k"], extents[f"{scale.name}.l"])
        found.append(_strided(config.inputs[i], addresses.inputs[i], size, (along, over, batch)))
    return tuple(found)


def output_tensors(config: GemmConfig, addresses: Addresses, strides: Strides, shape: Any) -> tuple:
    """The stored outputs as (m, n, l), in the graph's order."""
    extents = named(config, "shape", shape)
    extent = (extents["m"], extents["n"], extents["l"])
    return tuple(
        ops.global_tensor(x, addresses.outputs[i], extent, strides.outputs[i], "mn")
        for i, x in enumerate(config.outputs)
    )


def operand_tensors(config: GemmConfig, addresses: Addresses, strides: Strides, shape: Any) -> tuple:
    """Every operand as (rows, k, l), with (2, l) for l where it holds a gated pair."""
    return tuple(
        ops.global_tensor(x, place, *operand_layout(config, x, strides, shape), x.axes)
        for x, place in zip(config.operands, addresses.operands, strict=True)
    )


def operand_layout(
    config: GemmConfig, operand: OperandConfig, strides: Strides, shape: Any
) -> tuple[tuple, tuple]:
    """Extents and strides of an operand as (rows, k, l), with (2, l) for l where it holds a gated pair."""
    extents, role = named(config, "shape", shape), operand.role
    rows, depth = (extents[x] for x in operand.axes)
    if isinstance(config, KernelConfig):
        depth = config.instruction.stored(depth)
    extent = (rows, depth, extents[f"{role}.l"])
    stride = strides.operands[role]
    if operand.halves == 1:
        return extent, stride
    return (*extent[:2], (2, extent[2])), (*stride[:2], (strides.gates[role], stride[2]))


def scalar_tensors(addresses: Addresses) -> tuple:
    """The device scalars as one-element fp32 tensors."""
    return tuple(elements_at(cutlass.Float32, x) for x in addresses.scalars)
