# SPDX-License-Identifier: Apache-2.0
"""Launches recipes through the CUDA driver API: cubins loaded by cuda-core, parameters as bytes."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cutegemm.aot.recipe import PARAM_ALIGN, KernelBinary, KernelLaunch
from cutegemm.errors import HardwareError

Extents = tuple[int, int, int]


class LoadedKernels:
    """An artefact's kernels on one device.

    Args:
        kernels: of the artefact.
        index: of the device, as CUDA counts.

    Raises:
        HardwareError: the driver refuses a kernel.
    """

    def __init__(self, kernels: Sequence[KernelBinary], index: int) -> None:
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        # the context that torch and the CUDA runtime use
        self._context = checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(index))))
        checked(driver.cuCtxSetCurrent(self._context))

        # the object keeps the kernel's code on the device
        self._code = [ObjectCode.from_cubin(x.cubin) for x in kernels]
        try:
            self._kernels = [code.get_kernel(x.name).handle for code, x in zip(self._code, kernels)]
        except Exception as error:
            raise HardwareError(f"the driver does not load the artefact's kernels: {error}") from error
        for kernel in self._kernels:
            _load_now(driver, kernel)

    def launcher(self, launch: KernelLaunch) -> RecipeLauncher:
        """The launcher of one launch of a recipe."""
        return RecipeLauncher(self._kernels[launch.kernel], launch, self._context)


class RecipeLauncher:
    """Launches one kernel of a recipe, given a call's addresses and numbers.

    The driver copies parameters at the launch, so all calls share one buffer, under a lock.

    Args:
        kernel: the driver's handle.
        launch: of the recipe.
        context: the device's primary context. A thread that has not called the CUDA runtime has no current context.
    """

    def __init__(self, kernel: Any, launch: KernelLaunch, context: Any) -> None:
        from cuda.bindings import driver

        self._launch, self._driver, self._lock = launch, driver, threading.Lock()
        self._context, self._no_context = context, int(driver.CUresult.CUDA_ERROR_INVALID_CONTEXT)
        self._function = driver.CUfunction(int(kernel))
        cluster = None if launch.cluster == (1, 1, 1) else launch.cluster
        self._config = launch_config(launch.grid, launch.block, launch.smem, cluster, launch.pdl)
        checked(driver.cuCtxSetCurrent(context))
        if launch.smem:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device = checked(driver.cuCtxGetDevice())
            checked(driver.cuKernelSetAttribute(attribute, launch.smem, kernel, device))
        *offsets, size = launch.offsets
        memory = ctypes.create_string_buffer(size + PARAM_ALIGN)
        start = -(-ctypes.addressof(memory) // PARAM_ALIGN) * PARAM_ALIGN
        for x, offset in zip(launch.params, offsets):
            ctypes.memmove(start + offset, x, len(x))
        self._memory = memory
        self._pointers = (ctypes.c_void_p * len(offsets))(*(start + x for x in offsets))
        self._places = [(x, start + offsets[x.param] + x.offset, x.size) for x in launch.patches]

    def __call__(self, addresses: Mapping[str, int], numbers: Mapping[str, float], stream: int) -> None:
        """Launch on a CUDA stream with a call's addresses and numbers, by name.

        Raises:
            HardwareError: the driver refuses the launch.
        """
        with self._lock:
            for patch, place, size in self._places:
                ctypes.memmove(place, patch.value(addresses, numbers), size)
            self._config.hStream = stream
            status = self._launch_status()
            if int(status) == self._no_context:
                checked(self._driver.cuCtxSetCurrent(self._context))
                status = self._launch_status()
        if int(status):
            raise HardwareError(f"the driver refused a launch of the artefact: {status}")

    def _launch_status(self) -> Any:
        pointers = ctypes.addressof(self._pointers)
        return self._driver.cuLaunchKernelEx(self._config, self._function, pointers, 0)[0]


def _load_now(driver: Any, kernel: Any) -> None:
    """Load a kernel's code onto the device of the current context.

    By default the driver loads it at the first launch, which synchronizes and is illegal during graph capture
    (CUDA C++ Programming Guide, Lazy Loading).
    """
    function = checked(driver.cuKernelGetFunction(kernel))
    # drivers before CUDA 12.4 lack cuFuncLoad; they load in cuKernelGetFunction or not at all
    with contextlib.suppress(RuntimeError):
        checked(driver.cuFuncLoad(function))


def launch_config(
    grid: Extents, block: Extents, smem: int, cluster: Extents | None = None, pdl: bool = False
) -> Any:
    """The driver's configuration of a launch; `pdl` is programmatic dependent launch."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = smem
    ids, attributes = driver.CUlaunchAttributeID, []
    if cluster is not None:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = attribute.value.clusterDim
        extents.x, extents.y, extents.z = cluster
        attributes.append(attribute)
    if pdl:
        attribute = driver.CUlaunchAttribute()
        attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def checked(result: tuple[Any, ...]) -> Any:
    """The result of a driver call.

    Raises:
        HardwareError: it failed.
    """
    status, *values = result
    if int(status):
        raise HardwareError(f"the CUDA driver answered {status}")
    return values[0] if values else None
