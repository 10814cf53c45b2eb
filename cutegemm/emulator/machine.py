# SPDX-License-Identifier: Apache-2.0
"""The machine: CTAs, clusters, and the order in which warps run.

Clusters start one after another, a further one (up to the resident set) whenever those that run are stuck; so
kernels whose CTAs wait for each other run, and others stay quick. When asynchronous work completes is a policy's
affair (`units/completion.py`), who watches the observers' (`watch/observers.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from cutegemm.emulator.state.geometry import Counts, Geometry
from cutegemm.emulator.state.group import Group, Part
from cutegemm.emulator.state.memory import Fault
from cutegemm.emulator.state.progress import Progress
from cutegemm.emulator.state.reports import deadlock, place_of
from cutegemm.emulator.translate.parameters import parameter_space
from cutegemm.emulator.translate.program import Program
from cutegemm.emulator.units.completion import POLICIES
from cutegemm.emulator.units.cooperative import grid_workspace
from cutegemm.emulator.units.cta import SPLIT, Cluster
from cutegemm.emulator.units.registers import launched_with
from cutegemm.emulator.watch.coverage import Watcher
from cutegemm.emulator.watch.meter import Meter
from cutegemm.emulator.watch.observers import Observers
from cutegemm.errors import EmulatorError, field_error

if TYPE_CHECKING:
    from cutegemm.emulator.context import Alone, Chain
    from cutegemm.emulator.launch import Launch, Options
    from cutegemm.emulator.numbers.types import Value, Vector
    from cutegemm.emulator.state.group import Halves, LaneFacts
    from cutegemm.emulator.units.tma import Tensor
    from cutegemm.emulator.watch.l2 import L2

STRETCH = 200  # blocks run without polling or blocking that count as getting somewhere
STUCK_ROUNDS = 100  # rounds without any effect, try_wait giving up each time, until a deadlock is declared
# Bytes of shared memory one CTA may use on sm_90 (227 KiB), CUDA programming guide, table 28.
SHARED_LIMIT = 232448


class Device:
    """One launch: geometry, memories, policy, observers and the scheduler."""

    def __init__(
        self, program: Program, config: Launch, options: Options, l2: L2, context: Alone | Chain
    ) -> None:
        self.program, self.options, self.l2 = program, options, l2
        self.geometry = Geometry(*config.extents, program.shared_size, config.smem_bytes)
        self.warps = self.geometry.warps
        self.registers = launched_with(program.kernel)
        self.memory = context.memory_of(config)
        self.params = parameter_space(program, config.params)
        self.symbols = context.symbols_of(program, self.memory)
        self.environment = grid_workspace(program, self.memory)  # registers of a cooperative launch
        self.completion = POLICIES[options.policy](options.seed)
        self.tensors: dict[int, Tensor] = {}
        self.printed: list[str] = []
        # Per tuple of warps, what their lanes always hold.
        self.lane_cache: dict[tuple[int, ...], LaneFacts] = {}
        self.mask_cache: dict[bytes, int] = {}  # active warps of masks
        # Of predicates, who takes a branch (`Group.branch`).
        self.branch_cache: dict[tuple[bytes, bool], Halves] = {}
        self.elected: dict[bytes, tuple[Value, Vector]] = {}  # of masks, who leads (`warp_ops.elect`)
        self.events = 0  # counts whatever may let somebody go on
        self.timed_out = False
        self.counts = Counts()
        self.watch = Observers(
            context.detector_of(self) if options.races else None,
            Watcher(self) if options.races else None,
            Meter(self) if options.meter else None,
            context.written,
        )
        self.started = time.monotonic()
        self.clusters = self.geometry.ctas // self.geometry.cluster_ctas
        self.finished_ctas = 0
        self.progress = Progress(self.geometry.ctas, options.progress)

    def submit(self, action: Callable[[], None]) -> None:
        """A copy towards shared memory was issued: the policy says when it happens."""
        self.events += 1
        self.completion.submit(action)

    def run(self) -> None:
        """Run the whole grid.

        Raises:
            EmulatorError: a fault, with PTX line and thread; a deadlock, with who waits for what.
        """
        following, waiting = self.geometry.clusters(), self.clusters
        running: list[Cluster] = []
        resident = max(1, (self.options.resident_ctas or 1) // self.geometry.cluster_ctas)
        if self.completion.starts_all:
            running += [Cluster(self, next(following)) for _ in range(min(waiting, resident))]
            waiting -= len(running)
        idle = 0
        while waiting or running or self.completion.queue:
            if not running and waiting:
                running.append(Cluster(self, next(following)))
                waiting -= 1
            before = self.events
            moved = self._round(running, idle > 0)
            for cluster in [c for c in running if not c.live]:
                running.remove(cluster)
                self.finished_ctas += len(cluster.ctas)
                self.watch.cluster_ended(cluster)
            if moved or self.events != before:
                idle = 0
                self.timed_out = False
            elif self.completion.queue:
                self._complete(self.completion.finish_copy)
            elif waiting and len(running) < resident:
                running.append(Cluster(self, next(following)))
                waiting -= 1
            else:
                idle += 1
                self.timed_out = True
                if idle > STUCK_ROUNDS:
                    groups = [g for c in running for g in c.live]
                    raise self._stopped(deadlock(self, groups, waiting))
            self._check_time()

    def _round(self, running: list[Cluster], every: bool) -> bool:
        """Every group takes a turn; whether one got somewhere without polling."""
        groups = [g for cluster in running for g in cluster.live]
        moved = False
        for group in self.completion.order(groups, every):
            if not group.done:
                moved |= self._turn(group)
                self._complete(self.completion.stir)
        return moved

    def _complete(self, work: Callable[[], None]) -> None:
        """Let asynchronous work happen."""
        try:
            work()
        except Fault as e:
            raise self._stopped(f"an asynchronous copy: {e}") from e

    def _turn(self, group: Group) -> bool:
        """Run a group until it blocks, ends, splits or has used up its turn; whether it got somewhere."""
        functions, exit_block = self.program.functions, self.program.exit
        group.budget = self.completion.budget()
        group.waiting = None
        registers, counts = group.registers, group.counts
        pc, stack = group.pc, group.stack
        unpolled = group.budget
        metered = self.watch.meter is not None
        try:
            while group.budget > 0:
                while stack and stack[-1].block == pc:
                    pc = group.meet(pc)
                if pc == exit_block:
                    group.pc = pc
                    group.cta.ended(group)
                    return True
                mask, warps = group.mask, group.active_warps  # as they are before a branch changes them
                group.pc = pc
                following = functions[pc][mask is not None](group, registers, mask)
                if following < 0:
                    if following == SPLIT:
                        return True
                    group.stretch = 0
                    self.watch.blocked(group, pc)
                    return False
                counts[pc] += warps
                if metered:
                    self.watch.ran(group, pc, mask)
                pc = following
                group.budget -= 1
                group.stretch += 1
                unpolled -= 1
        except Part as parting:
            group.cta.replace(group, self._apart(group, parting.keys))
            return True
        except EmulatorError:
            raise
        except Exception as e:
            raise self._stopped(place_of(self, group, e)) from e
        group.pc = pc
        if group.budget != unpolled:
            group.stretch = 0
        return group.stretch >= STRETCH

    def _apart(self, group: Group, keys: Vector) -> list[Group]:
        try:
            return group.part(keys)
        except Fault as e:
            raise self._stopped(place_of(self, group, e)) from e

    def _stopped(self, why: str) -> EmulatorError:
        """The error of a kernel that cannot go on."""
        return field_error(EmulatorError, "kernel", self.program.kernel.name[:80], why)

    def _check_time(self) -> None:
        self.progress.show(self.finished_ctas)
        limit = self.options.max_seconds
        if limit is not None and time.monotonic() - self.started > limit:
            rule = f"stopped after {self.finished_ctas} of {self.geometry.ctas} CTAs had ended"
            raise field_error(EmulatorError, "max_seconds", limit, rule)
