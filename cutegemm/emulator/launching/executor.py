# SPDX-License-Identifier: Apache-2.0
"""Executes a launch: starts clusters, and chooses the order in which warps run.

Clusters start one after another. When no running cluster can make progress, another one starts, up to the number that
fits on the device. So kernels whose CTAs wait for each other can run, and other kernels stay fast. A policy decides
when asynchronous operations complete (`state/completion.py`).
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence

import numpy as np

from cutegemm.emulator.launching.progress_bar import Progress
from cutegemm.emulator.launching.request import Launch, Options
from cutegemm.emulator.launching.stream import Stream, grid_workspace
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.kernel import Kernel
from cutegemm.emulator.races.strong import Races
from cutegemm.emulator.state.clusters import Cluster, EmulatedDevice
from cutegemm.emulator.state.completion import Completion
from cutegemm.emulator.state.geometry import WARP, BlockCounts, Geometry
from cutegemm.emulator.state.group import SPLIT, Diverged, WarpSet
from cutegemm.emulator.state.hooks import Observers
from cutegemm.emulator.state.memory import PARAM_WINDOW, Fault, MemoryRegion
from cutegemm.emulator.units.bulk import wait_group
from cutegemm.emulator.watch.coverage import Watcher
from cutegemm.emulator.watch.findings import Finding
from cutegemm.emulator.watch.meter import Meter
from cutegemm.errors import EmulatorError, field_error

STRETCH = 200  # a group that runs so many blocks without polling or blocking makes progress
STUCK_ROUNDS = 100  # rounds without progress, in which try_wait returns false, before a deadlock is reported
SM_REGISTERS = 65536  # 32-bit registers of an SM of sm_90, CUDA programming guide, table 28
# Rounds without progress after which other lanes of divergent warps run. Time slices of the random policy are short.
DETERMINED_ROUNDS, RANDOM_ROUNDS = 2, 25
MOST, STEP = 255, 8  # registers of a thread, and the unit they are allocated in
MOST_LINES = 16  # groups of warps that a deadlock report lists


def launched_with(kernel: Kernel) -> int | None:
    """Registers per thread at launch, or None if the kernel has no launch bounds."""
    directives = kernel.directives
    if "maxnreg" in directives:
        return directives["maxnreg"][0]
    bound = directives.get("reqntid") or directives.get("maxntid")
    if not bound:
        return None
    warps = -(-math.prod(bound) // WARP)
    ctas = directives.get("minnctapersm", (1,))[0]
    raised = [ins.operands for ins in kernel.code if ins.op.startswith("setmaxnreg")]
    counts = [int(count[0]) for count in raised if count and count[0].isdecimal()]
    return min(max(counts, default=MOST), MOST, SM_REGISTERS // (warps * WARP * max(ctas, 1))) // STEP * STEP


def _parameter_space(program: Translation, params: Sequence[bytes]) -> MemoryRegion:
    """The parameters at the offsets that the kernel declares."""
    declared = program.kernel.params
    total = max((p.offset + p.size for p in declared), default=0)
    data = np.zeros((total // 16 + 2) * 16, np.uint8)
    for p, value in zip(declared, params, strict=True):
        data[p.offset : p.offset + p.size] = np.frombuffer(value, np.uint8)
    return MemoryRegion(data, PARAM_WINDOW, "parameters")


class Executor:
    """Runs one launch."""

    def __init__(
        self, program: Translation, what: Launch, options: Options, resident: int, stream: Stream
    ) -> None:
        self.options, self.resident, self.counts = options, resident, BlockCounts()
        memory = stream.memory_of(what.buffers)
        parts = program.shared_parts(what.smem_bytes, what.shared_parts)
        self.device = device = EmulatedDevice(
            program=program,
            geometry=Geometry(*what.extents, program.shared_size, what.smem_bytes, parts),
            memory=memory,
            params=_parameter_space(program, what.params),
            completion=Completion(options.policy, options.seed),
            symbols=stream.symbols_of(program, memory),
            environment=grid_workspace(program, memory),
            registers=launched_with(program.kernel),
        )
        self.detector = stream.detector_of(program, options.strict, what.pdl) if options.races else None
        self.coverage = Watcher(program) if options.races else None
        self.meter = Meter(program, stream.l2) if options.meter else None
        races = None if self.detector is None else Races(self.detector)
        observers = (races, self.coverage, self.meter, stream.written)
        device.watch = Observers(*(x for x in observers if x is not None))
        # the race detector needs one warp per group
        self.warps_per_group = 1 if options.races else options.warps_per_group or device.geometry.warps
        self.running: dict[Cluster, list[WarpSet]] = {}  # groups of warps that have not ended
        self.started = time.monotonic()
        self.clusters = device.geometry.ctas // device.geometry.cluster_ctas
        self.finished_ctas = 0
        self.progress = Progress(device.geometry.ctas, options.progress)

    def findings(self) -> list[Finding]:
        """The findings of the race detector so far."""
        return [] if self.detector is None else self.detector.findings.listed()

    def run(self) -> None:
        """Run the whole grid.

        Raises:
            EmulatorError: a fault, with PTX line and warps; a deadlock, with what each warp waits for; the time limit.
        """
        device, running, completion = self.device, self.running, self.device.completion
        following, waiting = device.geometry.clusters(), self.clusters
        resident = max(1, self.resident // device.geometry.cluster_ctas)
        starts, idle = 0 if completion.rng is None else min(waiting, resident), 0
        while waiting or running or completion.queue:
            for _ in range(starts or (not running and waiting > 0)):
                self._start(Cluster(device, next(following)))
                waiting -= 1
            before, starts = device.events, 0
            progress = self._round(idle > 0)
            for cluster in [c for c, groups in running.items() if not groups]:
                del running[cluster]
                self.finished_ctas += len(cluster.ctas)
                device.watch.cluster_ended(cluster)
            if progress or device.events != before:
                idle = 0
                device.timed_out = False
            elif completion.queue:
                self._complete(completion.finish_copy)
            elif waiting and len(running) < resident:
                starts = 1
            else:
                idle += 1
                device.timed_out = True
                if idle % (DETERMINED_ROUNDS if completion.rng is None else RANDOM_ROUNDS) == 0:
                    for group in (g for groups in running.values() for g in groups):
                        group.switch_paths()
                if idle > STUCK_ROUNDS:
                    stuck = [g for groups in running.values() for g in groups]
                    lines = ["deadlock: no warp can make progress"]
                    if waiting:
                        unstarted = f"{waiting} of {self.clusters} clusters have not started"
                        lines.append(f"  {unstarted}: {self.resident} CTAs fit")
                    lines += [f"  {waits}" for waits in _waits(stuck)[:MOST_LINES]]
                    raise self._stopped("\n".join(lines))
            self._check_time()

    def _start(self, cluster: Cluster) -> None:
        """Create the warps of a cluster, grouped as the options say."""
        warps, step = self.device.geometry.warps, self.warps_per_group
        self.running[cluster] = [
            WarpSet(cta, list(range(w, min(w + step, warps))))
            for cta in cluster.ctas
            for w in range(0, warps, step)
        ]
        for group in self.running[cluster]:
            self.device.watch.warp_started(group)

    def _round(self, every: bool) -> bool:
        """Run a time slice of every group; whether one made progress without polling."""
        groups = [g for live in self.running.values() for g in live]
        completion, progress = self.device.completion, False
        for group in completion.order(groups, every):
            if not group.done:
                progress |= self._run(group)
                self._complete(completion.stir)
        return progress

    def _replace(self, group: WarpSet, successors: Sequence[WarpSet]) -> None:
        """A group has ended, or has been split: `successors` continue in its place."""
        group.done = True
        self.counts.add(tuple(group.warps), group.counts, group.uneven)
        live = self.running[group.cta.cluster]
        at = live.index(group)
        live[at : at + 1] = successors

    def _end(self, group: WarpSet) -> None:
        self.device.watch.warp_ended(group)
        group.bulk.commit()
        wait_group(group, group.bulk, 0)
        self.device.events += 1
        self._replace(group, ())
        group.cta.ended(len(group.warps))

    def _complete(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Fault as e:
            raise self._stopped(f"an asynchronous copy: {e}") from e

    def _run(self, group: WarpSet) -> bool:
        """Run a group until it blocks, ends, splits or has used its time slice; whether it made progress."""
        device, program = self.device, self.device.program
        functions, exit_block = program.functions, program.exit
        if group.stack and any(point.alone for point in group.stack):
            functions = program.alone
        group.budget = device.completion.budget()
        group.waiting = None
        registers, counts = group.registers, group.counts
        pc, stack = group.pc, group.stack
        unpolled = group.budget
        observed, ran = device.watch.hears("ran"), device.watch.ran
        try:
            while group.budget > 0:
                while stack and stack[-1].block == pc:
                    pc = group.reconverge(pc)
                if pc == exit_block:
                    group.pc = pc
                    self._end(group)
                    return True
                mask, warps = group.mask, group.active_warps  # as they are before a branch changes them
                group.pc = pc
                following = functions[pc][mask is not None](group, registers, mask)
                if following < 0:
                    if following == SPLIT:
                        self._replace(group, group.successors)
                        return True
                    group.stretch = 0
                    device.watch.blocked(group, pc)
                    return False
                counts[pc] += warps
                if observed:
                    ran(group, pc, mask)
                pc = following
                group.budget -= 1
                group.stretch += 1
                unpolled -= 1
        except Diverged as diverged:
            try:
                self._replace(group, group.split_by(diverged.keys))
            except Fault as e:
                raise self._stopped(_place_of(group, e)) from e
            return True
        except EmulatorError:
            raise
        except Exception as e:
            raise self._stopped(_place_of(group, e)) from e
        group.pc = pc
        if group.budget != unpolled:
            group.stretch = 0
        return group.stretch >= STRETCH

    def _stopped(self, why: str) -> EmulatorError:
        return field_error(EmulatorError, "kernel", self.device.program.kernel.name[:80], why)

    def _check_time(self) -> None:
        self.progress.show(self.finished_ctas)
        limit = self.options.max_seconds
        if limit is not None and time.monotonic() - self.started > limit:
            rule = f"stopped after {self.finished_ctas} of {self.device.geometry.ctas} CTAs had ended"
            raise field_error(EmulatorError, "max_seconds", limit, rule)


def _place_of(group: WarpSet, error: Exception) -> str:
    """Text of an error that was raised while a group ran, with PTX line, CTA and warps."""
    ins = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        ins = group.program.instruction_at(frame.f_code.co_filename, line) or ins
    text = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "NoneType" in text:
        text = "read of a register that was not written before"
    elif isinstance(error, TypeError) and "Undefined" in text:
        text = "use of bits of a register that were not written before"
    where = "outside the kernel" if ins is None else f"{ins.place} `{str(ins)[:100]}`"
    return f"{where}, CTA {group.cta.index}, {_named(group.warps)}: {text}"


def _waits(groups: Sequence[WarpSet]) -> list[str]:
    """At which instruction groups wait, and for what; warps of a CTA that wait for the same are one line."""
    together: dict[tuple[object, str], list[int]] = {}
    for group in groups:
        does, block = "spinning", group.pc
        if group.waiting is not None:
            what, block, polls = group.waiting
            does = f"{'spinning on' if polls else 'waiting for'} {what()}"
        ins = group.program.blocks[min(block, group.program.exit - 1)].code[0]
        text = f"at {ins.place} `{str(ins)[:100]}`: {does}"
        together.setdefault((group.cta.index, text), []).extend(group.warps)
    return [f"CTA {cta} {_named(sorted(warps))} {text}" for (cta, text), warps in together.items()]


def _named(warps: list[int]) -> str:
    """Warps in words, neighbours as a range."""
    runs: list[list[int]] = []
    for warp in warps:
        if runs and warp == runs[-1][-1] + 1:
            runs[-1].append(warp)
        else:
            runs.append([warp])
    ranges = ", ".join(str(x[0]) if len(x) == 1 else f"{x[0]}..{x[-1]}" for x in runs)
    return f"{'warp' if len(warps) == 1 else 'warps'} {ranges}"
