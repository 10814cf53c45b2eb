# SPDX-License-Identifier: Apache-2.0
"""Where the scales of operands' blocks lie in a stage, and who loads them (`kernels.mainloop.block_scales`).

Also how a tile falls into blocks of which the epilogue finds scales (`kernels.epilogue.quantized_blocks`).
"""

from __future__ import annotations

from typing import Any

from cutegemm.config.numbers import Number, round_up
from cutegemm.epilogue.scales import K_BLOCK, BlockScale

WORDS = 16  # rows or columns whose scales are in the order of the threads that read them
WORD = 4  # scales that a thread may read at once

Kernel = Any  # a `KernelDraft`, whose own properties ask


def kept(config: Kernel, scale: BlockScale) -> Number:
    """Places for an operand's scales in a stage: whole words."""
    return round_up(config.scales_of(scale), WORDS if scale.extent == 1 else WORD)


def staged(config: Kernel) -> Number:
    """Places for scales in a stage: of both operands."""
    return sum(kept(config, x) for x in config.epilogue.scales)


def loaders(config: Kernel) -> int:
    """Threads that load scales, the last of the producer: all but the first warp, which issues TMA loads alone.

    Where one warp does both, it is slower than WGMMA.
    """
    if not config.epilogue.scales or not config.multiplies:
        return 0
    return int(config.limits.warpgroup - config.limits.warp)


def block_subtiles(config: Kernel) -> int:
    """Neighbouring subtiles that are stored together: those of 128 columns, where blocks of these have scales."""
    return int(K_BLOCK // config.epi_n) if config.epilogue.blocks else 1


def shared_blocks(config: Kernel) -> Number:
    """Blocks of a tile of which two warpgroups each have 64 rows, and share their maxima."""
    if not any(x.block > 1 for x in config.epilogue.blocks):
        return 0
    return config.stores * config.passes * config.stored_columns // K_BLOCK
