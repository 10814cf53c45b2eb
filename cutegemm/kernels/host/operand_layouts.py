# SPDX-License-Identifier: Apache-2.0
"""Global tensors from addresses and strides, shared-memory layouts, and TMA atoms of the operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig, MatrixConfig, OperandConfig, OutputConfig
from cutegemm.config.stage import StageItem
from cutegemm.dtypes import DType
from cutegemm.kernels.host.tf32_op import MmaTf32Op

NUMERIC = {
    DType.FP16: cutlass.Float16,
    DType.BF16: cutlass.BFloat16,
    DType.FP32: cutlass.Float32,
    DType.FP8_E4M3: cutlass.Float8E4M3FN,
    DType.FP8_E5M2: cutlass.Float8E5M2,
    DType.INT8: cutlass.Int8,
    DType.UINT8: cutlass.Uint8,
    DType.INT32: cutlass.Int32,
}

# the DSL's forms of wgmma, by `Instruction.form`: called with the types of A, B and accumulators, the shape, the source
# of A and both majors
FORMS: dict[str, Callable] = {
    "half": lambda a, b, *how: warpgroup.MmaF16BF16Op(a, *how),
    "fp8": warpgroup.MmaF8Op,
    "int8": warpgroup.MmaI8Op,
    "tf32": MmaTf32Op,
}
# what an instruction takes elements for, by its form, where that is not their own type
TAKEN_FOR = {"tf32": cutlass.TFloat32}
_ATOMS = warpgroup.SmemLayoutAtomKind
_LAYOUT_ATOM = {
    (True, "128B"): _ATOMS.K_SW128, (True, "64B"): _ATOMS.K_SW64,
    (True, "32B"): _ATOMS.K_SW32, (True, "none"): _ATOMS.K_INTER,
    (False, "128B"): _ATOMS.MN_SW128, (False, "64B"): _ATOMS.MN_SW64,
    (False, "32B"): _ATOMS.MN_SW32, (False, "none"): _ATOMS.MN_INTER,
}  # fmt: skip


def global_tensor(
    matrix: MatrixConfig | OutputConfig, address, shape, strides, axes: str, vector: int = 1
) -> cute.Tensor:
    """A view of global memory of the given shape.

    Args:
        matrix: dtype, the unit-stride axis, and whether TMA addresses it.
        address: Int64.
        shape: (rows, cols, batch), Int32; batch may be a pair.
        strides: (row, col, batch) like shape, Int64 elements; the unit-stride axis becomes the constant 1.
        axes: names of the first two axes, e.g. "mk".
        vector: elements of which the address and the other strides are multiples, where TMA does not address it.
    """
    numeric, size = NUMERIC[matrix.dtype], matrix.dtype.bytes
    tma = "tma" in (getattr(matrix, "load", None), getattr(matrix, "store", None))
    step = hw.TMA_ALIGN // size if tma else vector
    ptr = cute.make_ptr(numeric, address, cute.AddressSpace.gmem, assumed_align=step * size)
    known = tuple(
        1 if axis == matrix.major else assumed(x, step) for axis, x in zip(axes + "l", strides, strict=True)
    )
    return cute.make_tensor(ptr, cute.make_layout(shape, stride=known))


def assumed(stride: Any, step: int) -> Any:
    """A stride, or a pair of them, known to be a multiple of `step` elements."""
    if isinstance(stride, tuple):
        return tuple(assumed(x, step) for x in stride)
    return cute.assume(stride, divby=step)


def item_layout(item: StageItem, stages: int) -> cute.ComposedLayout:
    """An item's tiles in the pipeline's stages: (ROWS, BLK_K, STAGE) in a layout WGMMA and TMA both read."""
    order = (0, 1, 2) if item.operand.k_major else (1, 0, 2)
    return cute.tile_to_shape(_operand_atom(item.operand), (*item.box, stages), order=order)


def _operand_atom(operand: OperandConfig) -> cute.ComposedLayout:
    kind = _LAYOUT_ATOM[operand.k_major, operand.swizzle]
    return warpgroup.make_smem_layout_atom(kind, NUMERIC[operand.dtype])


def box_layout(item: StageItem) -> cute.ComposedLayout:
    """The layout of what one TMA loader brings: (ROWS, BLK_K) of one stage."""
    operand, (rows, depth) = item.operand, item.box
    # not a slice of the pipeline: slicing a layout of an odd number of atoms aborts the compiler
    order = (0, 1) if operand.k_major else (1, 0)
    layout = cute.tile_to_shape(_operand_atom(operand), (rows, depth), order=order)
    if operand.box_rows:
        return cute.make_composed_layout(layout.inner, 0, first_rows(operand, layout.outer, depth))
    if operand.halves == 1:
        return layout
    part = cute.composition(layout.outer, cute.make_layout((rows // 2, depth), stride=(1, rows)))
    return cute.make_composed_layout(layout.inner, 0, part)


def first_rows(operand: OperandConfig, layout: cute.Layout, *others: int) -> cute.Layout:
    """The rows that TMA loads of a layout (ROWS, BLK_K) or (ROWS, BLK_K, STAGE) of a tile of more."""
    return cute.composition(layout, tuple(cute.make_layout(x) for x in (operand.box_rows, *others)))


def subtile_layout(
    config: KernelConfig, matrix: MatrixConfig | OutputConfig, stages: int
) -> cute.ComposedLayout:
    """The epilogue's buffers of one matrix: (WGMMA_M, EPI_N, CONSUMERS * STAGE), one slice per warpgroup and stage."""
    row_major = matrix.major != "m"
    swizzle = config.subtile_swizzle(matrix)
    atom = warpgroup.make_smem_layout_atom(_LAYOUT_ATOM[row_major, swizzle], NUMERIC[matrix.dtype])
    shape = (hw.WGMMA_M, config.epi_n, config.consumers * stages)
    return cute.tile_to_shape(atom, shape, order=(0, 1, 2) if row_major else (1, 0, 2))


