# SPDX-License-Identifier: Apache-2.0
"""A tile's sum over CTAs that each added up a part of K: L2 adds the parts as they come.

The first CTA to come writes its part, so that nobody has to zero that memory; the others wait until it is there and
have L2 add theirs to it, atomically, number by number. The last one reads the sum and goes on with the epilogue: one
tile, where `workspace_sum` reads every part. The order of additions is that of arrival, so a result's last bits differ
from run to run. A CTA waits only for one that came before it, so it does not matter which CTAs run at once.

Beside the counter of CTAs whose part is written there is one of those that came. Order of memory (PTX ISA 9.0, memory
consistency model): the first CTA's part, each thread's fence, its consumers' barrier, one thread's atomic; in another
CTA one thread's acquire that finds it, the barrier after it, the additions. From these to the last CTA's reads as in
`workspace_sum`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.counters import count_up
from cutegemm.kernels.workspace_sum import WorkspaceSum

CAME = 1  # which of a slice's counters, and of its shared counts, is of CTAs that came


@dataclass(frozen=True)
class AtomicSum(WorkspaceSum):
    """The sum and its counters in workspace."""

    @cute.jit
    def _leave(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        if self._comes_first(role, work):
            self.parts.put(acc, role, work, self.share)
        else:
            self.parts.join(acc, role, work, self.share)
        return self._counted(role, work)

    @cute.jit
    def _comes_first(self, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        """Whether no other CTA came before; else wait until the first one's part is written."""
        counter, sCount = self.counter(work), self.sCount
        if role.slot == 0 and role.thread == 0:
            before = count_up(counter + CAME, self.parts.count(work) - 1, "relaxed")
            written = before
            if before != 0:
                written = cutlass.Int32(0)
                while written == 0:
                    # not zero again before this CTA has counted its own part as written
                    written = cute.arch.load(counter.llvm_ptr, cutlass.Int32, sem="acquire", scope="gpu")
            sCount[CAME] = before
        self._barrier()  # the count is known to every consumer, and the first part is there
        return cutlass.Boolean(sCount[CAME] == 0)
