# SPDX-License-Identifier: Apache-2.0
"""Load one operand's tile into a pipeline stage element by element: any strides, any alignment.

The producer warpgroup's threads read elements (zero outside the matrix) into registers and store them to
the swizzled stage that WGMMA reads. The caller makes those stores visible to WGMMA (fence.proxy.async) and
arrives on the stage's full barrier (`producer`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.kernels.host.operand_layouts import batch_at
from cutegemm.kernels.load.tf32_parts import nearest
from cutegemm.kernels.schedule.work import Corner

IN_FLIGHT = 16  # loads per thread before the first use


@dataclass(frozen=True)
class GatherLoad:
    """One operand read element by element."""

    mX: Any  # (rows, k, l) in global memory
    sX: Any  # (ROWS, BLK_K, STAGE)
    box: tuple[int, int]  # (ROWS, BLK_K)
    along_k: bool  # neighbouring threads read neighbouring elements along k
    gate: int | None  # which half of a gated B
    ignored: int = 0  # low bits of fp32 elements, which are rounded to nearest even first

    @cute.jit
    def begin(self, corner: cutlass.Constexpr, stage: Any, thread: Any):
        """Copy the tile that begins at `corner` into `stage`; thread: within the producer warpgroup."""
        rows, depth = self.box
        extent_fast, extent_slow = (depth, rows) if cutlass.const_expr(self.along_k) else (rows, depth)
        fast = math.gcd(extent_fast, hw.WARPGROUP)  # threads along the fast axis
        slow = hw.WARPGROUP // fast
        across = extent_fast // fast  # steps along the fast axis before one along the slow axis
        count = across * (extent_slow // slow)
        flight = math.gcd(count, IN_FLIGHT)
        mX, sX = self.mX, self.sX
        at = batch_at(mX, corner.batch, self.gate)
        for chunk in cutlass.range(count // flight, unroll=1):
            values = cute.make_rmem_tensor(flight, mX.element_type)
            for i in cutlass.range_constexpr(flight):
                step = chunk * flight + i
                along, aside = step % across * fast + thread % fast, step // across * slow + thread // fast
                row, k = (aside, along) if cutlass.const_expr(self.along_k) else (along, aside)
                values[i] = _element(mX, corner.row + row, corner.column + k, at)
            for i in cutlass.range_constexpr(flight):
                step = chunk * flight + i
                along, aside = step % across * fast + thread % fast, step // across * slow + thread // fast
                row, k = (aside, along) if cutlass.const_expr(self.along_k) else (along, aside)
                sX[row, k, stage] = values[i] if self.ignored == 0 else nearest(values[i], self.ignored)

    def end(self, corner: Corner, stage: Any, phase: Any, thread: Any) -> None:
        """Do nothing: `begin` has written the stage."""


def _element(mX: Any, row: Any, k: Any, batch: Any) -> Any:
    """X[row, k, batch], or zero outside the matrix; the address read is always inside."""
    rows, depth = mX.shape[0], mX.shape[1]
    inside = cutlass.Boolean(row < rows) & cutlass.Boolean(k < depth)
    value = mX[cutlass.min(row, rows - 1), cutlass.min(k, depth - 1), batch]
    return cutlass.select_(inside, value, mX.element_type(0.0))
