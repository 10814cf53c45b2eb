# SPDX-License-Identifier: Apache-2.0
"""The machine: CTAs, clusters, the order in which warps run, and when asynchronous work completes.

Clusters start one after another, a further one (up to the resident set) whenever those that run are stuck; so
kernels whose CTAs wait for each other run, and others stay quick. Three completion policies:

    eager    copies and products happen when they are issued (committed)
    lazy     they happen as late as the program allows: loads when nothing else can move, stores and products at
             the wait that names them
    random   they happen at random, warps run in random order, a third of the CTAs slowly, and try_wait fails now
             and then (seeded)
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque

import numpy as np

from cutegemm.emulator.cta import SPLIT, Cluster
from cutegemm.emulator.group import WARP, Group, Part
from cutegemm.emulator.memory import Fault, GlobalMemory
from cutegemm.emulator.meter import Meter
from cutegemm.emulator.parameters import parameter_space, place_variables
from cutegemm.emulator.program import Program
from cutegemm.emulator.progress import Progress
from cutegemm.emulator.races import Detector
from cutegemm.emulator.reports import deadlock, place_of
from cutegemm.errors import EmulatorError

POLICIES = ("eager", "lazy", "random")
TURN = 4000  # blocks a group runs before others get a turn
STRETCH = 200  # blocks run without polling or blocking that count as getting somewhere
STUCK_ROUNDS = 100  # rounds without any effect, try_wait giving up each time, until a deadlock is declared
FLAKY = 0.1  # chance of a spurious try_wait failure under the random policy
SHARED_LIMIT = (
    232448  # bytes of shared memory one CTA may use on sm_90 (227 KiB), CUDA programming guide, table 28
)


class Device:
    """One launch: geometry, memories, policy, counters and the scheduler."""

    def __init__(self, program: Program, config, options, l2):
        self.program, self.options, self.l2 = program, options, l2
        self.grid, self.block, self.cluster = config.grid, config.block, config.cluster
        self.threads = int(np.prod(self.block))
        self.warps = -(-self.threads // WARP)
        self.shared_bytes = program.shared_size + config.smem_bytes
        self.dynamic_bytes = config.smem_bytes
        self.memory = GlobalMemory(config.buffers)
        self.params = parameter_space(program, config.params)
        self.symbols = place_variables(program, self.memory)
        self.tensors: dict = {}
        self.lane_cache: dict = {}  # per tuple of warps, what their lanes always hold
        self.policy, self.rng = options.policy, random.Random(options.seed)
        self.warps_per_group = options.warps_per_group
        self.queue: deque = deque()
        self.stores: list = []
        self.products: list = []
        self.events = 0
        self.timed_out = False
        self.track = Detector(self) if options.races else None
        self.meter = Meter(self) if options.meter else None
        self.observers: list = [o for o in (self.track, self.meter) if o is not None]
        self.totals = [0] * len(program.blocks)
        self.by_warp: dict[tuple[int, ...], list[int]] = {}
        self.uneven: dict[tuple[int, ...], dict[int, np.ndarray]] = {}
        self.started = time.monotonic()
        self.finished_ctas = 0
        self.progress = Progress(int(np.prod(self.grid)), options.progress)

    def special_of(self, cluster: Cluster, index, rank: int) -> dict[str, int]:
        """Special registers that are the same for a whole CTA."""
        special: dict[str, int] = {"smid": 0, "nsmid": 132, "gridid": 0, "nwarpid": 64, "cluster_ctarank": rank,
                   "dynamic_smem_size": self.dynamic_bytes, "total_smem_size": self.shared_bytes}  # fmt: skip
        size = self.cluster
        special["cluster_nctarank"] = size[0] * size[1] * size[2]
        special["is_explicit_cluster"] = special["cluster_nctarank"] > 1
        for i, axis in enumerate("xyz"):
            special |= {
                f"ctaid.{axis}": index[i], f"nctaid.{axis}": self.grid[i], f"ntid.{axis}": self.block[i],
                f"cluster_ctaid.{axis}": index[i] % size[i], f"cluster_nctaid.{axis}": size[i],
                f"clusterid.{axis}": index[i] // size[i], f"nclusterid.{axis}": self.grid[i] // size[i],
            }  # fmt: skip
        return special

    # ---- asynchronous work

    def submit(self, action) -> None:
        """A copy towards shared memory was issued."""
        self.events += 1
        if self.policy == "eager":
            action()
        else:
            self.queue.append(action)

    def note_store(self, store) -> None:
        """A bulk store was issued."""
        self.events += 1
        if self.policy == "eager":
            store.finish()
        elif self.policy == "random":
            self.stores.append(store)

    def offer_wgmma(self, group: Group, products: list) -> None:
        """A wgmma group was committed."""
        if self.policy == "eager":
            for p in products:
                p.compute()
        elif self.policy == "random":
            self.products.append((group, products))

    def fails_spuriously(self) -> bool:
        """Whether this try_wait gives up without need."""
        return self.policy == "random" and self.rng.random() < FLAKY

    def _stir(self) -> None:
        """Random policy: some asynchronous work happens."""
        rng = self.rng
        while self.queue and rng.random() < 0.3:
            self._finish_copy()
        while self.stores and rng.random() < 0.3:
            store = self.stores.pop(rng.randrange(len(self.stores)))
            store.read() if rng.random() < 0.5 else store.finish()
        while self.products and rng.random() < 0.3:
            _, products = self.products.pop(0)
            for p in products:
                p.compute()

    def _finish_copy(self) -> None:
        """Complete one copy under way: the oldest, or any under the random policy."""
        if self.policy == "random":
            self.queue.rotate(-self.rng.randrange(len(self.queue)))
        try:
            self.queue.popleft()()
        except Fault as e:
            raise EmulatorError(f"{self.program.kernel.name[:80]}, an asynchronous copy: {e}") from e

    # ---- scheduling

    def run(self) -> None:
        """Run the whole grid.

        Raises:
            EmulatorError: a fault, with PTX line and thread; a deadlock, with who waits for what.
        """
        waiting = deque(self._cluster_origins())
        self.clusters = len(waiting)
        running: list[Cluster] = []
        resident = max(1, self.options.resident_ctas // int(np.prod(self.cluster)))
        if self.policy == "random":
            while waiting and len(running) < resident:
                running.append(Cluster(self, waiting.popleft()))
        idle = 0
        while waiting or running or self.queue:
            if not running and waiting:
                running.append(Cluster(self, waiting.popleft()))
            before = self.events
            moved = self._round(running, idle > 0)
            for cluster in [c for c in running if not c.live]:
                running.remove(cluster)
                self.finished_ctas += len(cluster.ctas)
                if self.track is not None:
                    self.track.cluster_ended(cluster)
            if moved or self.events != before:
                idle = 0
                self.timed_out = False
            elif self.queue:
                self._finish_copy()
            elif waiting and len(running) < resident:
                running.append(Cluster(self, waiting.popleft()))
            else:
                idle += 1
                self.timed_out = True
                if idle > STUCK_ROUNDS:
                    groups = [g for c in running for g in c.live]
                    raise EmulatorError(deadlock(self, groups, len(waiting)))
            self._check_time()

    def _cluster_origins(self):
        (gx, gy, gz), (cx, cy, cz) = self.grid, self.cluster
        return [(x, y, z) for z in range(0, gz, cz) for y in range(0, gy, cy) for x in range(0, gx, cx)]

    def _round(self, running: list[Cluster], every: bool) -> bool:
        """Every group takes a turn; whether one got somewhere without polling.

        Under the random policy some CTAs are slow and miss most rounds, unless `every` group is to run.
        """
        groups = [g for cluster in running for g in cluster.live]
        if self.policy == "random":
            if not every:
                groups = [g for g in groups if self.rng.random() < g.cta.pace]
            self.rng.shuffle(groups)
        moved = False
        for group in groups:
            if not group.done:
                moved |= self._turn(group)
                if self.policy == "random":
                    self._stir()
        return moved

    def _turn(self, group: Group) -> bool:
        """Run a group until it blocks, ends, splits or has used up its turn; whether it got somewhere."""
        functions, exit_block = self.program.functions, self.program.exit
        group.budget = TURN if self.policy != "random" else self.rng.randrange(1, 60)
        group.waiting = None
        registers, counts = group.registers, group.counts
        pc, stack = group.pc, group.stack
        unpolled = group.budget
        metered = self.meter is not None
        try:
            while group.budget > 0:
                while stack and stack[-1][0] == pc:
                    top = stack[-1]
                    if top[1] is not None:
                        pc, mask, top[1] = top[1], top[2], None
                        group.set_mask(mask)
                    else:
                        group.set_mask(top[3])
                        stack.pop()
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
                    if metered:
                        self.meter.block(group, pc)
                    return False
                counts[pc] += warps
                if metered:
                    self.meter.ran(group, pc, mask)
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
            raise EmulatorError(place_of(self, group, e)) from e
        group.pc = pc
        if group.budget != unpolled:
            group.stretch = 0
        return group.stretch >= STRETCH

    def _apart(self, group: Group, keys) -> list[Group]:
        try:
            return group.part(keys)
        except Fault as e:
            raise EmulatorError(place_of(self, group, e)) from e

    def retire(self, group: Group) -> None:
        """Add a group's block counts to the launch's."""
        key = tuple(group.warps)
        mine = self.by_warp.get(key)
        if mine is None:
            self.by_warp[key] = list(group.counts)
        else:
            for i, n in enumerate(group.counts):
                mine[i] += n
        mine = self.uneven.setdefault(key, {})
        for block, shares in group.uneven.items():
            mine[block] = mine.get(block, 0) + shares

    def _check_time(self) -> None:
        self.progress.show(self.finished_ctas)
        limit = self.options.max_seconds
        if limit is not None and time.monotonic() - self.started > limit:
            total = int(np.prod(self.grid))
            raise EmulatorError(
                f"max_seconds={limit}: stopped after {self.finished_ctas} of {total} CTAs had ended"
            )

    # ---- meters; replaced by the meter when one is attached

    def count_load(self, group, tensor, reach, copies: int) -> None:
        """A tensor load was issued; `reach` is the part inside the tensor (`Tensor.reach`)."""
        if self.meter is not None:
            self.meter.tensor_load(group, tensor, reach, copies)

    def count_store(self, group, tensor, reach) -> None:
        """A tensor store was issued."""
        if self.meter is not None:
            self.meter.tensor_store(group, tensor, reach)

    def count_bulk(self, region, start: int, size: int, write: bool, copies: int) -> None:
        """A bulk copy of bytes in a row of global memory was issued."""
        if self.meter is not None:
            self.meter.bulk(region, start, size, write, copies)

    def count_wgmma(self, group, form, a_in_registers: bool) -> None:
        """A wgmma was issued."""
        if self.meter is not None:
            self.meter.wgmma(group, form, a_in_registers)

    def observe(self, group, m, region, offset, size, write, space, strong="") -> None:
        """An access is about to happen: a plain one, or a strong one (relaxed, acquire, release, acq_rel).

        `m` are the active lanes, None for all. In "matrix" space (ldmatrix, stmatrix) `offset` are rows of 16 bytes
        and `m` the active warps.
        """
        for observer in self.observers:
            observer.access(group, m, region, offset, size, write, space, strong)

    def count_copy(self, to, source, size: int, around_l1: bool) -> None:
        """A cp.async was issued: `to` and `source` are (lanes, region, offsets); source None reads nothing."""
        if self.meter is not None:
            self.meter.async_copy(to, source, size, around_l1)

    def observe_atomic(self, group, lane, region, offset, size, order: str) -> None:
        """An atomic operation of one lane happened."""
        for observer in self.observers:
            observer.atomic(group, lane, region, offset, size, order)

    # ---- where it is

    def instruction_at(self, line: int):
        """The PTX instruction a line of the translated text belongs to."""
        return self.program.origin[line - 1] if 0 < line <= len(self.program.origin) else None

    def current_instruction(self):
        """The PTX instruction being executed, found on the Python stack."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.program.file:
            frame = frame.f_back
        return None if frame is None else self.instruction_at(frame.f_lineno)
