# SPDX-License-Identifier: Apache-2.0
"""Launching a kernel on the emulated device: geometry in, results in the buffers, a report out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

from cutegemm.emulator.context import Alone, Chain
from cutegemm.emulator.machine import SHARED_LIMIT, Device
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module
from cutegemm.emulator.state.geometry import SMS, Triple
from cutegemm.emulator.state.memory import Buffer
from cutegemm.emulator.translate.program import Program, translate
from cutegemm.emulator.units.completion import POLICIES
from cutegemm.emulator.units.cta import occupancy
from cutegemm.emulator.watch.coverage import Coverage
from cutegemm.emulator.watch.findings import LEFTOVER, Finding, read_suppressions, without_suppressed
from cutegemm.emulator.watch.l2 import L2, SECTOR_BYTES
from cutegemm.emulator.watch.meter import LineCost, combined
from cutegemm.emulator.watch.roles import Role, roles_of
from cutegemm.errors import EmulatorError, field_error

MAX_THREADS = 1024  # threads per CTA, CUDA programming guide, table 28
MAX_CLUSTER = 16  # CTAs per cluster with the non-portable attribute


@dataclass(frozen=True)
class Launch:
    """What to launch: geometry, dynamic shared memory in bytes, parameters, memory it may touch.

    Parameters come as bytes in order (`params`, with the `buffers` they point into) or, for `run_ptx` and
    `run_sequence`, as `args`: NumPy arrays, CPU tensors, numbers, tensor maps, bytes (`arguments.pack`).

    ptx: text, module or kernel; `launch` takes it as an argument of its own.
    grid, block, cluster: up to three numbers, or one.
    smem: bytes of dynamic shared memory, or "auto": all that a CTA may have, if the kernel declares such memory
        (so where `args` are given and nothing is said).
    pdl: the launch may start before the one before it in a sequence has ended (programmatic stream serialisation).
    entry: name of the kernel, where the PTX holds several.
    """

    ptx: str | Module | Kernel | None = None
    _: KW_ONLY
    grid: tuple[int, ...] | int
    block: tuple[int, ...] | int
    cluster: tuple[int, ...] | int = (1, 1, 1)
    smem_bytes: int = 0
    params: list[bytes] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    args: Sequence[Any] | None = None
    smem: int | str | None = None
    pdl: bool = False
    entry: str | None = None

    def __post_init__(self) -> None:
        for name in ("grid", "block", "cluster"):
            given = getattr(self, name)
            sizes = tuple(given) if isinstance(given, Iterable) else (given,)
            whole = all(isinstance(x, Integral) and not isinstance(x, bool) and int(x) > 0 for x in sizes)
            if not whole or not 1 <= len(sizes) <= 3:
                raise EmulatorError(f"{name}={given!r}: one to three positive whole numbers")
            object.__setattr__(self, name, (*(int(x) for x in sizes), 1, 1)[:3])

    @property
    def extents(self) -> tuple[Triple, Triple, Triple]:
        """Grid in CTAs, block in threads, cluster in CTAs."""
        return cast("tuple[Triple, Triple, Triple]", (self.grid, self.block, self.cluster))


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run it.

    policy: "eager", "lazy" or "random" completion of asynchronous work; `seed` drives the last.
    warps_per_group: warps that start in lockstep; None for the whole CTA (fast), 1 to interleave every warp.
    resident_ctas: how many CTAs can be on the device together; None for 132 SMs by their occupancy.
    races: run the race detector (implies one warp per group).
    strict: report besides what only the letter of PTX forbids (label "by the letter"), such as to rely on a
        wgmma.wait_group for the other warps of the warpgroup.
    suppressions: a file of findings to leave out, a `KIND-PATTERN : TEXT-PATTERN` a line; they are kept apart in the
        report's `suppressed`.
    meter: count sectors, wavefronts, bytes, operations, cache traffic, and work and waits per role.
    max_seconds: stop with an error after this time.
    progress: show a bar of finished CTAs past one second; None does so when standard error is a terminal.
    """

    policy: str = "eager"
    seed: int = 0
    warps_per_group: int | None = None
    resident_ctas: int | None = None
    races: bool = False
    strict: bool = False
    suppressions: str | Path | None = None
    meter: bool = False
    max_seconds: float | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        def need(name: str, legal: bool, rule: str) -> None:
            if not legal:
                raise field_error(EmulatorError, name, getattr(self, name), rule)

        known = isinstance(self.policy, str) and self.policy in POLICIES
        need("policy", known, f"one of {', '.join(POLICIES)}")
        need("seed", _whole(self.seed, 0), "a whole number from 0")
        for name in ("warps_per_group", "resident_ctas"):
            value = getattr(self, name)
            need(name, value is None or _whole(value, 1), "a whole number from 1, or None")
        for name in ("races", "strict", "meter"):
            need(name, isinstance(getattr(self, name), bool), "True or False")
        need("progress", self.progress is None or isinstance(self.progress, bool), "True, False or None")
        file = self.suppressions
        need("suppressions", file is None or isinstance(file, (str, Path)), "the path of a file, or None")
        limit = self.max_seconds
        number = isinstance(limit, Real) and not isinstance(limit, bool) and limit >= 0
        need("max_seconds", limit is None or number, "a number of seconds from 0, or None")


