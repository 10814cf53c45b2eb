# SPDX-License-Identifier: Apache-2.0
"""Cooperative launches: the memory that `grid.sync()` of cooperative groups counts arrivals in.

A kernel that uses it reads its address from the registers %envreg1 (high half) and %envreg2 (low half). It holds its
own size and the barrier's counter. All CTAs of such a launch must be resident together.

Source: cooperative_groups/details/driver_abi.h of CUDA 13.0; CUDA programming guide, cooperative launches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cutegemm.emulator.state.memory import GlobalMemory, Region

if TYPE_CHECKING:
    from cutegemm.emulator.translate.program import Program

WORKSPACE_BYTES = 16  # two 32-bit words, rounded up to what a region is a multiple of
_REGISTERS = ("%envreg1", "%envreg2")


def is_cooperative(program: Program) -> bool:
    """Whether a kernel reads the address of the workspace."""
    return any(program.mentions(register) for register in _REGISTERS)


def grid_workspace(program: Program, memory: GlobalMemory) -> dict[str, int]:
    """Add a launch's workspace to its memory, where its kernel uses one; the registers that hold its address."""
    if not is_cooperative(program):
        return {}
    words = np.zeros(WORKSPACE_BYTES // 4, np.uint32)
    words[0] = WORKSPACE_BYTES
    region = Region(words.view(np.uint8), words.ctypes.data, "the barrier of grid.sync")
    memory.regions.append(region)
    return {"envreg1": region.base >> 32, "envreg2": region.base & 0xFFFFFFFF}
