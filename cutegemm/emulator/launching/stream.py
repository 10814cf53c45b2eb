# SPDX-License-Identifier: Apache-2.0
"""State that the launches of a stream share: global memory, module variables, race detector, L2 cache.

Under programmatic dependent launch a launch starts when every CTA of the previous one has triggered
(griddepcontrol.launch_dependents) or ended. The emulator runs launches one after another, so overlap does not change
results. From triggers and waits it derives which launches could overlap on hardware, and tells the race detector which
launches have ended for each thread.

Sets of launches are sets of the detector's segments. For launch i:

    over(i)    what has ended once launch i has ended: launch i, start(i), and over(i - 1) if any thread of it waited
    start(i)   what has ended when launch i starts. Without PDL everything before it. With PDL over(i - 1), if no CTA
               of launch i - 1 triggered. Else start(i - 1), the CTAs of launch i - 1 that ended without a trigger, and
               over(i - 2) if a CTA triggered after a wait, or waited and ended without a trigger

A thread that executes griddepcontrol.wait is ordered after over(i - 1).

Source: PTX ISA 9.0, 9.7.13.13 (griddepcontrol); CUDA programming guide, programmatic dependent launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.kernel import Variable
from cutegemm.emulator.races.cells import cell_bytes
from cutegemm.emulator.races.detector import Detector
from cutegemm.emulator.races.shadow import Knowledge, Segment
from cutegemm.emulator.state.geometry import Triple
from cutegemm.emulator.state.memory import Buffer, GlobalMemory, MemoryRegion
from cutegemm.emulator.watch.l2 import L2
from cutegemm.emulator.watch.written import Written
from cutegemm.errors import EmulatorError

VARIABLE_ALIGN = 256  # bytes; more than any variable declares
# `grid.sync()` of cooperative groups counts arrivals in a workspace of its size and a counter, here rounded up to 16
# bytes (cooperative_groups/details/driver_abi.h of CUDA 13.0). A kernel reads its address from %envreg1 (high half) and
# %envreg2. All CTAs of such a launch must be resident together.
WORKSPACE_BYTES = 16
_REGISTERS = ("%envreg1", "%envreg2")


def is_cooperative(program: Translation) -> bool:
    """Whether a kernel uses the workspace of `grid.sync()`."""
    return any(program.mentions(register) for register in _REGISTERS)


def grid_workspace(program: Translation, memory: GlobalMemory) -> dict[str, int]:
    """Add a workspace to a launch's memory, if its kernel uses one; returns the registers that hold its address."""
    if not is_cooperative(program):
        return {}
    words = np.zeros(WORKSPACE_BYTES // 4, np.uint32)
    words[0] = WORKSPACE_BYTES
    region = MemoryRegion(words.view(np.uint8), words.ctypes.data, "the barrier of grid.sync")
    memory.regions.append(region)
    return {"envreg1": region.base >> 32, "envreg2": region.base & 0xFFFFFFFF}


def _placed(var: Variable) -> MemoryRegion:
    """New memory with the initial value of a module's variable."""
    data = np.zeros((var.size or 0) + VARIABLE_ALIGN, np.uint8)
    start = -data.ctypes.data % VARIABLE_ALIGN
    data[start : start + len(var.data)] = np.frombuffer(var.data, np.uint8)
    return MemoryRegion(data[start : start + (var.size or 0)], data.ctypes.data + start, var.name)


def _merged(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Buffers in the order of their addresses, overlapping ones merged."""
    out: list[Buffer] = []
    for b in sorted((b for b in buffers if b.size), key=lambda b: b.address):
        last = out[-1] if out else None
        if last is not None and b.address < last.address + last.size:
            end = max(last.address + last.size, b.address + b.size)
            out[-1] = Buffer(last.address, end - last.address, last.name)
        else:
            out.append(b)
    return out


class Stream:
    """The state of a stream, made from the programs and buffers of all its launches.

    constant: memory that an unknown launch before the first one does not write; None if there is no such launch.
    written: records the stores to the outputs that the launches must write.
    """

    def __init__(
        self,
        programs: Sequence[Translation],
        buffers: Sequence[Buffer],
        constant: Sequence[Buffer] | None = None,
        written: Written | None = None,
    ) -> None:
        self.constant, self.written = constant, written
        self.l2 = L2()
        self.detector: Detector | None = None
        self.cell = min(cell_bytes(program) for program in programs)
        self.regions = GlobalMemory(_merged(buffers)).regions
        # by identity: kernels of one module share its variables, other modules may use the same names
        self.variables: dict[int, tuple[Variable, MemoryRegion]] = {}

    def memory_of(self, buffers: Sequence[Buffer]) -> GlobalMemory:
        """The regions that contain a launch's buffers."""
        memory = GlobalMemory([])
        starts = [b.address for b in buffers if b.size]
        memory.regions = [
            r for r in self.regions if any(r.base + r.first <= a < r.base + r.size for a in starts)
        ]
        return memory

    def symbols_of(self, program: Translation, memory: GlobalMemory) -> dict[str, int]:
        """Addresses of a module's variables, which live as long as the stream; adds them to a launch's memory.

        Raises:
            EmulatorError: a variable that the kernel uses holds the address of something else, such as a function.
        """
        out: dict[str, int] = {}
        for var in program.kernel.variables.values():
            if var.space not in ("global", "const") or not var.size:
                continue
            new = id(var) not in self.variables
            if new:
                self.variables[id(var)] = var, _placed(var)
            region = self.variables[id(var)][1]
            out[var.name] = region.base
            memory.regions.append(region)
            for at, name, addend in var.addresses if new else ():
                if name in out:
                    region.view(8)[at // 8] = out[name] + addend
                elif program.mentions(var.name):
                    raise EmulatorError(
                        f"{var.name} holds the address of {name}, which is not a variable", field="ptx"
                    )
        return out

    def detector_of(self, program: Translation, strict: bool, pdl: bool) -> Detector:
        """The detector for the next launch: that of the launches it may overlap with, or a new one."""
        old = self.detector
        if old is None or not pdl:
            self.detector = Detector(program, strict, self.cell)
            if old is None and pdl and self.constant is not None:
                self._after_unknown(self.detector, self.constant)
            return self.detector
        over, started = _over(old), _started(old)
        old.enter(program)
        old.start, old.before = Knowledge(started, started, started), over
        return old

    def _after_unknown(self, detector: Detector, constant: Sequence[Buffer]) -> None:
        """Record that an unknown launch before the first one wrote all memory except `constant`."""
        number = len(detector.segments)
        detector.segments.append(Segment("access", "a launch before the sequence", False))
        detector.before = 1 << number
        detector.first = number + 1
        for region in self.regions:
            shadow = detector.shadow(region)
            shadow.written = True
            cells = shadow.written_by.cells
            cells[:] = ~number
            for b in constant:
                low, high = b.address - region.base, b.address + b.size - region.base
                cells[max(low, 0) // self.cell : max(-(-high // self.cell), 0)] = 0


def _over(detector: Detector) -> int:
    """Segments that have ended once the last launch has ended."""
    own = (1 << len(detector.segments)) - (1 << detector.first)
    return own | detector.start.segments | (detector.before if detector.waited else 0)


def _started(detector: Detector) -> int:
    """Segments that have ended when the next launch may start."""
    if not detector.triggers:
        return _over(detector)
    out = detector.start.segments
    ended: set[Triple] = set()
    for number in range(detector.first, len(detector.segments)):
        cta = detector.segments[number].cta
        if cta not in detector.triggers:
            out |= 1 << number
            ended.add(cta)
    late = any(detector.triggers.values()) or not ended.isdisjoint(detector.waited)
    return out | (detector.before if late else 0)
