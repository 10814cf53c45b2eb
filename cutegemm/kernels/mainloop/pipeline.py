# SPDX-License-Identifier: Apache-2.0
"""The mainloop pipeline: shared-memory stages handed between producer and consumers by mbarriers.

Barriers, per stage (source: PTX ISA, mbarrier):
    full    the stage holds data.     Arrivals: one per loading agent of this CTA (the TMA warp's elected
            thread, with the byte count TMA will deliver; every gathering thread; every thread that loads scales of
            blocks, when its copies are there) -> all consumers wait.
    empty   the stage may be refilled. Arrivals: one per consumer warp of every CTA this CTA's TMA writes
            into (its cluster row and column) that reads the stage -> this CTA's producer waits.

A position in the pipeline is (stage, phase): the buffer and the parity that a consumer waits for. A producer
waits for the opposite parity, so that the first pass over fresh barriers does not block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.mainloop.cluster import Place
from cutegemm.kernels.mainloop.shared_storage import Shared


def advance(stage: Any, phase: Any, stages: int) -> tuple[Any, Any]:
    """The position after (stage, phase); the parity flips when the pipeline wraps."""
    following = stage + 1
    wrapped = cutlass.Int32(following == stages)
    return following - wrapped * stages, phase ^ wrapped


def skip(position: tuple[Any, Any], count: Any, stages: int) -> tuple[Any, Any]:
    """The position `count` stages after one."""
    ahead = position[0] + count
    return ahead % stages, position[1] ^ (ahead // stages & 1)


@dataclass(frozen=True)
class Pipeline:
    """The barriers of one pipeline; `full` and `empty` point to STAGE mbarriers each."""

    full: Any
    empty: Any
    stages: int
    place: Place
    shared: Shared

    @staticmethod
    def create(stages: int, place: Place, shared: Shared) -> Pipeline:
        """Take the barriers."""
        return Pipeline(shared.barriers("full"), shared.barriers("empty"), stages, place, shared)

    def init(self) -> None:
        """Initialise every barrier; call from one thread, then fence and synchronise the cluster."""
        for stage in range(self.stages):
            self.shared.init("full", self.full + stage)
            self.shared.init("empty", self.empty + stage)

    def is_full(self, stage: Any, phase: Any) -> Any:
        """Whether the stage that this thread reads next holds data; does not wait.

        The answer holds within a work tile: a parity does not tell a phase from the one before last.
        """
        return cute.arch.mbarrier_test_wait(self.full + stage, phase)

    def wait_full(self, stage: Any, phase: Any) -> None:
        """Consumer waits until the stage holds data."""
        cute.arch.mbarrier_wait(self.full + stage, phase)

    def wait_empty(self, stage: Any, phase: Any) -> None:
        """Producer waits until every consumer has released the stage."""
        cute.arch.mbarrier_wait(self.empty + stage, phase ^ 1)

    def expect(self, stage: Any, size: int) -> None:
        """The TMA warp's elected thread arrives on full and announces `size` bytes."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.full + stage, size)

    @cute.jit
    def release(self, stage: Any) -> None:
        """A consumer warp has read the stage: it arrives at every CTA whose TMA writes into this one.

        Lane i arrives at the i-th of those CTAs (`Place.writer`).
        """
        lane = cute.arch.lane_idx()
        if cutlass.const_expr(self.place.writers == 1):
            if lane == 0:
                cute.arch.mbarrier_arrive(self.empty + stage)
        else:
            writer = self.place.writer(lane)
            if lane < self.place.writers:
                cute.arch.mbarrier_arrive(self.empty + stage, writer)
