# SPDX-License-Identifier: Apache-2.0
"""Who watches a launch: the race detector, coverage, the meter and what was written, each of which may be absent.

Units tell of what they do here; nothing they compute depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cutegemm.emulator.watch.coverage import Watcher
from cutegemm.emulator.watch.meter import Meter
from cutegemm.emulator.watch.races import Detector
from cutegemm.emulator.watch.written import Written

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Value, Vector
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.state.memory import Region
    from cutegemm.emulator.translate.program import Program
    from cutegemm.emulator.units.barriers import MBarrier
    from cutegemm.emulator.units.cta import Cluster
    from cutegemm.emulator.units.products import Form
    from cutegemm.emulator.units.tma import Reach, Tensor


# Bytes a cp.async touches: lanes, region, byte offsets.
Touched: TypeAlias = "tuple[Vector, Region, Vector]"


class Observers:
    """The observers of one launch."""

    def __init__(
        self,
        detector: Detector | None,
        coverage: Watcher | None,
        meter: Meter | None,
        written: Written | None = None,
    ) -> None:
        self.track, self.coverage, self.meter, self.written = detector, coverage, meter, written
        self.listening: list[Detector | Meter | Written] = [
            o for o in (detector, meter, written) if o is not None
        ]

    # ---- accesses

    def access(
        self,
        group: Group,
        m: Mask,
        region: Region,
        offset: Value,
        size: int,
        write: bool,
        space: str,
        strong: str = "",
    ) -> None:
        """An access is about to happen: a plain one, or a strong one (relaxed, acquire, release, acq_rel).

        `m` are the active lanes, None for all. In "matrix" space (ldmatrix, stmatrix) `offset` are rows of 16 bytes
        and `m` the active warps.
        """
        for observer in self.listening:
            observer.access(group, m, region, offset, size, write, space, strong)

    def atomics(
        self, group: Group, touched: Sequence[tuple[int, Region, int]], size: int, order: str, returns: bool
    ) -> None:
        """An atomic operation happened: `touched` holds lane, region and byte offset of each active lane.

        `returns` says whether something uses the values that it returned.
        """
        for observer in (self.meter, self.written):
            if observer is not None:
                for lane, region, offset in touched:
                    observer.atomic(group, lane, region, offset, size, order)
        if self.track is None:
            return
        for region in {id(region): region for _, region, _ in touched}.values():
            some = [(lane, offset) for lane, of, offset in touched if of is region]
            m = None
            if len(some) < group.lanes:
                m = np.zeros(group.lanes, bool)
                m[[lane for lane, _ in some]] = True
            offsets = np.array([offset for _, offset in some], np.int64)
            self.track.atomics(group, m, region, offsets, size, order, returns)

    # ---- units

    def tensor_load(self, group: Group, tensor: Tensor, at: tuple[int, ...], bars: list[MBarrier]) -> None:
        """A tensor load of the box at `at` was issued, completing on `bars`."""
        if self.meter is not None:
            self.meter.tensor_load(group, tensor, tensor.reach(at), len(bars))
        if self.coverage is not None:
            self.coverage.box(tensor, group.cta, at, bars)

    def tensor_store(self, group: Group, tensor: Tensor, reach: Reach | None) -> None:
        """A tensor store was issued."""
        if self.meter is not None:
            self.meter.tensor_store(group, tensor, reach)
        if self.written is not None:
            self.written.tensor_store(group, tensor, reach)

    def bulk(self, region: Region, start: int, size: int, write: bool, copies: int) -> None:
        """A bulk copy of bytes in a row of global memory was issued."""
        if self.meter is not None:
            self.meter.bulk(region, start, size, write, copies)
        if self.written is not None and write:
            self.written.bulk(region, start, size)

    def async_copy(self, to: Touched, source: Touched | None, size: int, around_l1: bool) -> None:
        """A cp.async was issued: `to` and `source` are (lanes, region, offsets); source None reads nothing."""
        if self.meter is not None:
            self.meter.async_copy(to, source, size, around_l1)

    def wgmma(self, group: Group, form: Form, a_in_registers: bool) -> None:
        """A wgmma was issued."""
        if self.meter is not None:
            self.meter.wgmma(group, form, a_in_registers)

    # ---- waits and the course of the run

    def ran(self, group: Group, block: int, mask: Mask) -> None:
        """A group has run a block."""
        if self.meter is not None:
            self.meter.ran(group, block, mask)

    def blocked(self, group: Group, block: int) -> None:
        """A group has to wait at a block."""
        if self.meter is not None:
            self.meter.block(group, block)
        if self.coverage is not None:
            self.coverage.blocked(block)

    def polled(self, block: int) -> None:
        """A wait found its phase incomplete, and may go on all the same."""
        if self.coverage is not None:
            self.coverage.blocked(block)

    def waited_for(self, groups: Sequence[object], program: Program) -> None:
        """A wait for groups of asynchronous work names these."""
        if self.coverage is not None and any(groups):
            self.coverage.found_work(program.current_instruction())

    def warp_started(self, group: Group) -> None:
        """A group of warps starts."""
        if self.track is not None:
            group.tracker = self.track.warp(group)

    def warp_ended(self, group: Group) -> None:
        """A group of warps has reached its end."""
        if group.tracker is not None:
            group.tracker.ended()
        if self.coverage is not None:
            self.coverage.ended(group)

    def cluster_ended(self, cluster: Cluster) -> None:
        """Every warp of a cluster has ended."""
        if self.track is not None:
            self.track.cluster_ended(cluster)
        if self.coverage is not None:
            self.coverage.cluster_ended(cluster)
