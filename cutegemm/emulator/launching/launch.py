# SPDX-License-Identifier: Apache-2.0
"""Launching a kernel on the emulated device: geometry in, results in the buffers, a report out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from cutegemm.emulator.launching.context import Alone, Chain, is_cooperative
from cutegemm.emulator.launching.machine import Executor
from cutegemm.emulator.launching.report import Report, Result
from cutegemm.emulator.launching.request import PTX_RULE, SHARED_LIMIT, Launch, Options, checked_options
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module, module_of
from cutegemm.emulator.state.clusters import occupancy
from cutegemm.emulator.state.geometry import SMS
from cutegemm.emulator.translate.translator import translate
from cutegemm.emulator.watch.findings import Suppression, read_suppressions, without_suppressed
from cutegemm.emulator.watch.l2 import L2, SECTOR_BYTES
from cutegemm.emulator.watch.meter import combined
from cutegemm.emulator.watch.warp_roles import roles_of
from cutegemm.errors import EmulatorError, check, field_error

Ready: TypeAlias = tuple[Kernel, Launch]  # checked, with parameters packed


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


def program_of(kernel: Kernel) -> Translation:
    """The kernel's translation, made on first use.

    Raises:
        EmulatorError: see `translate`; instructions that lack operands.
    """
    if not isinstance(kernel.program, Translation):
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
    machine = Executor(program, what, options, l2 or L2(), context or Alone())
    try:
        with np.errstate(all="ignore"):
            machine.run()
    except EmulatorError as e:
        found, _ = without_suppressed(machine.found(), rules)
        if not found:
            raise
        rule = "\n  ".join([f"{e.rule}\nfound before that:", *(str(f) for f in found[:20])])
        stopped = EmulatorError(rule, field=e.field, value=e.value, nearest=e.nearest)
        stopped.findings = tuple(found)
        raise stopped from e
    finally:
        machine.progress.close()
    return _report(machine, rules)


def launch_all(ready: Iterable[Ready], options: Options | None, context: Alone | Chain) -> Result:
    """Run launches in order with one L2 cache between them.

    Raises:
        EmulatorError: see `launch`; besides its own findings it carries those of the launches before.
    """
    l2, out = L2(), Result()
    try:
        for kernel, what in ready:
            context.pdl = what.pdl
            out.reports.append(launch(kernel, what, options, l2, context))
    except EmulatorError as e:
        e.findings = (*out.findings, *e.findings)
        raise
    if options is not None and options.meter:
        out.counters = combined([report.sums for report in out.reports], l2.dirty * SECTOR_BYTES)
    return out


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


def _report(machine: Executor, rules: list[Suppression]) -> Report:
    blocks, counts = machine.device.program.blocks, machine.counts
    instructions: Counter[str] = Counter()
    for block, n in zip(blocks, counts.per_block(len(blocks)), strict=True):
        if n:
            for ins in block.code:
                instructions[ins.op] += n
    sizes = [len(b.code) for b in blocks]
    by_warp = {
        warps: sum(n * size for n, size in zip(ran, sizes, strict=True))
        for warps, ran in counts.by_warp.items()
    }
    report = Report(dict(instructions), by_warp, *without_suppressed(machine.found(), rules))
    report.coverage = None if machine.coverage is None else machine.coverage.coverage(counts)
    report.printed = "".join(machine.device.printed)
    meter = machine.meter
    if meter is not None:
        report.sums = meter.sums()
        report.counters = combined([report.sums], meter.l2.dirty * SECTOR_BYTES)
        report.roles = roles_of(blocks, machine.device.warps, counts, meter.waits)
        report.lines = sorted(meter.lines.values(), key=lambda c: c.ideal - c.units)
    return report
