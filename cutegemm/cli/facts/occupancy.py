# SPDX-License-Identifier: Apache-2.0
"""CTAs that an SM holds, each limit with its arithmetic; and how a launch's tiles fill the GPU in waves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.arch.limits import Limits
from cutegemm.config import KernelConfig
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.steps import Multiply


@dataclass(frozen=True)
class Bound:
    """What one resource allows: CTAs on an SM, and the arithmetic in words."""

    resource: str
    ctas: int
    arithmetic: str


@dataclass(frozen=True)
class Occupancy:
    """CTAs and warps on an SM at once."""

    ctas: int  # resident on an SM; the least of the bounds
    warps: int  # resident on an SM
    share: float  # fraction of the warps that an SM can hold
    bounds: list[Bound]  # what each resource allows
    limited_by: list[str]  # the resources that allow no more

    def __str__(self) -> str:
        ctas = f"{self.ctas} CTA{'s' * (self.ctas != 1)}"
        return f"{ctas} and {self.warps} warps an SM ({self.share:.0%}), limited by {' and '.join(self.limited_by)}"


def occupancy(limits: Limits, threads: int, registers: int, smem: int | None) -> Occupancy:
    """Occupancy for a CTA's threads, a thread's registers, and a CTA's bytes of shared memory if these are known."""
    warps = math.ceil(threads / limits.warp)
    of_warp = math.ceil(registers * limits.warp / limits.register_unit) * limits.register_unit
    bounds = [] if smem is None else [_by_memory(limits, smem)]
    bounds += [
        Bound(
            "registers",
            limits.registers_per_sm // (of_warp * warps),
            f"{limits.registers_per_sm:,} / ({warps} warps x {of_warp:,})",
        ),
        Bound("threads", limits.sm_threads // (warps * limits.warp), f"{limits.sm_threads:,} / {threads}"),
        Bound("CTA slots", limits.sm_ctas, f"{limits.sm_ctas}"),
    ]
    ctas = min(x.ctas for x in bounds)
    limited = [x.resource for x in bounds if x.ctas == ctas]
    share = ctas * warps / (limits.sm_threads // limits.warp)
    return Occupancy(ctas, ctas * warps, share, bounds, limited)


def _by_memory(limits: Limits, smem: int) -> Bound:
    ctas = limits.smem_sm_bytes // (smem + limits.smem_reserved)
    return Bound(
        "shared memory", ctas, f"{limits.smem_sm_bytes:,} B / ({smem:,} + {limits.smem_reserved:,} B)"
    )


@dataclass(frozen=True)
class Waves:
    """How tiles fill the GPU."""

    tiles: list[int]  # CTA tiles along M, N and the batch, clusters filled up
    work_tiles: int  # what CTAs or clusters take one by one, splits of K included
    at_once: int  # work tiles in flight together
    waves: float  # work tiles over those in flight
    whole: int  # rounded up
    last: int  # work tiles in the last wave
    efficiency: float  # waves over whole waves: what the last one wastes is the rest
    padding: float  # share of the computed elements that lie outside D
    arithmetic: str  # in words

    def __str__(self) -> str:
        words = (
            f"{self.arithmetic}; the last has {self.last} of {self.at_once}: {self.efficiency:.0%} efficient"
        )
        return words + (f"; {self.padding:.1%} of tiles lies outside D" if self.padding else "")


def waves_of(plan: KernelPlan, step: Multiply) -> Waves:
    """The waves of a plan's GEMM launch."""
    config = step.config
    work, at_once, rows = math.prod(plan.tiles), plan.device.sms, config.tile[0]
    if isinstance(config, KernelConfig):
        work //= config.cluster[0] * config.cluster[1]
        work *= config.splits // config.cluster_splits
        at_once, rows = round(work / plan.waves) if plan.waves else work, config.rows
    # a kernel whose clusters all have the same share of K has no last wave
    whole = math.ceil(plan.waves) if not getattr(config, "streamed", False) else plan.waves
    last = work - at_once * (math.ceil(plan.waves) - 1)
    m, n, _, _ = step.extents
    covered = math.prod(math.ceil(x / y) * y for x, y in ((m, rows), (n, config.columns)))
    padding = 1 - m * n / covered if covered else 0.0
    kind = "clusters" if isinstance(config, KernelConfig) and config.cluster_size > 1 else "CTAs"
    words = f"{work:,} work tiles / {at_once:,} {kind} at once = {plan.waves:.2f} waves"
    efficiency = plan.waves / whole if whole else 1.0
    rounds = math.ceil(plan.waves)
    return Waves(list(plan.tiles), work, at_once, plan.waves, rounds, last, efficiency, padding, words)
