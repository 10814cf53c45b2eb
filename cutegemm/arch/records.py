# SPDX-License-Identifier: Apache-2.0
"""The records of known GPUs, and the figures assumed for other GPUs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutegemm.arch import sm90
from cutegemm.arch.device import CoreModel, CostModel, Device, FewRowModel, LoadModel, Thresholds

# Rates of each GPU by name, with their source; written by `benchmarks.fit_cost`, `benchmarks.fit` and
# `benchmarks.fit_gpu`, which adds the properties of a GPU that has no record below.
TIMES_FILE = Path(__file__).with_name("times.json")
# Factors of single kernels on the times that those rates predict; written by `benchmarks.fit_cost`;
# `benchmarks.fit_kernels` adds further ones.
KERNELS_FILE = Path(__file__).with_name("kernels.json")
_MODELS = {
    "cores": CoreModel, "cost": CostModel, "few_rows": FewRowModel, "loads": LoadModel, "thresholds": Thresholds,
}  # fmt: skip


def _fitted(
    name: str, base: Device | None, times: Path = TIMES_FILE, factors: Path = KERNELS_FILE
) -> dict[str, Any]:
    """The fields of `Device` that were fitted on a GPU; kernels that were not measured on it have `base`'s factors.

    One with many stages that was measured with few keeps its own.
    """
    rates, kernels = (json.loads(x.read_text("utf-8")).get(name, {}) for x in (times, factors))
    fitted: dict[str, Any] = {part: kind(**rates[part]) for part, kind in _MODELS.items() if part in rates}
    if kernels:
        own, others = kernels["kernels"], _unplaced(base.kernels) if base else {}
        fitted["kernels"] = {x: y for x, y in others.items() if x.replace("deep", "plain") not in own} | own
    return fitted


def _unplaced(kernels: Mapping[str, float]) -> dict[str, float]:
    """Factors without those of splits by a launch, which hold for clusters that have places by GPC."""
    return {name: x for name, x in kernels.items() if not name.endswith(" launch")}


# GPC 0 has eight pairs of SMs, four of which are placed first and hold no larger clusters; GPCs 1 to 5 have eight, 6
# and 7 nine. Launches without clusters fill one GPC after another.
_EACH, _LATER = tuple(range(8)), tuple(range(1, 8))

H200 = Device(
    name="NVIDIA H200",
    limits=sm90.LIMITS,
    sms=132,
    # measured with cudaOccupancyMaxActiveClusters
    clusters=((1, 132), (2, 66), (4, 30), (8, 15)),
    # of the boards that were measured (`benchmarks/probes/gpcs.cu`); others may differ, which costs speed alone
    gpcs={
        1: tuple(gpc for gpc in _EACH for _ in range(18 if gpc > 5 else 16)),
        2: 4 * (0,) + 4 * _EACH + 4 * _LATER + (6, 7),
        4: 2 * _EACH + 2 * _LATER,
    },
    # measured, device-to-device copy
    dram_gbs=4_260.0,
    # as the driver reports it
    l2_bytes=60 * 2**20,
    **_fitted("NVIDIA H200", None),
)

H100 = dataclasses.replace(
    H200,
    # the SXM board: 132 SMs, HBM3
    name="NVIDIA H100 80GB HBM3",
    # measured, device-to-device copy; 3,350 nominal
    dram_gbs=3_000.0,
    # not measured
    gpcs={},
    # H100 whitepaper
    l2_bytes=50 * 2**20,
    # measured: gradients of weights, batches and single GEMMs that store more than they load
    stores_drift=True,
    note="its clusters, thresholds, rates of fp8 and CUDA cores, and factors of unmeasured kernels are the H200's",
    **_fitted("NVIDIA H100 80GB HBM3", H200),
)

DEFAULT = H200
# what other GPUs do not share with the default one
_OTHERS: dict[str, Any] = {"gpcs": {}, "kernels": _unplaced(DEFAULT.kernels)}


def added(times: Path = TIMES_FILE, factors: Path = KERNELS_FILE) -> tuple[Device, ...]:
    """The records of GPUs whose properties are in the file of rates; what was not fitted on them is the default's."""
    found = []
    for name, data in json.loads(times.read_text("utf-8")).items():
        if known := data.get("properties"):
            own = known | {"clusters": tuple((size, count) for size, count in known["clusters"])}
            fields = own | _OTHERS | _fitted(name, DEFAULT, times, factors)
            found.append(dataclasses.replace(DEFAULT, name=name, **fields))
    return tuple(found)


RECORDS = (H200, H100, *added())


def find(name: str, *, sms: int, l2_bytes: int | None = None, dram_gbs: float | None = None) -> Device:
    """The record of a Hopper GPU; without one, the default record's rates with this GPU's properties, as its note says.

    A GPU instance (MIG) has the name of the whole GPU but fewer SMs, so it has no record.

    Args:
        name: as the driver reports it.
        sms: streaming multiprocessors.
        l2_bytes: size of the L2 cache; None if unknown.
        dram_gbs: GB/s of a device-to-device copy; None if unknown.

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
        **_OTHERS,
    )


# highest SM clock of the GPUs with records, MHz
RECORD_MHZ = 1_980.0


def from_properties(
    device: Device, *, clusters: tuple[tuple[int, int], ...], clock_mhz: float, dram_gbs: float
) -> Device:
    """A GPU without a record, with its queried properties instead of the assumed ones; its note names them.

    Rates that follow the SM clock are scaled: those of the tensor cores, the CUDA cores, L2 and loading threads.

    Args:
        device: from `find`, without a record.
        clusters: (CTAs per cluster, clusters resident at once).
        clock_mhz: highest SM clock; 0 if unknown.
        dram_gbs: GB/s of a device-to-device copy.
    """
    scale = clock_mhz / RECORD_MHZ if clock_mhz > 0 else 1.0

    def scaled(model: Any, times: tuple[str, ...], rates: tuple[str, ...] = ()) -> Any:
        changed = {x: getattr(model, x) / scale for x in times} | {
            x: getattr(model, x) * scale for x in rates
        }
        return dataclasses.replace(model, **changed)

    queried = f"its own clusters, {dram_gbs:,.0f} GB/s" + (f", {clock_mhz:,.0f} MHz" if clock_mhz > 0 else "")
    return dataclasses.replace(
        device,
        clusters=clusters,
        dram_gbs=dram_gbs,
        cores=scaled(device.cores, ("slot",)),
        few_rows=scaled(device.few_rows, ("word", "row", "shift", "product")),
        loads=scaled(device.loads, ("stage",), ("shift", "gather", "copy_wide", "copy", "copy_narrow")),
        cost=scaled(device.cost, ("mma", "smem"), ("port", "l2")),
        note=f"{device.note}, {queried}",
    )