def _whole(value: object, low: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= low


@dataclass
class Report:
    """What a run found and counted; `instructions` per opcode counts warps that executed it.

    sums: what may be added up over launches; counters: these and what follows from them (`meter.combined`).
    """

    instructions: dict[str, int]
    by_warp: dict[tuple[int, ...], int]
    findings: list[Finding] = field(default_factory=list)
    suppressed: list[Finding] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    lines: list[LineCost] = field(default_factory=list)  # costliest memory lines first
    roles: list[Role] = field(default_factory=list)
    printed: str = ""  # by vprintf
    coverage: Coverage | None = None  # of synchronisation, with the race detector

    @property
    def races(self) -> list[Finding]:
        """Findings of the race detector."""
        return [f for f in self.findings if f.kind != LEFTOVER]


def program_of(kernel: Kernel) -> Program:
    """The kernel's translation, made on first use."""
    if kernel.program is None:
        kernel.program = translate(kernel)
    return kernel.program


def launch(
    kernel: Kernel | Module | str,
    what: Launch,
    options: Options | None = None,
    l2: L2 | None = None,
    context: Alone | Chain | None = None,
) -> Report:
    """Run a kernel on the emulated device; its results are in the buffers afterwards.

    `kernel` is a parsed kernel, or a module or PTX text with one entry. `l2` is the cache the launch finds, an
    empty one unless given; `context` what it shares with other launches.

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
    device = Device(program, what, options, l2 or L2(), context or Alone())
    try:
        with np.errstate(all="ignore"):
            device.run()
            device.progress.close()
    except EmulatorError as e:
        device.progress.close()
        found = [] if device.watch.track is None else device.watch.track.findings.listed()
        if found:
            raise EmulatorError(
                "\n  ".join([f"{e}\nfound before that:", *(str(f) for f in found[:20])])
            ) from e
        raise
    return _report(device)


def _check(kernel: Kernel, program: Program, what: Launch, options: Options) -> None:
    def refuse(name: str, value: object, rule: str) -> NoReturn:
        raise EmulatorError(f"{name}={value!r}: {rule}")

    threads = int(np.prod(what.block))
    if not 1 <= threads <= MAX_THREADS:
        refuse("block", what.block, f"1 to {MAX_THREADS} threads")
    grid, _, cluster = what.extents
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
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
    per_block = device.counts.per_block(len(device.program.blocks))
    instructions: dict[str, int] = {}
    for block, n in zip(device.program.blocks, per_block, strict=True):
        for ins in block.code:
            if n:
                instructions[ins.op] = instructions.get(ins.op, 0) + n
    sizes = [len(b.code) for b in device.program.blocks]
    by_warp = {
        warps: sum(c * s for c, s in zip(counts, sizes, strict=True))
        for warps, counts in device.counts.by_warp.items()
    }
    found = [] if device.watch.track is None else device.watch.track.findings.listed()
    rules = [] if device.options.suppressions is None else read_suppressions(device.options.suppressions)
    report = Report(instructions, by_warp, *without_suppressed(found, rules))
    report.coverage = None if device.watch.coverage is None else device.watch.coverage.coverage()
    report.printed = "".join(device.printed)
    if device.watch.meter is not None:
        report.sums = device.watch.meter.sums()
        report.counters = combined([report.sums], device.l2.dirty * SECTOR_BYTES)
        report.roles = roles_of(device)
        report.lines = sorted(device.watch.meter.lines.values(), key=lambda c: c.ideal - c.units)
    return report
