# SPDX-License-Identifier: Apache-2.0
"""Launching a kernel on the emulated device: geometry in, results in the buffers, a report out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cutegemm.emulator.cta import occupancy
from cutegemm.emulator.l2 import L2, SECTOR_BYTES
from cutegemm.emulator.machine import POLICIES, SHARED_LIMIT, Device
from cutegemm.emulator.memory import Buffer
from cutegemm.emulator.meter import LineCost, combined
from cutegemm.emulator.parse import Kernel, Module
from cutegemm.emulator.program import Program, translate
from cutegemm.emulator.roles import Role, roles_of
from cutegemm.errors import EmulatorError

MAX_THREADS = 1024  # threads per CTA, CUDA programming guide, table 28
MAX_CLUSTER = 16  # CTAs per cluster with the non-portable attribute
SMS = 132  # of an H200 (SXM)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to launch: geometry, dynamic shared memory in bytes, parameter bytes in order, memory it may touch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    smem_bytes: int = 0
    params: list[bytes] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run it.

    policy: "eager", "lazy" or "random" completion of asynchronous work; `seed` drives the last.
    warps_per_group: warps that start in lockstep; None for the whole CTA (fast), 1 to interleave every warp.
    resident_ctas: how many CTAs can be on the device together; None for 132 SMs by their occupancy.
    races: run the race detector (implies one warp per group).
    meter: count sectors, wavefronts, bytes, operations, cache traffic, and work and waits per role.
    max_seconds: stop with an error after this time.
    progress: show a bar of finished CTAs past one second; None does so when standard error is a terminal.
    """

    policy: str = "eager"
    seed: int = 0
    warps_per_group: int | None = None
    resident_ctas: int | None = None
    races: bool = False
    meter: bool = False
    max_seconds: float | None = None
    progress: bool | None = None


@dataclass
class Report:
    """What a run found and counted; `instructions` per opcode counts warps that executed it.

    sums: what may be added up over launches; counters: these and what follows from them (`meter.combined`).
    """

    instructions: dict[str, int]
    by_warp: dict[tuple[int, ...], int]
    findings: list = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    lines: list[LineCost] = field(default_factory=list)  # costliest memory lines first
    roles: list[Role] = field(default_factory=list)

    @property
    def races(self) -> list:
        """Findings of the race detector."""
        return [f for f in self.findings if f.kind != "leftover"]


def program_of(kernel: Kernel) -> Program:
    """The kernel's translation, made on first use."""
    program = getattr(kernel, "_program", None)
    if program is None:
        program = kernel._program = translate(kernel)
    return program


def launch(
    kernel: Kernel | Module | str, what: Launch, options: Options | None = None, l2: L2 | None = None
) -> Report:
    """Run a kernel on the emulated device; its results are in the buffers afterwards.

    `kernel` is a parsed kernel, or a module or PTX text with one entry. `l2` is the cache the launch finds, an
    empty one unless given.

    Raises:
        EmulatorError: an unknown instruction, a launch the hardware refuses, a fault, a deadlock, or the time limit.
    """
    if isinstance(kernel, str):
        kernel = Module.parse(kernel)
    if isinstance(kernel, Module):
        kernel = kernel.kernel()
    options = options or Options()
    program = program_of(kernel)
    fixed = kernel.directives.get("reqnctapercluster")
    if fixed and what.cluster == (1, 1, 1):
        what = replace(what, cluster=(*fixed, 1, 1)[:3])
    _check(kernel, program, what, options)
    if options.races and options.warps_per_group != 1:
        options = replace(options, warps_per_group=1)
    if options.resident_ctas is None:
        each = occupancy(int(np.prod(what.block)), what.smem_bytes + program.shared_size)
        options = replace(options, resident_ctas=SMS * each)
    device = Device(program, what, options, l2 or L2())
    try:
        with np.errstate(all="ignore"):
            device.run()
            device.progress.close()
    except EmulatorError as e:
        device.progress.close()
        found = [] if device.track is None else list(device.track.findings.values())
        if found:
            raise EmulatorError(
                "\n  ".join([f"{e}\nfound before that:", *(str(f) for f in found[:20])])
            ) from e
        raise
    return _report(device)


def _check(kernel: Kernel, program: Program, what: Launch, options: Options) -> None:
    def refuse(name: str, value: object, rule: str):
        raise EmulatorError(f"{name}={value!r}: {rule}")

    threads = int(np.prod(what.block))
    if options.policy not in POLICIES:
        refuse("policy", options.policy, f"one of {', '.join(POLICIES)}")
    if not 1 <= threads <= MAX_THREADS:
        refuse("block", what.block, f"1 to {MAX_THREADS} threads")
    if any(g % c for g, c in zip(what.grid, what.cluster, strict=True)):
        refuse("cluster", what.cluster, f"must divide the grid {what.grid}")
    if int(np.prod(what.cluster)) > MAX_CLUSTER:
        refuse("cluster", what.cluster, f"at most {MAX_CLUSTER} CTAs")
    if what.smem_bytes + program.shared_size > SHARED_LIMIT:
        refuse(
            "smem_bytes", what.smem_bytes, f"with {program.shared_size} static bytes exceeds {SHARED_LIMIT}"
        )
    required = kernel.directives.get("reqntid")
    if required and int(np.prod(required)) != threads:
        refuse("block", what.block, f"the kernel requires {required} (.reqntid)")
    most = kernel.directives.get("maxntid")
    if most and int(np.prod(most)) < threads:
        refuse("block", what.block, f"the kernel allows {most} (.maxntid)")


def _report(device: Device) -> Report:
    per_block = [0] * len(device.program.blocks)
    for counts in device.by_warp.values():
        for i, n in enumerate(counts):
            per_block[i] += n
    instructions: dict[str, int] = {}
    for block, n in zip(device.program.blocks, per_block, strict=True):
        for ins in block.code:
            if n:
                instructions[ins.op] = instructions.get(ins.op, 0) + n
    sizes = [len(b.code) for b in device.program.blocks]
    by_warp = {
        warps: sum(c * s for c, s in zip(counts, sizes, strict=True))
        for warps, counts in device.by_warp.items()
    }
    findings = [] if device.track is None else list(device.track.findings.values())
    report = Report(instructions, by_warp, findings)
    if device.meter is not None:
        report.sums = device.meter.sums()
        report.counters = combined([report.sums], device.l2.dirty * SECTOR_BYTES)
        report.roles = roles_of(device)
        report.lines = sorted(device.meter.lines.values(), key=lambda c: c.ideal - c.units)
    return report
