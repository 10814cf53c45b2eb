# SPDX-License-Identifier: Apache-2.0
"""A tensor-core kernel's TMA boxes, and the bank conflicts of its stores."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cutegemm.config.kernel_config import KernelConfig
from cutegemm.config.parts import MatrixConfig, OutputConfig
from cutegemm.layouts import banks, hardware


@dataclass(frozen=True)
class Box:
    """How TMA moves one tile of an operand: `count` instructions of (inner, outer) elements each."""

    operand: str
    extents: tuple[int, int]
    count: int


def boxes(config: KernelConfig) -> tuple[Box, ...]:
    """TMA instructions: for A and B per tile, in this CTA's share of a multicast; for other matrices per subtile.

    CTAs that need the same tile divide it along its strided axis or load whole tiles in turn (`StageItem.shares`).
    """
    found = []
    for item in config.stage:
        name, operand, (rows, depth) = item.role.upper(), item.operand, item.part
        if item.load == "tma":
            extents = (depth, rows // item.shares) if operand.k_major else (rows, depth // item.shares)
            found.append(_box(name, extents, operand.swizzle, item.bits, operand.halves))
        elif item.boxed:
            row = item.words.pitch // item.words.size
            found.append(Box(f"{name} words", (row, item.words.per_class), item.words.classes))
    matrices: list[tuple[str, MatrixConfig | OutputConfig, str]] = []
    if not config.stores:
        return tuple(found)
    matrices += [(x.name, y, y.store) for x, y in zip(config.epilogue.stores, config.outputs)]
    matrices += [(name, x, x.load) for name, x in config.input_of.items()]
    for name, matrix, how in matrices:
        if how == "tma":
            rows, columns = config.limits.mma_m, config.epi_n
            extents = (rows, columns) if matrix.major == "m" else (columns, rows)
            shown = name.upper() if name in ("c", "d") else name
            found.append(_box(shown, extents, config.subtile_swizzle(matrix), matrix.dtype.bits, 1))
    return tuple(found)


@functools.lru_cache(1024)
def _box(name: str, extents: tuple[int, int], swizzle: str, bits: int, copies: int) -> Box:
    cut = hardware.tma_box(*extents, swizzle, bits)
    return Box(name, cut.box, cut.count * copies)


def store_conflicts(config: KernelConfig) -> int | None:
    """Extra shared-memory wavefronts of one warp's stmatrix into the staging buffer; None without such a buffer.

    Computed by `layouts.banks` for the first block that one stmatrix writes; swizzled subtiles have no conflicts.
    """
    staged = [x for x in config.outputs if x.store != "direct" and x.dtype.bits == 16]
    if not staged or not config.stores:
        return None
    extents = (config.limits.mma_m, config.epi_n)
    return _store_conflicts(staged[0].major == "m", extents, config.subtile_swizzle(staged[0]))


@functools.lru_cache(256)
def _store_conflicts(column_major: bool, extents: tuple[int, int], swizzle: str) -> int:
    layout = hardware.smem_layout(extents, "mn" if column_major else "k", swizzle)
    rows = hardware.fragment_row_coordinates(4 if extents[1] % 16 == 0 else 2, transposed=column_major)
    return banks.matrix_access(banks.layout_addresses(layout, rows)).conflicts
