# SPDX-License-Identifier: Apache-2.0
"""What a launch finds in memory: its parameters, and the module's .global and .const variables.

Source: PTX ISA 9.0, 5.1.6 (parameter space), 5.1.3 (constant), 5.1.4 (global).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutegemm.emulator.state.addresses import PARAM_WINDOW
from cutegemm.emulator.state.memory import GlobalMemory, Region
from cutegemm.emulator.translate.program import Program

ALIGN = 256  # bytes; of a variable, more than any declares


def parameter_space(program: Program, params: Sequence[bytes]) -> Region:
    """The launch's parameters laid out as the kernel declares them, each of its size."""
    declared = program.kernel.params
    total = max((p.offset + p.size for p in declared), default=0)
    data = np.zeros(-(-max(total, 16) // 16) * 16 + 16, np.uint8)
    for p, value in zip(declared, params, strict=True):
        data[p.offset : p.offset + p.size] = np.frombuffer(value, np.uint8)
    return Region(data, PARAM_WINDOW, "parameters")


def place_variables(program: Program, memory: GlobalMemory) -> dict[str, int]:
    """Give the module's global and constant variables memory of their own; their addresses by name."""
    out = {}
    for var in program.kernel.variables.values():
        if var.space in ("global", "const") and var.size:
            data = np.zeros(var.size + ALIGN, np.uint8)
            start = -data.ctypes.data % ALIGN
            data[start : start + len(var.data)] = np.frombuffer(var.data, np.uint8)
            out[var.name] = data.ctypes.data + start
            memory.regions.append(Region(data[start : start + var.size], out[var.name], var.name))
    return out
