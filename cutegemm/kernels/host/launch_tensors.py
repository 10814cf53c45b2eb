# SPDX-License-Identifier: Apache-2.0
"""What the host side of a tensor-core launch hands to the kernel: global tensors, and TMA atoms beside them."""

from __future__ import annotations

from typing import Any, NamedTuple

from cutlass import cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.config.stage import StageItem
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host import operand_layouts as ops
from cutegemm.kernels.load.tma_unaligned_load import class_maps
from cutegemm.launch_layout import ROW_INDICES, SCHEDULER_READS, SPLIT_PLACES


class Tensors(NamedTuple):
    """Global tensors of a launch, each group in its config's order; TMA's coordinates where an atom goes with one."""

    operands: tuple  # (rows, k, l) of each, or with (2, l) for l where it holds a gated pair
    inputs: tuple  # (m, n, l)
    outputs: tuple  # (m, n, l)
    partials: tuple  # addresses of the reductions' partial results, Int64
    scalars: tuple  # the device scalars, one element each
    splits: tuple  # addresses of `SPLIT_PLACES` where splits of K are added in workspace, else none; Int64
    scheduler: tuple  # addresses of what the tile scheduler reads (`SCHEDULER_READS`), Int64
    indices: tuple  # the address of `ROW_INDICES` where they name an operand's rows, else none; Int64
    scales: tuple  # of operands' blocks, (blocks of rows or columns, blocks of K, l)
    memory: tuple  # of groups: the outputs (m, n, l) in global memory, also those that TMA stores; else None of each


class Atoms(NamedTuple):
    """TMA atoms of the same tensors; None where TMA is not used."""

    operands: tuple
    inputs: tuple
    outputs: tuple


def launch_tensors(config: KernelConfig, addresses: Any, shape: Any, strides: Any) -> tuple[Tensors, Atoms]:
    """From the arguments of `launch`."""
    places, steps = launch.Addresses.of(config, addresses), launch.Strides.of(config, strides)
    pairs: list = []
    if config.multiplies:
        matrices = launch.operand_tensors(config, places, steps, shape)
        pairs = [
            _item(x, tensor, ops.rounded(config)) for x, tensor in zip(config.stage, matrices, strict=True)
        ]
    groups = (pairs, *(_epilogue(config, places, steps, shape) if config.stores else ([], [])))
    atoms = Atoms(*(tuple(atom for atom, _ in group) for group in groups))
    tensors = (tuple(tensor for _, tensor in group) for group in groups)
    by_name = launch.named(config, "addresses", addresses)
    splits = tuple(by_name[name] for name in SPLIT_PLACES if name in by_name)
    scheduler = tuple(by_name[name] for name in SCHEDULER_READS.get(config.tile_scheduler, ()))
    indices = tuple(by_name[name] for name in (ROW_INDICES,) if name in by_name)
    scales = launch.scale_tensors(config, places, steps, shape) if config.multiplies else ()
    scalars = launch.scalar_tensors(places)
    memory: tuple = (None,) * len(config.outputs)
    if config.grouped in ("m", "n"):
        memory = launch.output_tensors(config, places, steps, shape)
    others = (places.partials, scalars, splits, scheduler, indices, scales, memory)
    return Tensors(*tensors, *others), atoms


def _epilogue(config: KernelConfig, places: launch.Addresses, steps: launch.Strides, shape: Any) -> tuple:
    """(atom, coordinates) of the inputs and of the outputs that TMA moves, (None, tensor) of others."""
    box = (hw.WGMMA_M, config.epi_n)
    inputs = []
    for matrix, tensor in zip(config.read, launch.input_tensors(config, places, steps, shape), strict=True):
        by_tma = matrix.load == "tma"
        inputs.append(ops.load_atom(tensor, _subtile(config, matrix), box) if by_tma else (None, tensor))
    outputs = []
    for matrix, tensor in zip(
        config.outputs, launch.output_tensors(config, places, steps, shape), strict=True
    ):
        by_tma = matrix.store == "tma"
        outputs.append(ops.store_atom(tensor, _subtile(config, matrix), box) if by_tma else (None, tensor))
    return inputs, outputs


def _item(item: StageItem, tensor: cute.Tensor, rounded: Any = None) -> tuple[Any, cute.Tensor]:
    """(atom, coordinates) of an item that TMA loads, (None, tensor) of another.

    (`tma_unaligned_load.class_maps`, tensor) of one whose words TMA loads.
    """
    if item.boxed:
        return class_maps(item, tensor), tensor
    if item.load != "tma":
        return None, tensor
    return ops.load_atom(tensor, ops.box_layout(item), item.part, (item.peers, item.shares), rounded)


def _subtile(config: KernelConfig, matrix: Any) -> cute.ComposedLayout:
    """One subtile of an epilogue's matrix in shared memory."""
    return cute.slice_(ops.subtile_layout(config, matrix, 1), (None, None, 0))
