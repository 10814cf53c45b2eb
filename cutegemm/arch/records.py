# SPDX-License-Identifier: Apache-2.0
"""The GPUs that are known, and what is assumed of one that is not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from cutegemm.arch import sm90
from cutegemm.arch.device import CoreModel, CostModel, Device, LoadModel, TimeModel

# The constants of each GPU by name, with where they come from; `benchmarks.fit_cost` and `benchmarks.fit` write them.
TIMES_FILE = Path(__file__).with_name("times.json")
_FITTED = json.loads(TIMES_FILE.read_text("utf-8"))
TIMES = {name: TimeModel(**x["time"]) for name, x in _FITTED.items()}
# what single kernels take over what those rates say; `benchmarks.fit_cost` writes it, too
KERNELS_FILE = Path(__file__).with_name("kernels.json")
KERNELS = {name: x["kernels"] for name, x in json.loads(KERNELS_FILE.read_text("utf-8")).items()}
# rates of the cost model, of GPUs whose kernels were swept for it
COSTS = {name: CostModel(**x["cost"]) for name, x in _FITTED.items() if "cost" in x}
# of operands that TMA cannot address, of GPUs whose ways to load them were swept
LOADS = {name: LoadModel(**x["loads"]) for name, x in _FITTED.items() if "loads" in x}
# of the CUDA cores, of GPUs where those were measured
CORES = {name: CoreModel(**x["cores"]) for name, x in _FITTED.items() if "cores" in x}

H200 = Device(
    name="NVIDIA H200",
    limits=sm90.LIMITS,
    sms=132,
    # measured with cudaOccupancyMaxActiveClusters
    clusters=((1, 132), (2, 66), (4, 30), (8, 15)),
    # measured, device-to-device copy
    dram_gbs=4_260.0,
    # as the driver gives it
    l2_bytes=60 * 2**20,
    time=TIMES["NVIDIA H200"],
    cores=CORES["NVIDIA H200"],
    loads=LOADS["NVIDIA H200"],
    cost=COSTS["NVIDIA H200"],
    kernels=KERNELS["NVIDIA H200"],
)

H100 = dataclasses.replace(
    H200,
    # the SXM board: 132 SMs, HBM3
    name="NVIDIA H100 80GB HBM3",
    # measured, device-to-device copy, of 3,350 nominal
    dram_gbs=3_000.0,
    # H100 whitepaper
    l2_bytes=50 * 2**20,
    time=TIMES["NVIDIA H100 80GB HBM3"],
    cores=CORES.get("NVIDIA H100 80GB HBM3", CORES["NVIDIA H200"]),
    loads=LOADS.get("NVIDIA H100 80GB HBM3", LOADS["NVIDIA H200"]),
    cost=COSTS.get("NVIDIA H100 80GB HBM3", COSTS["NVIDIA H200"]),
    kernels=KERNELS.get("NVIDIA H100 80GB HBM3", KERNELS["NVIDIA H200"]),
    note="its clusters, loads of odd operands, the CUDA cores' times and the cost model's rates are the H200's",
)

DEFAULT = H200
RECORDS = (H200, H100)


def find(name: str, *, sms: int, l2_bytes: int | None = None, dram_gbs: float | None = None) -> Device:
    """The record of a Hopper GPU by its name, or one that starts from its own properties and says so.

    A part of a GPU has the name of the whole and fewer SMs: it is no known GPU.

    Args:
        name: as the driver gives it.
        sms: streaming multiprocessors.
        l2_bytes: of the L2 cache; None where it is not known.
        dram_gbs: GB/s of a device-to-device copy; None where it is not known.

    Example:
        >>> find("NVIDIA H200", sms=132) is H200
        True
        >>> find("NVIDIA GH200 480GB", sms=132).note
        "no record of NVIDIA GH200 480GB: planned with the times of NVIDIA H200 and this GPU's 132 SMs"
    """
    known = next((x for x in RECORDS if x.name == name and x.sms == sms), None)
    if known is not None:
        return known
    return dataclasses.replace(
        DEFAULT,
        name=name,
        sms=sms,
        clusters=DEFAULT.clusters if sms == DEFAULT.sms else (),
        l2_bytes=DEFAULT.l2_bytes if l2_bytes is None else l2_bytes,
        dram_gbs=DEFAULT.dram_gbs if dram_gbs is None else dram_gbs,
        note=f"no record of {name}: planned with the times of {DEFAULT.name} and this GPU's {sms} SMs",
    )


# MHz: the SM clock of the GPUs whose times are in the record, at most
RECORD_MHZ = 1_980.0


def from_properties(
    device: Device, *, clusters: tuple[tuple[int, int], ...], clock_mhz: float, dram_gbs: float
) -> Device:
    """A GPU without a record, with what it says of itself in the place of what was assumed.

    Everything that the SMs' clock times is scaled by it: the tensor cores, the CUDA cores, and what L2 delivers. Its
    note says what it starts from.

    Args:
        device: of `find`, without a record.
        clusters: (CTAs a cluster, clusters resident at once).
        clock_mhz: the SMs' highest; 0 where it is not known.
        dram_gbs: GB/s of a device-to-device copy.
    """
    scale = clock_mhz / RECORD_MHZ if clock_mhz > 0 else 1.0
    time = device.time
    scaled = dataclasses.replace(time, mma=time.mma / scale, l2=time.l2 * scale, l2_lone=time.l2_lone * scale)
    cores = dataclasses.replace(device.cores, slot=device.cores.slot / scale)
    rates = device.cost
    if rates is not None:
        cycles = {name: getattr(rates, name) / scale for name in ("mma", "smem")}
        rates = dataclasses.replace(rates, **cycles, port=rates.port * scale, l2=rates.l2 * scale)
    loads = device.loads
    rated = {name: getattr(loads, name) * scale for name in ("shift", "gather", "copy")}
    loads = dataclasses.replace(loads, **rated, stage=loads.stage / scale)
    asked = f"its own clusters, {dram_gbs:,.0f} GB/s" + (f", {clock_mhz:,.0f} MHz" if clock_mhz > 0 else "")
    return dataclasses.replace(
        device,
        clusters=clusters,
        dram_gbs=dram_gbs,
        time=scaled,
        cores=cores,
        loads=loads,
        cost=rates,
        note=f"{device.note}, {asked}",
    )
