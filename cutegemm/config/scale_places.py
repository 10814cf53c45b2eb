# SPDX-License-Identifier: Apache-2.0
"""Scales of operands' blocks (`kernels.mainloop.block_scales`): where they lie in a stage, who loads them, registers.

Also how a tile falls into blocks of which the epilogue finds scales (`kernels.epilogue.quantized_blocks`).
"""

from __future__ import annotations

from typing import Any

from cutegemm.config.numbers import Number, most, round_up, where
from cutegemm.epilogue.scales import K_BLOCK, BlockScale

WORDS = 16  # rows or columns whose scales are in the order of the threads that read them
WORD = 4  # scales that a thread may read at once
FEWEST = 8  # registers that scales take while they are multiplied

Kernel = Any  # a `KernelDraft`, whose own properties ask


def kept(config: Kernel, scale: BlockScale) -> Number:
    """Places for an operand's scales in a stage: whole words."""
    return round_up(config.scales_of(scale), WORDS if scale.extent == 1 else WORD)


def staged(config: Kernel) -> Number:
    """Places for scales in a stage: of both operands."""
    return sum(kept(config, x) for x in config.epilogue.scales)


def registers(config: Kernel) -> Number:
    """Registers that a thread's scales of a stage take.

    Where rows and columns have their own, and a thread several rows of WGMMAs, the products of a row's scales are ready
    when its WGMMAs end, one for each sum, beside the next row's scales.
    """
    scales = config.epilogue.scales
    read = most(FEWEST, sum(config.scales_read(x) for x in scales)) if scales else 0
    if not config.crossed_scales:
        return read
    ready = config.tile_values // config.wgmma_rows + FEWEST
    return where(config.wgmma_rows > 1, most(read, ready), read)


def loaders(config: Kernel) -> int:
    """Threads that load scales, the last of the producer: all but the first warp, which issues TMA loads alone.

    Where one warp does both, it is slower than WGMMA.
    """
    if not config.epilogue.scales or not config.multiplies:
        return 0
    return int(config.limits.warpgroup - config.limits.warp)


def aligned(config: Kernel) -> bool:
    """Whether stages of groups along K begin at multiples of their depth, wherever a group begins.

    A stage is then one of the blocks of the whole K that have scales.
    """
    return config.grouped == "k" and bool(config.epilogue.scales)


def block_subtiles(config: Kernel) -> int:
    """Neighbouring subtiles that are stored together: those of 128 columns, where blocks of these have scales."""
    return int(K_BLOCK // config.epi_n) if config.epilogue.blocks else 1


def shared_blocks(config: Kernel) -> Number:
    """Blocks of a tile of which two warpgroups each have 64 rows, and share their maxima."""
    if not any(x.block > 1 for x in config.epilogue.blocks):
        return 0
    return config.stores * config.passes * config.stored_columns // K_BLOCK
