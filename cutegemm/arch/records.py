# SPDX-License-Identifier: Apache-2.0
"""The GPUs that are known, and what is assumed of one that is not."""

from __future__ import annotations

import dataclasses

from cutegemm.arch import sm90
from cutegemm.arch.device import Device, TimeModel

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
    # fitted to benchmarks/results/sweeps and to kernels measured beside those that were chosen (`benchmarks/NOTES.md`)
    time=TimeModel(
        # a 128 x 256 tile takes 775 ns
        mma=775 / (128 * 256),
        narrow=1.03,
        traffic=0.02,
        l2=71.5,
        l2_lone=113.0,
        tile=300.0,
        piece=120.0,
        store=40.0,
        launch=2_500.0,
        turn=100.0,
        turn_lone=1.15,
        turn_deep=0.01,
        multistage_lone=0.82,
        inputs=900.0,
        input_piece=130.0,
        narrow_piece=80.0,
        shared=2.0,
        relayout=4_800.0,
        gather=0.58,
        # not measured: half of what their instructions allow (`benchmarks/NOTES.md`)
        shift=20.0,
        copy=5.0,
    ),
)

H100 = dataclasses.replace(
    H200,
    # the SXM board: 132 SMs, HBM3
    name="NVIDIA H100 80GB HBM3",
    # measured, device-to-device copy, of 3,350 nominal
    dram_gbs=3_000.0,
    # H100 whitepaper
    l2_bytes=50 * 2**20,
    time=dataclasses.replace(
        H200.time,
        # fitted to ten shapes on this GPU: what loses takes more than 55 bytes a ns from L2, what wins takes less
        l2=55.0,
        # in the H200's proportion
        l2_lone=87.0,
    ),
    note="of its times only the rate of L2 is measured on this GPU; the others are the H200's, as are its clusters",
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
