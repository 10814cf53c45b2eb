# SPDX-License-Identifier: Apache-2.0
"""What the launches of a stream share: global memory, module variables, the race detector, the L2 cache.

Under programmatic dependent launch a launch starts when every CTA of the previous one has triggered
(griddepcontrol.launch_dependents) or ended. Launches run one after another here, so results are those of the stream's
order. Triggers and waits tell which launches could overlap on hardware; the detector gets the launches that have ended
for each thread.

Sets of launches are sets of the detector's segments, as bits. For launch i:

    over(i)    everything that has ended once launch i has: itself; what it waited for, if any of its threads waited;
               what had ended when it started
    start(i)   without PDL everything before it; with PDL, if no CTA of launch i - 1 triggered, over(i - 1); else what
               had ended when launch i - 1 started, the CTAs of it that ended without a trigger, and over(i - 2) if
               some CTA triggered after a wait, or waited and ended without a trigger

A thread that executes griddepcontrol.wait is ordered after over(i - 1).

Source: PTX ISA 9.0, 9.7.13.13 (griddepcontrol); CUDA programming guide, programmatic dependent launch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.races.cells import cell_bytes
from cutegemm.emulator.races.detector import Detector
from cutegemm.emulator.races.shadow import Knowledge, Segment
from cutegemm.emulator.state.geometry import Triple
from cutegemm.emulator.state.memory import Buffer, GlobalMemory, MemoryRegion
from cutegemm.emulator.watch.l2 import L2
from cutegemm.emulator.watch.written import Written

VARIABLE_ALIGN = 256  # bytes; more than any variable declares
# Bytes of the memory in which `grid.sync()` of cooperative groups counts arrivals: its size and the barrier's counter,
# rounded up to the 16 bytes of a region (cooperative_groups/details/driver_abi.h of CUDA 13.0). A kernel reads its
# address from %envreg1 (high half) and %envreg2. All CTAs of such a launch must be resident together.
WORKSPACE_BYTES = 16
_REGISTERS = ("%envreg1", "%envreg2")


def is_cooperative(program: Translation) -> bool:
    """Whether a kernel reads the address of the workspace."""
    return any(program.mentions(register) for register in _REGISTERS)


def grid_workspace(program: Translation, memory: GlobalMemory) -> dict[str, int]:
    """Add a launch's workspace to its memory, if its kernel uses one; the registers that hold its address."""
    if not is_cooperative(program):
        return {}
    words = np.zeros(WORKSPACE_BYTES // 4, np.uint32)
    words[0] = WORKSPACE_BYTES
    region = MemoryRegion(words.view(np.uint8), words.ctypes.data, "the barrier of grid.sync")
    memory.regions.append(region)
    return {"envreg1": region.base >> 32, "envreg2": region.base & 0xFFFFFFFF}


def _place_variables(program: Translation, memory: GlobalMemory) -> dict[str, int]:
    """Give the module's global and constant variables memory of their own; their addresses by name."""
    out = {}
    for var in program.kernel.variables.values():
        if var.space in ("global", "const") and var.size:
            data = np.zeros(var.size + VARIABLE_ALIGN, np.uint8)
            start = -data.ctypes.data % VARIABLE_ALIGN
            data[start : start + len(var.data)] = np.frombuffer(var.data, np.uint8)
            out[var.name] = data.ctypes.data + start
            memory.regions.append(MemoryRegion(data[start : start + var.size], out[var.name], var.name))
    return out


def _merged(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Buffers in the order of their addresses; those that overlap are one."""
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
    """Launches in stream order: what they share, given the programs and buffers of all of them.

    constant: memory that an unknown launch before the first one does not write; without it there is none.
    written: the record of outputs that the launches must write.
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
        # of each kernel, by name: addresses and memory of its module's variables
        self.variables: dict[str, tuple[dict[str, int], list[MemoryRegion]]] = {}

    def memory_of(self, buffers: Sequence[Buffer]) -> GlobalMemory:
        """The regions that a launch's buffers lie in."""
        memory = GlobalMemory([])
        starts = [b.address for b in buffers if b.size]
        memory.regions = [
            r for r in self.regions if any(r.base + r.first <= a < r.base + r.size for a in starts)
        ]
        return memory

    def symbols_of(self, program: Translation, memory: GlobalMemory) -> dict[str, int]:
        """Addresses of a module's variables, which live as long as the stream; their memory joins a launch's."""
        name = program.kernel.name
        if name not in self.variables:
            own = GlobalMemory([])
            self.variables[name] = (_place_variables(program, own), own.regions)
        symbols, regions = self.variables[name]
        memory.regions += regions
        return symbols

    def detector_of(self, program: Translation, strict: bool, pdl: bool) -> Detector:
        """The detector of the launches that the next one may overlap with, or a new one."""
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
        """Let a launch before the first one have written all memory except the constant."""
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
    """What has ended once the last launch has ended."""
    own = (1 << len(detector.segments)) - (1 << detector.first)
    return own | detector.start.segments | (detector.before if detector.waited else 0)


def _started(detector: Detector) -> int:
    """What has ended when the launch after the last one may start."""
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
