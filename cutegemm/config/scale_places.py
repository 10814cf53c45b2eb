# SPDX-License-Identifier: Apache-2.0
"""Where the scales of operands' blocks lie in a stage, and who loads them (`kernels.mainloop.block_scales`)."""

from __future__ import annotations

from typing import Any

from cutegemm.config.numbers import Number, round_up
from cutegemm.epilogue.scales import BlockScale

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
    """Threads that load scales: those of the producer, whose first warp is alone if no operand is gathered."""
    if not config.epilogue.scales or not config.multiplies:
        return 0
    return int(config.limits.warpgroup if config.gathers else config.limits.warp)