def tiled_mma(config: KernelConfig, warpgroups: int, columns: int) -> cute.TiledMma:
    """`warpgroups` stacked along M, each issuing m64 x `columns` x k of the operands' instruction."""
    how = config.instruction
    op = FORMS[how.form](
        *(TAKEN_FOR.get(how.form, NUMERIC[x.dtype]) for x in config.operands),
        NUMERIC[how.accumulator],
        (hw.WGMMA_M, columns, how.k),
        warpgroup.OperandSource.SMEM,
        *(OperandMajorMode.K if x.k_major else OperandMajorMode.MN for x in config.operands),
    )
    return cute.make_tiled_mma(cute.make_mma_atom(op), (warpgroups, 1, 1))


def rounded(config: KernelConfig) -> Any:
    """The type to whose nearest numbers TMA rounds operands, or None: the instruction would cut their low bits."""
    how = config.instruction
    return TAKEN_FOR[how.form] if how.ignored else None


def multiplied(config: KernelConfig, item: StageItem, sX: cute.Tensor) -> cute.Tensor:
    """An operand's stages as the instruction takes them: (ROWS, BLK_K, STAGE), of the instruction's own type."""
    numeric = TAKEN_FOR.get(config.instruction.form)
    if numeric is None:
        return sX
    # a recast pointer has no swizzle but the one that is named
    swizzle = item_layout(item, config.stages).inner
    return cute.make_tensor(cute.recast_ptr(sX.iterator, swizzle, dtype=numeric), sX.layout)


def load_atom(
    tensor: cute.Tensor,
    layout: cute.ComposedLayout,
    box: tuple[int, int],
    multicast: tuple[int, int] = (1, 1),
    rounded: Any = None,
):
    """The TMA atom and coordinate tensor that load a `box` of shared-memory `layout`.

    Args:
        multicast: (CTAs that receive the box, shares that it is loaded in).
        rounded: type of the same width to which elements are rounded, if any.
    """
    peers, shares = multicast
    op = cpasync.CopyBulkTensorTileG2SOp() if peers == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
    return cpasync.make_tiled_tma_atom(op, tensor, layout, box, num_multicast=shares, internal_type=rounded)


def prefetch(atoms: Iterable[Any]) -> None:
    """Prefetch the tensor maps of TMA atoms; None is not one."""
    for atom in atoms:
        if atom is not None:
            cpasync.prefetch_descriptor(atom)


def partition(
    atom: Any, sX: cute.Tensor, gX: cute.Tensor, share: tuple[Any, int] = (0, 1)
) -> tuple[Any, Any]:
    """(shared memory, coordinates of global memory) of a TMA atom's boxes, whose two modes become one.

    Args:
        sX, gX: (ROWS, COLUMNS, ...) of all buffers, and of the first box.
        share: (number of this CTA's share of each box, shares).
    """
    place, count = share
    return cpasync.tma_partition(
        atom, place, cute.make_layout(count), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    )


def batch_at(tensor: cute.Tensor, batch: Any, gate: int | None = None) -> Any:
    """The batch coordinate of a tensor (rows, columns, l): its only batch serves all; half `gate` of a gated pair."""
    if gate is None:
        return cutlass.min(batch, cute.size(tensor, mode=[2]) - 1)
    return (gate, cutlass.min(batch, cute.size(tensor, mode=[2, 1]) - 1))


def moved(box: cute.Tensor, coords: cute.Tensor, origin: tuple) -> cute.Tensor:
    """TMA coordinates of the box that begins at element `origin`, from those of the box at the matrix' first.

    Args:
        box: of a partition.
        coords: of the whole matrix, from `load_atom` or `store_atom`.
    """
    offset = cute.crd2idx(origin, coords.layout)
    return cute.make_tensor(tuple(x + y for x, y in zip(box.iterator, offset, strict=True)), box.layout)


def store_atom(tensor: cute.Tensor, layout: cute.ComposedLayout, box: tuple[int, int]):
    """The TMA atom and coordinate tensor that store a `box` of shared-memory `layout`."""
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), tensor, layout, box)
