# SPDX-License-Identifier: Apache-2.0
"""The position of a launch on the roofline of its GPU's record, and its bound."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.arch.device import Device
from cutegemm.cli.facts.traffic import Traffic
from cutegemm.config import KernelConfig
from cutegemm.planning.cost import CYCLE_COLUMNS, K_BYTES
from cutegemm.plans.kernel_plan import KernelPlan

# FP32 lanes of an SM
LANES = 128
# share of the time below which no single rate explains it
EXPLAINS = 0.5


@dataclass(frozen=True)
class Rate:
    """One resource: work over rate in microseconds, and the arithmetic as text."""

    resource: str
    us: float
    arithmetic: str


@dataclass(frozen=True)
class Roofline:
    """A launch compared with the rates of the GPU's record."""

    peak_tflops: float  # of the tensor cores or of the CUDA cores
    dram_gbs: float  # bandwidth of a copy in device memory
    l2_gbs: float  # bandwidth from L2 to all SMs
    intensity: float  # FLOP per byte of device memory, if every tensor moves once
    ridge: float  # intensity at which both roofs are equal
    rates: list[Rate]  # time of the work on each resource alone
    us: float  # time of the launch, measured or predicted
    tflops: float  # at that time
    attainable_tflops: float  # the lower of the peak and intensity times bandwidth
    bound: str  # the resource that needs longest, or "latency" if none explains the time
    share: float  # fraction of the time that the bound explains


def peak_tflops(device: Device, element_bytes: int | None) -> float:
    """TFLOP/s of all SMs by the GPU's record: tensor cores with such operands, or CUDA cores (None)."""
    if element_bytes is None:
        return device.sms * 2 * LANES / device.cores.slot / 1e3
    per_cycle = 2 * device.limits.mma_m * CYCLE_COLUMNS * K_BYTES / element_bytes
    return device.sms * per_cycle / device.cost.mma / 1e3


def roofline_of(plan: KernelPlan, traffic: Traffic, us: float) -> Roofline:
    """Place a plan on the roofline, given the time of a run in microseconds."""
    device, tensor = plan.device, isinstance(plan.config, KernelConfig)
    peak, l2 = peak_tflops(device, plan.problem.a.dtype.bytes if tensor else None), device.cost.l2
    unit = "tensor cores" if tensor else "CUDA cores"
    flops = traffic.executed_flops
    rates = [Rate(unit, flops / peak / 1e6, f"{flops / 1e9:,.3f} GFLOP / {peak:,.0f} TFLOP/s")]
    for name, size, rate in (("L2", traffic.l2_bytes, l2), ("DRAM", traffic.dram_bytes, device.dram_gbs)):
        rates.append(Rate(name, size / rate / 1e3, f"{size / 1e6:,.2f} MB / {rate:,.0f} GB/s"))
    longest = max(rates, key=lambda x: x.us)
    share = longest.us / us if us else 0.0
    intensity = traffic.flops / traffic.dram_bytes if traffic.dram_bytes else 0.0
    return Roofline(
        peak_tflops=peak,
        dram_gbs=device.dram_gbs,
        l2_gbs=l2,
        intensity=intensity,
        ridge=peak * 1e3 / device.dram_gbs,
        rates=rates,
        us=us,
        tflops=traffic.flops / us / 1e6 if us else 0.0,
        attainable_tflops=min(peak, intensity * device.dram_gbs / 1e3),
        bound=longest.resource if share >= EXPLAINS else "latency",
        share=share,
    )
