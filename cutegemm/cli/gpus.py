# SPDX-License-Identifier: Apache-2.0
"""The driver and the GPUs of this machine, queried without torch and without creating a CUDA context."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT, RECORDS, find


@dataclass(frozen=True)
class DriverGpu:
    """One GPU as the driver reports it: name, compute capability, SMs and bytes of L2."""

    name: str
    capability: tuple[int, int]
    sms: int
    l2_bytes: int


@dataclass(frozen=True)
class DriverInfo:
    """The driver and its GPUs."""

    version: tuple[int, int] | None  # the newest CUDA that it supports
    gpus: tuple[DriverGpu, ...]  # of this machine
    trouble: str = ""  # why the query failed
    missing: str = ""  # the package that is needed for the query


@functools.cache
def driver_info() -> DriverInfo:
    """Query the driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return DriverInfo(None, (), f"cuda-python cannot be imported: {error}", "cuda-python")
    try:
        return _queried(driver)
    # for a missing library each version of cuda-python raises another exception
    except Exception as error:
        return DriverInfo(None, (), " ".join(str(error).split()) or type(error).__name__)


def _queried(driver: object) -> DriverInfo:
    def call(name: str, *args: object) -> object:
        status, *values = getattr(driver, name)(*args)
        if int(status):
            raise RuntimeError(f"{name}: {status.name}")
        return values[0] if values else None

    number = int(str(call("cuDriverGetVersion")))
    version = (number // 1000, number % 1000 // 10)
    try:
        call("cuInit", 0)
    except RuntimeError as error:
        return DriverInfo(version, (), str(error))
    kinds = driver.CUdevice_attribute  # type: ignore[attr-defined]
    gpus = []
    for index in range(int(str(call("cuDeviceGetCount")))):
        handle = call("cuDeviceGet", index)
        name = call("cuDeviceGetName", 256, handle)
        major, minor, sms, l2 = (
            int(str(call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{attribute}"), handle)))
            for attribute in (
                "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT", "L2_CACHE_SIZE",
            )
        )  # fmt: skip
        text = name.split(b"\0")[0].decode() if isinstance(name, bytes) else str(name)
        gpus.append(DriverGpu(text, (major, minor), sms, l2))
    return DriverInfo(version, tuple(gpus))


def hopper(found: DriverInfo) -> DriverGpu | None:
    """The first GPU of compute capability 9.0."""
    return next((x for x in found.gpus if x.capability == DEFAULT.limits.capability), None)


def device_here() -> tuple[Device, str]:
    """The planner's record of the GPU that `build` plans for on this machine, and its origin."""
    gpu = hopper(driver_info())
    if gpu is None:
        return DEFAULT, "no Hopper GPU here: the default"
    device = find(gpu.name, sms=gpu.sms, l2_bytes=gpu.l2_bytes)
    if device in RECORDS:
        return device, "this machine's"
    # measures its clusters and bandwidth; imports torch
    from cutegemm.running.backends.launcher import current_device

    return current_device()[1], "this machine's"
