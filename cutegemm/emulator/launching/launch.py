# SPDX-License-Identifier: Apache-2.0
"""Launches kernels on the emulated device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from cutegemm.emulator.launching.executor import Executor
from cutegemm.emulator.launching.report import Report, Result
from cutegemm.emulator.launching.request import PTX_RULE, SHARED_LIMIT, Launch, Options, checked_options
from cutegemm.emulator.launching.stream import Stream, is_cooperative
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.ptx.parse import Module, module_of
from cutegemm.emulator.state.geometry import SMS, occupancy
from cutegemm.emulator.state.memory import Buffer
from cutegemm.emulator.translate.translator import translate
from cutegemm.emulator.watch.findings import Suppression, read_suppressions, without_suppressed
from cutegemm.emulator.watch.l2 import SECTOR_BYTES
from cutegemm.emulator.watch.meter import combined
from cutegemm.emulator.watch.warp_roles import roles_of
from cutegemm.emulator.watch.written import WatchedOutput, Written
from cutegemm.errors import EmulatorError, check, field_error

Ready: TypeAlias = tuple[Kernel, Launch]  # checked, with parameters packed
SHOWN = 20  # findings in the error of a launch that stops


def kernel_of(source: object, entry: str | None = None, field: str = "ptx") -> Kernel:
    """The kernel of PTX text (the last texts are cached) or of a module; a kernel is returned as it is.

    Raises:
        EmulatorError: about `field`, if `source` is neither; see also `Module.parse` and `Module.kernel`.
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
        EmulatorError: see `translate`; an instruction lacks operands.
    """
    if not isinstance(kernel.program, Translation):
        try:
            kernel.program = translate(kernel)
        except LookupError as e:
            rule = f"an instruction of {kernel.name[:80]} lacks operands ({e})"
            raise EmulatorError(rule, field="ptx") from e
    return kernel.program


def launch(kernel: Kernel | Module | str, what: Launch, options: Options | None = None) -> Report:
    """Run a kernel on the emulated device. It writes its results to the buffers of the launch.

    `kernel` is a parsed kernel, or a module or PTX text with one entry.

    Raises:
        EmulatorError: an unknown instruction, a launch that the hardware refuses, a fault, a deadlock, the time limit.
    """
    kernel = kernel_of(kernel, field="kernel")
    check(isinstance(what, Launch), EmulatorError, "must be emulator.Launch(...)", field="what", value=what)
    options = checked_options(options) or Options()
    return launch_all([(kernel, checked(kernel, what))], options).reports[0]


def launch_all(
    ready: Sequence[Ready],
    options: Options,
    constant: Sequence[Buffer] | None = None,
    outputs: Sequence[WatchedOutput] = (),
) -> Result:
    """Run launches in stream order; see `Stream` for `constant`. Unwritten `outputs` are findings of the last launch.

    Raises:
        EmulatorError: see `launch`; its `findings` are those of this launch and of the launches before.
    """
    rules = read_suppressions(options.suppressions)
    written = Written(outputs) if outputs else None
    buffers = [b for _, what in ready for b in what.buffers]
    stream = Stream([program_of(kernel) for kernel, _ in ready], buffers, constant, written)
    out = Result()
    try:
        for kernel, what in ready:
            out.reports.append(_launch(program_of(kernel), what, options, stream, rules))
    except EmulatorError as e:
        e.findings = (*out.findings, *e.findings)
        raise
    if options.meter:
        out.counters = combined([report.sums for report in out.reports], stream.l2.dirty * SECTOR_BYTES)
    if written is not None:
        kept, suppressed = without_suppressed(written.findings(), rules)
        out.reports[-1].findings += kept
        out.reports[-1].suppressed += suppressed
    return out


def _launch(
    program: Translation, what: Launch, options: Options, stream: Stream, rules: list[Suppression]
) -> Report:
    grid, block, _ = what.extents
    resident = options.resident_ctas
    if resident is None:
        resident = SMS * occupancy(math.prod(block), what.smem_bytes + program.shared_size)
    if is_cooperative(program) and math.prod(grid) > resident:
        rule = f"grid.sync needs all CTAs resident together, and {resident} CTAs fit"
        raise field_error(EmulatorError, "grid", what.grid, rule, (resident, 1, 1))
    executor = Executor(program, what, options, resident, stream)
    try:
        with np.errstate(all="ignore"):
            executor.run()
    except EmulatorError as e:
        findings, _ = without_suppressed(executor.findings(), rules)
        if not findings:
            raise
        rule = "\n  ".join([f"{e.rule}\nfindings before that:", *map(str, findings[:SHOWN])])
        stopped = EmulatorError(rule, field=e.field, value=e.value, nearest=e.nearest)
        stopped.findings = tuple(findings)
        raise stopped from e
    finally:
        executor.progress.close()
    return _report(executor, rules)


def checked(kernel: Kernel, what: Launch) -> Launch:
    """The launch, with the cluster of the kernel's .reqnctapercluster if it has one.

    Raises:
        EmulatorError: the hardware would refuse the launch of this kernel, or its parameters have other sizes.
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
    left = max(SHARED_LIMIT - static, 0)
    rule = f"with {static} static bytes exceeds {SHARED_LIMIT}"
    need(what.smem_bytes <= SHARED_LIMIT - static, "smem_bytes", rule, left)
    required, most = kernel.directives.get("reqntid"), kernel.directives.get("maxntid")
    threads = math.prod(block)
    exact = not required or math.prod(required) == threads
    need(exact, "block", f"the kernel requires {required} (.reqntid)", required)
    need(not most or threads <= math.prod(most), "block", f"the kernel allows {most} (.maxntid)", most)
    passed, sizes = [len(data) for data in what.params], [p.size for p in kernel.params]
    if passed != sizes:
        rule = f"{kernel.name[:60]} declares parameters of {sizes} bytes"
        raise field_error(EmulatorError, "params", passed, rule, sizes)
    return what


def _report(executor: Executor, rules: list[Suppression]) -> Report:
    blocks, counts = executor.device.program.blocks, executor.counts
    instructions: Counter[str] = Counter()
    for block, n in zip(blocks, counts.per_block(len(blocks)), strict=True):
        for ins in block.code if n else ():
            instructions[ins.op] += n
    report = Report(dict(instructions), *without_suppressed(executor.findings(), rules))
    report.coverage = None if executor.coverage is None else executor.coverage.coverage(counts)
    report.printed = "".join(executor.device.printed)
    meter = executor.meter
    if meter is not None:
        report.sums = meter.sums()
        report.counters = combined([report.sums], meter.l2.dirty * SECTOR_BYTES)
        report.roles = roles_of(blocks, executor.device.geometry.warps, counts, meter.waits)
        report.lines = sorted(meter.lines.values(), key=lambda c: c.ideal - c.units)
    return report
