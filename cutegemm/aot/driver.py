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


class Loaded:
    """An artefact's kernels on the current device, and their launches.

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
        self._context = _done(driver.cuDevicePrimaryCtxRetain(_done(driver.cuDeviceGet(index))))
        _done(driver.cuCtxSetCurrent(self._context))

        # the object code keeps the kernel's code on the device
        self._code = [ObjectCode.from_cubin(x.cubin) for x in kernels]
        try:
            self._kernels = [code.get_kernel(x.name).handle for code, x in zip(self._code, kernels)]
        except Exception as error:
            raise HardwareError(f"the driver does not load the artefact's kernels: {error}") from error
        for kernel in self._kernels:
            _load_now(driver, kernel)

    def launcher(self, launch: KernelLaunch) -> Launcher:
        """What makes one launch of a recipe."""
        return Launcher(self._kernels[launch.kernel], launch, self._context)


class Launcher:
    """One launch of a recipe, ready but for a call's addresses and numbers.

    The driver copies parameters when it launches, so one buffer serves all calls; a lock keeps threads apart.

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
        self._config, self._kept = _config(driver, launch)
        _done(driver.cuCtxSetCurrent(context))
        if launch.smem:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            device = _done(driver.cuCtxGetDevice())
            _done(driver.cuKernelSetAttribute(attribute, launch.smem, kernel, device))
        *offsets, size = launch.offsets
        memory = ctypes.create_string_buffer(size + PARAM_ALIGN)
        start = -(-ctypes.addressof(memory) // PARAM_ALIGN) * PARAM_ALIGN
        for x, offset in zip(launch.params, offsets):
            ctypes.memmove(start + offset, x, len(x))
        self._memory = memory
        self._pointers = (ctypes.c_void_p * len(offsets))(*(start + x for x in offsets))
        self._places = [(x, start + offsets[x.param] + x.offset, x.size) for x in launch.patches]

    def __call__(self, addresses: Mapping[str, int], numbers: Mapping[str, float], stream: int) -> None:
        """Launch.

        Args:
            addresses, numbers: of the call, by name.
            stream: CUDA stream handle.

        Raises:
            HardwareError: the driver refuses the launch.
        """
        with self._lock:
            for patch, place, size in self._places:
                ctypes.memmove(place, patch.value(addresses, numbers), size)
            self._config.hStream = stream
            status = self._launched()
            if int(status) == self._no_context:
                _done(self._driver.cuCtxSetCurrent(self._context))
                status = self._launched()
        if int(status):
            raise HardwareError(f"the driver refused a launch of the artefact: {status}")

    def _launched(self) -> Any:
        """The driver's answer to the launch."""
        pointers = ctypes.addressof(self._pointers)
        return self._driver.cuLaunchKernelEx(self._config, self._function, pointers, 0)[0]


def _load_now(driver: Any, kernel: Any) -> None:
    """Put a kernel's code on the device of the current context.

    By default the driver does it at the first launch, which synchronizes and is illegal while a graph is captured
    (CUDA C++ Programming Guide, Lazy Loading).

    Raises:
        HardwareError: the driver refuses the kernel.
    """
    function = _done(driver.cuKernelGetFunction(kernel))
    # drivers before CUDA 12.4 lack it; they load in cuKernelGetFunction or not at all
    with contextlib.suppress(RuntimeError):
        _done(driver.cuFuncLoad(function))


def _config(driver: Any, launch: KernelLaunch) -> tuple[Any, list[Any]]:
    """The driver's launch configuration, and what it refers to."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.smem
    ids, attributes = driver.CUlaunchAttributeID, []
    if launch.cluster != (1, 1, 1):
        cluster = driver.CUlaunchAttribute()
        cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = launch.cluster
        attributes.append(cluster)
    if launch.pdl:
        early = driver.CUlaunchAttribute()
        early.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config, attributes


def _done(result: tuple[Any, ...]) -> Any:
    """What a call of the driver gave.

    Raises:
        HardwareError: it failed.
    """
    status, *rest = result
    if int(status):
        raise HardwareError(f"the CUDA driver answered {status}")
    return rest[0] if rest else None
