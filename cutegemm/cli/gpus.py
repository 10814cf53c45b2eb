# SPDX-License-Identifier: Apache-2.0
"""The driver and the GPUs of this machine, asked without torch and without making a CUDA context."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT, RECORDS, find


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver gives it: name, compute capability, SMs and bytes of L2."""

    name: str
    capability: tuple[int, int]
    sms: int
    l2_bytes: int


@dataclass(frozen=True)
class Machine:
    """What the driver says."""

    version: tuple[int, int] | None  # the newest CUDA that it runs
    gpus: tuple[Gpu, ...]  # of this machine
    trouble: str = ""  # why it cannot be asked
    missing: str = ""  # the package that would ask it


@functools.cache
def machine() -> Machine:
    """Ask the driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return Machine(None, (), f"cuda-python cannot be imported: {error}", "cuda-python")
    try:
        return _asked(driver)
    # a library that is not there has an exception of its own in each version of cuda-python
    except Exception as error:
        return Machine(None, (), " ".join(str(error).split()) or type(error).__name__)


def _asked(driver: object) -> Machine:
    def ask(name: str, *args: object) -> object:
        status, *found = getattr(driver, name)(*args)
        if int(status):
            raise RuntimeError(f"{name}: {status.name}")
        return found[0] if found else None

    number = int(str(ask("cuDriverGetVersion")))
    version = (number // 1000, number % 1000 // 10)
    try:
        ask("cuInit", 0)
    except RuntimeError as error:
        return Machine(version, (), str(error))
    kinds = driver.CUdevice_attribute  # type: ignore[attr-defined]
    gpus = []
    for index in range(int(str(ask("cuDeviceGetCount")))):
        handle = ask("cuDeviceGet", index)
        name = ask("cuDeviceGetName", 256, handle)
        major, minor, sms, l2 = (
            int(str(ask("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{attribute}"), handle)))
            for attribute in (
                "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT", "L2_CACHE_SIZE",
            )
        )  # fmt: skip
        text = name.split(b"\0")[0].decode() if isinstance(name, bytes) else str(name)
        gpus.append(Gpu(text, (major, minor), sms, l2))
    return Machine(version, tuple(gpus))


def hopper(found: Machine) -> Gpu | None:
    """The first GPU of compute capability 9.0."""
    return next((x for x in found.gpus if x.capability == DEFAULT.limits.capability), None)


def device_here() -> tuple[Device, str]:
    """The planner's figures of the GPU that `build` would plan for here, and where they come from."""
    gpu = hopper(machine())
    if gpu is None:
        return DEFAULT, "no Hopper GPU here: the default"
    device = find(gpu.name, sms=gpu.sms, l2_bytes=gpu.l2_bytes)
    if device in RECORDS:
        return device, "this machine's"
    # its clusters and bandwidth are measured; imports torch
    from cutegemm.running.backends.launcher import current_device

    return current_device()[1], "this machine's"
