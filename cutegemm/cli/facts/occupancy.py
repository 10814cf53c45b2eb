# SPDX-License-Identifier: Apache-2.0
"""The CTAs of an SM, each limit with its arithmetic; and the waves of a launch's tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.arch.limits import Limits
from cutegemm.config import KernelConfig
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import Multiply


@dataclass(frozen=True)
class OccupancyBound:
    """The CTAs on an SM that one resource allows, and the arithmetic as text."""

    resource: str
    ctas: int
    arithmetic: str


@dataclass(frozen=True)
class Occupancy:
    """CTAs and warps on an SM at once."""

    ctas: int  # resident on an SM; the least of the bounds
    warps: int  # resident on an SM
    share: float  # fraction of the SM's maximum number of warps
    bounds: list[OccupancyBound]  # of each resource
    limited_by: list[str]  # the limiting resources

    def __str__(self) -> str:
        ctas = f"{self.ctas} CTA{'s' * (self.ctas != 1)}"
        return f"{ctas} and {self.warps} warps an SM ({self.share:.0%}), limited by {' and '.join(self.limited_by)}"


def occupancy(limits: Limits, threads: int, registers: int, smem: int | None) -> Occupancy:
    """Occupancy for a CTA's threads, a thread's registers, and a CTA's bytes of shared memory if they are known."""
    warps = math.ceil(threads / limits.warp)
    of_warp = math.ceil(registers * limits.warp / limits.register_unit) * limits.register_unit
    bounds = [] if smem is None else [_by_memory(limits, smem)]
    bounds += [
        OccupancyBound(
            "registers",
            limits.registers_per_sm // (of_warp * warps),
            f"{limits.registers_per_sm:,} / ({warps} warps x {of_warp:,})",
        ),
        OccupancyBound(
            "threads", limits.sm_threads // (warps * limits.warp), f"{limits.sm_threads:,} / {threads}"
        ),
        OccupancyBound("CTA slots", limits.sm_ctas, f"{limits.sm_ctas}"),
    ]
    ctas = min(x.ctas for x in bounds)
    limited = [x.resource for x in bounds if x.ctas == ctas]
    share = ctas * warps / (limits.sm_threads // limits.warp)
    return Occupancy(ctas, ctas * warps, share, bounds, limited)


def _by_memory(limits: Limits, smem: int) -> OccupancyBound:
    ctas = limits.smem_sm_bytes // (smem + limits.smem_reserved)
    return OccupancyBound(
        "shared memory", ctas, f"{limits.smem_sm_bytes:,} B / ({smem:,} + {limits.smem_reserved:,} B)"
    )


@dataclass(frozen=True)
class Waves:
    """The waves of a launch."""

    tiles: list[int]  # CTA tiles along M, N and the batch, rounded up to whole clusters
    work_tiles: int  # of CTAs or clusters, including splits of K
    at_once: int  # work tiles that run concurrently
    waves: float  # work tiles / concurrent work tiles
    whole: int  # waves, rounded up
    last: int  # work tiles in the last wave
    efficiency: float  # waves / whole waves, less than 1 by wave quantization
    padding: float  # share of the computed elements that are outside D
    arithmetic: str  # as text

    def __str__(self) -> str:
        words = (
            f"{self.arithmetic}; the last has {self.last} of {self.at_once}: {self.efficiency:.0%} efficient"
        )
        return words + (f"; {self.padding:.1%} of tiles is outside D" if self.padding else "")


def waves_of(plan: KernelPlan, step: Multiply) -> Waves:
    """The waves of a plan's GEMM launch."""
    config = step.config
    work, at_once, rows = math.prod(plan.tiles), plan.device.sms, config.tile[0]
    if isinstance(config, KernelConfig):
        work //= config.cluster[0] * config.cluster[1]
        work *= config.splits // config.cluster_splits
        at_once, rows = round(work / plan.waves) if plan.waves else work, config.rows
    # stream-K gives all clusters the same share, so there is no partial last wave
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
