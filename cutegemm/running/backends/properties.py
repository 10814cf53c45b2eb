# SPDX-License-Identifier: Apache-2.0
"""Properties of a GPU without a record: resident clusters, clock and bandwidth. They are measured once and cached.

Clusters come from the driver's occupancy calculation (CUDA Driver API, cuOccupancyMaxActiveClusters) for a kernel that
fills an SM. Bandwidth comes from a copy of 1 GiB, which takes a few milliseconds.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from cutegemm.aot.driver import checked, launch_config
from cutegemm.arch import records
from cutegemm.arch.device import Device
from cutegemm.compiling import folders
from cutegemm.files import replace

FILE = "gpus.json"
CLUSTER_SIZES = (1, 2, 4, 8)
COPY_BYTES = 1 << 30
COPIES = 8
# an empty kernel, so that the number of resident clusters depends on the GPU alone
PTX = b""".version 8.0
.target sm_90a
.address_size 64
.visible .entry nothing() { ret; }
\0"""
NON_PORTABLE = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"


@dataclass(frozen=True)
class Found:
    """The queried properties.

    Attributes:
        clusters: (CTAs per cluster, clusters resident at once with one CTA per SM).
        clock_mhz: the highest clock of the SMs; 0 if unknown.
        dram_gbs: GB/s of a device-to-device copy, read plus write.
    """

    clusters: tuple[tuple[int, int], ...]
    clock_mhz: float
    dram_gbs: float


# this process's results, if they cannot be cached on disk
_ASKED: dict[str, Found] = {}


class Asked(Protocol):
    """A GPU that can be queried; tests substitute another."""

    def clusters(self, size: int) -> int:
        """Clusters of `size` CTAs that are resident at once, with one CTA per SM."""
        ...

    def clock_mhz(self) -> float:
        """The highest clock of the SMs."""
        ...

    def copy_seconds(self, size: int) -> float:
        """The time of a copy of `size` bytes."""
        ...


def device_for(name: str, sms: int, l2_bytes: int, asked: Callable[[], Asked]) -> Device:
    """The record of a GPU, or one made from its queried properties, as its note says.

    Args:
        name, sms, l2_bytes: as the driver reports them.
        asked: creates the GPU to query; called only if there is neither a record nor a cached result.
    """
    known = records.find(name, sms=sms, l2_bytes=l2_bytes)
    if known in records.RECORDS:
        return known
    try:
        key = f"{name}, {sms} SMs"
        found = _ASKED.get(key) or _kept(key) or _ask(key, asked())
        _ASKED[key] = found
    except Exception as error:
        # a GPU that cannot be queried still runs GEMMs
        warnings.warn(f"cannot query the properties of {name}: {error}", RuntimeWarning, stacklevel=3)
        return known
    return records.from_properties(
        known, clusters=found.clusters, clock_mhz=found.clock_mhz, dram_gbs=found.dram_gbs
    )


def path() -> Path:
    """The file of cached results, in $CUTEGEMM_CACHE_DIR or the user's cache directory."""
    return folders.cache_folder() / FILE


def _kept(key: str) -> Found | None:
    """A cached result; None if there is none that can be read."""
    try:
        data = json.loads(path().read_text("utf-8"))[key]
        clusters = tuple((int(x), int(y)) for x, y in data["clusters"])
        found = Found(clusters, float(data["clock_mhz"]), float(data["dram_gbs"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    counts = [x for pair in clusters for x in pair]
    legal = counts and min(counts) > 0 and 0 <= found.clock_mhz < math.inf and 0 < found.dram_gbs < math.inf
    return found if legal else None


def _ask(key: str, asked: Asked) -> Found:
    seconds = min(asked.copy_seconds(COPY_BYTES) for _ in range(COPIES))
    clusters = tuple((size, count) for size in CLUSTER_SIZES if (count := asked.clusters(size)) > 0)
    found = Found(clusters, asked.clock_mhz(), 2 * COPY_BYTES / seconds / 1e9)
    _keep(key, found)
    return found


def _keep(key: str, found: Found) -> None:
    target = path()
    try:
        data = json.loads(target.read_text("utf-8"))
    except (OSError, ValueError):
        data = {}
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = (data if isinstance(data, dict) else {}) | {key: asdict(found)}
        replace(target, json.dumps(kept).encode())
    except OSError as error:
        warnings.warn(f"cannot cache the properties of {key}: {error}", RuntimeWarning, stacklevel=3)


class Gpu:
    """A CUDA device that is queried through the driver."""

    def __init__(self, device: torch.device) -> None:
        if torch.cuda.is_current_stream_capturing():
            # a query synchronizes with the device, which would end the capture
            raise RuntimeError("a CUDA graph is being captured")
        self._device = device

    def clusters(self, size: int) -> int:
        """See `Asked`."""
        from cuda.bindings import driver

        with torch.cuda.device(self._device):
            torch.cuda.current_stream().synchronize()
            module = checked(driver.cuModuleLoadData(PTX))
            try:
                function = checked(driver.cuModuleGetFunction(module, b"nothing"))
                smem = records.DEFAULT.limits.smem_bytes
                attributes = driver.CUfunction_attribute
                dynamic = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                checked(driver.cuFuncSetAttribute(function, dynamic, smem))
                checked(driver.cuFuncSetAttribute(function, getattr(attributes, NON_PORTABLE), 1))
                launch = launch_config((size, 1, 1), (128, 1, 1), smem, (size, 1, 1))
                return int(checked(driver.cuOccupancyMaxActiveClusters(function, launch)))
            finally:
                driver.cuModuleUnload(module)

    def clock_mhz(self) -> float:
        """See `Asked`."""
        return float(getattr(torch.cuda.get_device_properties(self._device), "clock_rate", 0)) / 1e3

    def copy_seconds(self, size: int) -> float:
        """See `Asked`."""
        with torch.cuda.device(self._device):
            source, target = (torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(2))
            events: Any = torch.cuda.Event
            start, end = events(enable_timing=True), events(enable_timing=True)
            target.copy_(source)
            start.record()
            target.copy_(source)
            end.record()
            end.synchronize()
            # elapsed_time is in milliseconds
            return float(start.elapsed_time(end)) / 1e3
