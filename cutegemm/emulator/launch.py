# SPDX-License-Identifier: Apache-2.0
"""Launching a kernel on the emulated device: geometry in, results in the buffers, a report out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, cast

import numpy as np

from cutegemm.checks import among, integer, integers, truth
from cutegemm.emulator.context import Alone, Chain
from cutegemm.emulator.machine import SHARED_LIMIT, Device
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module, module_of
from cutegemm.emulator.state.geometry import SMS, Triple
from cutegemm.emulator.state.memory import Buffer
from cutegemm.emulator.translate.program import Program, translate
from cutegemm.emulator.units.completion import POLICIES
from cutegemm.emulator.units.cooperative import is_cooperative
from cutegemm.emulator.units.cta import occupancy
from cutegemm.emulator.watch.coverage import Coverage
from cutegemm.emulator.watch.findings import (
    LEFTOVER,
    Finding,
    Suppression,
    read_suppressions,
    without_suppressed,
)
from cutegemm.emulator.watch.l2 import L2, SECTOR_BYTES
from cutegemm.emulator.watch.meter import LineCost, combined
from cutegemm.emulator.watch.roles import Role, roles_of
from cutegemm.errors import EmulatorError, check, field_error

# CUDA programming guide, table 28: CTAs of a grid and threads of a CTA along each dimension, threads of a CTA.
MAX_EXTENTS = {"grid": ((1 << 31) - 1, 65535, 65535), "block": (1024, 1024, 64), "cluster": (16, 16, 16)}
MAX_THREADS = 1024
MOST = (1 << 63) - 1  # of a seed and counts
PTX_RULE = "must be PTX text, a module or a kernel"
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

    Raises:
        EmulatorError: a field of another type, or out of the hardware's bounds.
    """

    ptx: str | Module | Kernel | None = None
    _: KW_ONLY
    grid: tuple[int, ...] | int
    block: tuple[int, ...] | int
    cluster: tuple[int, ...] | int = (1, 1, 1)
    smem_bytes: int = 0
    params: Sequence[bytes] = field(default_factory=list)
    buffers: Sequence[Buffer] = field(default_factory=list)
    args: Sequence[Any] | None = None
    smem: int | str | None = None
    pdl: bool = False
    entry: str | None = None

    def __post_init__(self) -> None:
        def need(name: str, legal: bool, rule: str) -> None:
            check(legal, EmulatorError, rule, field=name, value=getattr(self, name))

        for name in MAX_EXTENTS:
            object.__setattr__(self, name, _extents(name, getattr(self, name)))
        ptx = self.ptx
        need("ptx", ptx is None or isinstance(ptx, (str, Module, Kernel)), PTX_RULE)
        object.__setattr__(
            self, "smem_bytes", integer(EmulatorError, "smem_bytes", self.smem_bytes, 0, SHARED_LIMIT)
        )
        if not among(self.smem, (None, "auto")):
            check(
                not isinstance(self.smem, str),
                EmulatorError,
                "bytes, or 'auto'",
                field="smem",
                value=self.smem,
            )
            object.__setattr__(self, "smem", integer(EmulatorError, "smem", self.smem, 0, SHARED_LIMIT))
        need("params", _list_of(bytes, self.params), "must be a list of bytes, one for each parameter")
        need("buffers", _list_of(Buffer, self.buffers), "must be a list of emulator.Buffer(...)")
        need("args", self.args is None or isinstance(self.args, (tuple, list)), "must be a list of arguments")
        need("entry", self.entry is None or isinstance(self.entry, str), "must be the name of a kernel")
        truth(EmulatorError, "pdl", self.pdl)

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

        need("policy", among(self.policy, tuple(POLICIES)), f"one of {', '.join(POLICIES)}")
        for name, low in {"seed": 0, "warps_per_group": 1, "resident_ctas": 1}.items():
            value = getattr(self, name)
            if value is not None or name == "seed":
                object.__setattr__(self, name, integer(EmulatorError, name, value, low, MOST))
        for name in ("races", "strict", "meter"):
            truth(EmulatorError, name, getattr(self, name))
        need("progress", self.progress is None or isinstance(self.progress, bool), "True, False or None")
        file = self.suppressions
        need("suppressions", file is None or isinstance(file, (str, Path)), "the path of a file, or None")
        limit = self.max_seconds
        number = isinstance(limit, Real) and not isinstance(limit, bool) and limit >= 0
        need("max_seconds", limit is None or number, "a number of seconds from 0, or None")


def _extents(name: str, given: object) -> Triple:
    """Grid, block or cluster as three numbers within the hardware's bounds."""
    single = integers((given,))
    sizes = single if single is not None else integers(given)
    if sizes is None or not 1 <= len(sizes) <= 3:
        raise field_error(EmulatorError, name, given, "must be one to three positive whole numbers")
    sizes = (*sizes, 1, 1)[:3]
    near = tuple(min(max(x, 1), most) for x, most in zip(sizes, MAX_EXTENTS[name], strict=True))
    if near != sizes:
        raise field_error(EmulatorError, name, sizes, f"must be from 1 to {MAX_EXTENTS[name]}", near)
    threads = math.prod(near)
    if name == "block" and threads > MAX_THREADS:
        raise field_error(EmulatorError, name, sizes, f"1 to {MAX_THREADS} threads", (MAX_THREADS, 1, 1))
    if name == "cluster" and threads > MAX_CLUSTER:
        raise field_error(EmulatorError, name, sizes, f"at most {MAX_CLUSTER} CTAs", (MAX_CLUSTER, 1, 1))
    return cast("Triple", near)


