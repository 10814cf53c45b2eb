# SPDX-License-Identifier: Apache-2.0
"""What a launch shares with those before it in a sequence: global memory, module variables, the race detector.

Under programmatic dependent launch a launch starts when every CTA of the one before has triggered
(griddepcontrol.launch_dependents) or ended. Launches run one after another here, so that results are those of the
stream's order; what may overlap on hardware is worked out from triggers and waits, and the detector is given the
launches that have ended for each thread.

Sets of launches are sets of the detector's segments, as bits. For launch i:

    over(i)    what has ended once launch i has: itself; what it waited for, if any of its threads waited; what had
               ended when it started
    start(i)   without PDL everything before it; with PDL, if no CTA of launch i - 1 triggered, over(i - 1); else what
               had ended when launch i - 1 started, the CTAs of it that ended without a trigger, and over(i - 2) if
               some CTA triggered after a wait, or waited and ended without a trigger

A thread that executes griddepcontrol.wait is ordered after over(i - 1).

Source: PTX ISA 9.0, 9.7.13.13 (griddepcontrol); CUDA programming guide, programmatic dependent launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cutegemm.emulator.launching.request import Launch
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.races.cells import cell_bytes
from cutegemm.emulator.races.detector import Detector
from cutegemm.emulator.races.shadow import Knowledge, Segment
from cutegemm.emulator.state.memory import Buffer, GlobalMemory, MemoryRegion
from cutegemm.emulator.watch.written import Written

VARIABLE_ALIGN = 256  # bytes; more than any variable declares
# Bytes of the memory in which `grid.sync()` of cooperative groups counts arrivals: its size and the barrier's counter,
# rounded up to what a region is a multiple of (cooperative_groups/details/driver_abi.h of CUDA 13.0). A kernel reads
# its address from %envreg1 (high half) and %envreg2. All CTAs of such a launch must be resident together.
WORKSPACE_BYTES = 16
_REGISTERS = ("%envreg1", "%envreg2")


def is_cooperative(program: Translation) -> bool:
    """Whether a kernel reads the address of the workspace."""
    return any(program.mentions(register) for register in _REGISTERS)


def grid_workspace(program: Translation, memory: GlobalMemory) -> dict[str, int]:
    """Add a launch's workspace to its memory, where its kernel uses one; the registers that hold its address."""
    if not is_cooperative(program):
        return {}
    words = np.zeros(WORKSPACE_BYTES // 4, np.uint32)
    words[0] = WORKSPACE_BYTES
    region = MemoryRegion(words.view(np.uint8), words.ctypes.data, "the barrier of grid.sync")
    memory.regions.append(region)
    return {"envreg1": region.base >> 32, "envreg2": region.base & 0xFFFFFFFF}


def place_variables(program: Translation, memory: GlobalMemory) -> dict[str, int]:
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


def merged(buffers: list[Buffer]) -> list[Buffer]:
    """Buffers that overlap made one each, in the order of their addresses."""
    out: list[Buffer] = []
    for b in sorted((b for b in buffers if b.size), key=lambda b: b.address):
        last = out[-1] if out else None
        if last is not None and b.address < last.address + last.size:
            end = max(last.address + last.size, b.address + b.size)
            out[-1] = Buffer(last.address, end - last.address, last.name)
        else:
            out.append(b)
    return out


class Alone:
    """The context of a launch by itself, or of one of a run whose outputs are watched."""

    pdl = False

    def __init__(self, written: Written | None = None) -> None:
        self.written = written

    def memory_of(self, config: Launch) -> GlobalMemory:
        """Global memory of a launch: its buffers."""
        return GlobalMemory(config.buffers)

    def symbols_of(self, program: Translation, memory: GlobalMemory) -> dict[str, int]:
        """Addresses of the module's variables, which get memory of their own."""
        return place_variables(program, memory)

    def detector_of(self, program: Translation, strict: bool) -> Detector:
        """A new detector."""
        return Detector(program, strict)


@dataclass
class Chain:
    """The context of launches in a row: `programs` and `buffers` are those of all of them."""

    programs: list[Translation]
    buffers: list[Buffer]
    constant: list[Buffer] | None = None  # what an unknown launch before the first one does not write
    written: Written | None = None  # what has to be written
    pdl: bool = False  # whether the launch that comes next may overlap with the one before
    detector: Detector | None = None
    regions: list[MemoryRegion] = field(default_factory=list)
    variables: dict[str, dict[str, int]] = field(default_factory=dict)  # of each kernel, by name
    modules: dict[str, list[MemoryRegion]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.regions = GlobalMemory(merged(self.buffers)).regions
        self.cell = min(cell_bytes(program) for program in self.programs)

    def memory_of(self, config: Launch) -> GlobalMemory:
        """The regions a launch's buffers lie in, shared with the other launches."""
        memory = GlobalMemory([])
        starts = [b.address for b in config.buffers if b.size]
        memory.regions = [
            r for r in self.regions if any(r.base + r.first <= a < r.base + r.size for a in starts)
        ]
        memory.last = memory.regions[0] if memory.regions else None
        return memory

    def symbols_of(self, program: Translation, memory: GlobalMemory) -> dict[str, int]:
        """Addresses of a module's variables, which live as long as the sequence."""
        name = program.kernel.name
        if name not in self.variables:
            own = len(memory.regions)
            self.variables[name] = place_variables(program, memory)
            self.modules[name] = memory.regions[own:]
        else:
            memory.regions += self.modules[name]
        return self.variables[name]

    def detector_of(self, program: Translation, strict: bool) -> Detector:
        """The detector of the launches this one may overlap with, or a new one."""
        old = self.detector
        if old is None or not self.pdl:
            first, self.detector = old is None, Detector(program, strict, self.cell)
            if first and self.pdl and self.constant is not None:
                self._after_unknown(self.detector, self.constant)
            return self.detector
        over, started = _over(old), _started(old)
        old.enter(program)
        old.start, old.before = Knowledge(started, started, started), over
        return old

    def _after_unknown(self, detector: Detector, constant: list[Buffer]) -> None:
        """Let a launch before the first one have written all memory but what is constant."""
        number = len(detector.segments)
        detector.segments.append(Segment("access", "a launch before the sequence", False))
        detector.before = 1 << number
        detector.first = number + 1
        for region in self.regions:
            shadow = detector.shadow(region)
            shadow.written = True
            shadow.writer[:] = ~number
            for b in constant:
                low, high = b.address - region.base, b.address + b.size - region.base
                shadow.writer[max(low, 0) // self.cell : max(-(-high // self.cell), 0)] = 0


def _own(detector: Detector) -> int:
    """The segments of the detector's last launch."""
    return (1 << len(detector.segments)) - (1 << detector.first)


def _over(detector: Detector) -> int:
    """What has ended once the last launch has ended."""
    return _own(detector) | detector.start.segments | (detector.before if detector.waited else 0)


def _started(detector: Detector) -> int:
    """What has ended when the launch after the last one may start."""
    if not detector.triggers:
        return _over(detector)
    out = detector.start.segments
    ended: set[tuple[int, int, int]] = set()
    for number in range(detector.first, len(detector.segments)):
        segment = detector.segments[number]
        if segment.cta not in detector.triggers:
            out |= 1 << number
            ended.add(segment.cta)
    late = any(detector.triggers.values()) or not ended.isdisjoint(detector.waited)
    return out | (detector.before if late else 0)
