# SPDX-License-Identifier: Apache-2.0
"""Split-K by atomics: L2 adds the partial sums of a tile in the order in which they arrive.

The first CTA to arrive writes its partial sum, so that no launch has to zero that memory. The others wait until it is
written and add theirs by atomics. The last CTA reads the sum and runs the epilogue: it reads one tile, where
`workspace_sum` reads every partial sum. The order of additions varies, so a result's last bits differ from run to run.
A CTA waits only for one that arrived before it, so it does not matter which CTAs run at once.

One counter counts the CTAs whose partial sum is written, a second one those that arrived. Order of memory (PTX ISA 9.0,
memory consistency model): the first CTA's partial sum, each thread's fence, its consumers' barrier, one thread's
atomic; in another CTA one thread's acquire that reads it, the barrier after it, the additions. From these to the last
CTA's reads as in `workspace_sum`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.schedule.launch_counters import count_up
from cutegemm.kernels.split_k.workspace_sum import WorkspaceSum

CAME = 1  # which of a slice's counters, and of its shared counts, is of CTAs that came


@dataclass(frozen=True)
class AtomicSum(WorkspaceSum):
    """The sum and its counters in workspace."""

    @cute.jit
    def _leave(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        if self._comes_first(role, work):
            self.partials.put(acc, role, work, self.share)
        else:
            self.partials.join(acc, role, work, self.share)
        return self._counted(role, work)

    @cute.jit
    def _comes_first(self, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        """Whether no other CTA came before; else wait until the first one's partial sum is written."""
        counter, sCount = self.counter(work), self.sCount
        if role.slot == 0 and role.thread == 0:
            before = count_up(counter + CAME, self.partials.count(work) - 1, "relaxed")
            written = before
            if before != 0:
                written = cutlass.Int32(0)
                while written == 0:
                    # not zero again before this CTA has counted its own partial sum as written
                    written = cute.arch.load(counter.llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu")
            sCount[CAME] = before
        self._barrier()  # the count is known to every consumer, and the first partial sum is there
        return cutlass.Boolean(sCount[CAME] == 0)