def _list_of(kind: type, given: object) -> bool:
    return isinstance(given, (tuple, list)) and all(isinstance(x, kind) for x in given)


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


def kernel_of(source: object, entry: str | None = None, field: str = "ptx") -> Kernel:
    """The kernel of PTX text (parsed once for each of the last texts), of a module, or itself.

    Raises:
        EmulatorError: about `field`, if it is none of them; what `Module.parse` and `Module.kernel` raise.
    """
    if isinstance(source, str):
        source = module_of(source)
    if isinstance(source, Module):
        return source.kernel(entry)
    if isinstance(source, Kernel):
        return source
    raise field_error(EmulatorError, field, source, PTX_RULE)


def program_of(kernel: Kernel) -> Program:
    """The kernel's translation, made on first use.

    Raises:
        EmulatorError: see `translate`; instructions that lack operands.
    """
    if kernel.program is None:
        try:
            kernel.program = translate(kernel)
        except LookupError as e:
            raise EmulatorError(
                f"an instruction of {kernel.name[:80]} lacks operands ({e})", field="ptx"
            ) from e
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
    kernel = kernel_of(kernel, field="kernel")
    check(isinstance(what, Launch), EmulatorError, "must be emulator.Launch(...)", field="what", value=what)
    options = checked_options(options) or Options()
    rules = [] if options.suppressions is None else read_suppressions(options.suppressions)
    program = program_of(kernel)
    what = checked(kernel, what)
    if options.races and options.warps_per_group != 1:
        options = replace(options, warps_per_group=1)
    if options.resident_ctas is None:
        each = occupancy(math.prod(what.extents[1]), what.smem_bytes + program.shared_size)
        options = replace(options, resident_ctas=SMS * each)
    fit = options.resident_ctas
    if is_cooperative(program) and fit is not None and math.prod(what.extents[0]) > fit:
        rule = f"grid.sync needs all CTAs resident together, and {fit} CTAs fit"
        raise field_error(EmulatorError, "grid", what.grid, rule, (fit, 1, 1))
    device = Device(program, what, options, l2 or L2(), context or Alone())
    try:
        with np.errstate(all="ignore"):
            device.run()
            device.progress.close()
    except EmulatorError as e:
        device.progress.close()
        found, _ = without_suppressed(_found(device), rules)
        if not found:
            raise
        rule = "\n  ".join([f"{e.rule}\nfound before that:", *(str(f) for f in found[:20])])
        stopped = EmulatorError(rule, field=e.field, value=e.value, nearest=e.nearest)
        stopped.findings = tuple(found)
        raise stopped from e
    return _report(device, rules)


@contextlib.contextmanager
def carrying(reports: list[Report]) -> Iterator[None]:
    """An error of a later launch carries besides its own findings those of the reports so far."""
    try:
        yield
    except EmulatorError as e:
        e.findings = (*(found for report in reports for found in report.findings), *e.findings)
        raise


def _found(device: Device) -> list[Finding]:
    """What the race detector has found, nothing without one."""
    return [] if device.watch.track is None else device.watch.track.findings.listed()


def checked_options(options: object) -> Options | None:
    """The options of a call, or None.

    Raises:
        EmulatorError: something else.
    """
    if options is not None and not isinstance(options, Options):
        raise field_error(EmulatorError, "options", options, "must be cutegemm.emulator.Options(...)")
    return options


def checked(kernel: Kernel, what: Launch) -> Launch:
    """The launch with the cluster that the kernel fixes.

    Raises:
        EmulatorError: the hardware would refuse it of this kernel; parameters that are not those it declares.
    """
    fixed = kernel.directives.get("reqnctapercluster")
    if fixed and what.cluster == (1, 1, 1):
        what = replace(what, cluster=(*fixed, 1, 1)[:3])

    def need(legal: bool, name: str, rule: str, nearest: object = None) -> None:
        check(legal, EmulatorError, rule, field=name, value=getattr(what, name), nearest=nearest)

    grid, block, cluster = what.extents
    divided = tuple(math.gcd(g, c) for g, c in zip(grid, cluster, strict=True))
    need(divided == cluster, "cluster", f"must divide the grid {grid}", divided)
    static = program_of(kernel).shared_size
    left = SHARED_LIMIT - static
    need(
        what.smem_bytes <= left,
        "smem_bytes",
        f"with {static} static bytes exceeds {SHARED_LIMIT}",
        max(left, 0),
    )
    required, most = kernel.directives.get("reqntid"), kernel.directives.get("maxntid")
    threads = math.prod(block)
    need(
        not required or math.prod(required) == threads,
        "block",
        f"the kernel requires {required} (.reqntid)",
        required,
    )
    need(not most or threads <= math.prod(most), "block", f"the kernel allows {most} (.maxntid)", most)
    given, sizes = [len(data) for data in what.params], [p.size for p in kernel.params]
    if given != sizes:
        rule = f"{kernel.name[:60]} declares parameters of {sizes} bytes"
        raise field_error(EmulatorError, "params", given, rule, sizes)
    return what


def _report(device: Device, rules: list[Suppression]) -> Report:
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
    report = Report(instructions, by_warp, *without_suppressed(_found(device), rules))
    report.coverage = None if device.watch.coverage is None else device.watch.coverage.coverage()
    report.printed = "".join(device.printed)
    if device.watch.meter is not None:
        report.sums = device.watch.meter.sums()
        report.counters = combined([report.sums], device.l2.dirty * SECTOR_BYTES)
        report.roles = roles_of(device)
        report.lines = sorted(device.watch.meter.lines.values(), key=lambda c: c.ideal - c.units)
    return report
