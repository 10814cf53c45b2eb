# SPDX-License-Identifier: Apache-2.0
"""Launches plans: checks torch tensors, encodes tensor maps, launches on torch's current stream."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import torch
from cuda.bindings import driver

from cutegemm.errors import GemmError, HardwareError, InputError, check
from handwritten.ladder.plans import Argument, Launch, Plan, TensorMap, Workspace
from handwritten.ladder.problem import Matrix, Problem

if TYPE_CHECKING:
    from handwritten.ladder.stage import Stage

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
HOPPER = (9, 0)  # compute capability of the only architecture the CUBINs run on
_NEEDS_GPU = (
    "device={device}: stage {stage} runs on a Hopper GPU only; "
    "without one use .resources(), .ptx, .sass or .plan()"
)
_MAP_TYPES = {
    "fp32": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    "bf16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "fp16": driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
}


def run(
    stage: Stage,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    *,
    alpha: float,
    beta: float | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Run one stage; the contract is `Stage.run`'s."""
    check_inputs(stage, a, b, c, beta)
    if out is None:
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    problem = describe(a, b, c, out, alpha=alpha, beta=beta)
    for tensor in (a, b, c, out):
        check(
            tensor is None or tensor.is_cuda,
            HardwareError,
            _NEEDS_GPU.format(stage=stage.key, device=a.device),
        )
    check(
        torch.cuda.get_device_capability(a.device) == HOPPER,
        HardwareError,
        f"{a.device}: needs Hopper (sm_90)",
    )
    with torch.cuda.device(a.device):
        execute(stage, stage.plan(problem, _sms(a.device)), problem)
    return out


def check_inputs(
    stage: Stage, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, beta: float | None
) -> None:
    """Raise unless ranks, inner extents and dtypes agree.

    Raises:
        InputError: they do not.
    """
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        if tensor is not None:
            check(tensor.ndim == 2, InputError, f"{name}.ndim={tensor.ndim}: must be 2")
            check(tensor.dtype == a.dtype, InputError, f"{name}.dtype={tensor.dtype}: must be a's, {a.dtype}")
            check(
                tensor.device == a.device,
                InputError,
                f"{name}.device={tensor.device}: must be a's, {a.device}",
            )
    legal = [str(torch_type) for torch_type, name in DTYPES.items() if name in stage.dtypes]
    check(str(a.dtype) in legal, InputError, f"a.dtype={a.dtype}: stage {stage.key} takes {', '.join(legal)}")
    check(
        a.shape[1] == b.shape[0],
        InputError,
        f"b.shape={tuple(b.shape)}: must have a's {a.shape[1]} columns as rows",
    )
    check(c is not None or not beta, InputError, f"beta={beta}: must be 0 or None when c is not given")


def describe(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    out: torch.Tensor,
    *,
    alpha: float,
    beta: float | None,
) -> Problem:
    """The problem of some tensors.

    Raises:
        InputError: c or out has the wrong shape or dtype, or a matrix has no contiguous dimension.
    """
    beta = float(c is not None) if beta is None else beta
    shape = (a.shape[0], b.shape[1])
    for name, tensor in (("c", c), ("out", out)):
        if tensor is not None:
            check(
                tuple(tensor.shape) == shape,
                InputError,
                f"{name}.shape={tuple(tensor.shape)}: must be {shape}",
            )
            check(tensor.dtype == a.dtype, InputError, f"{name}.dtype={tensor.dtype}: must be a's, {a.dtype}")
            check(
                tensor.device == a.device,
                InputError,
                f"{name}.device={tensor.device}: must be a's, {a.device}",
            )
    matrices = {name: _matrix(name, tensor) for name, tensor in (("a", a), ("b", b), ("out", out))}
    c_matrix = _matrix("c", c) if c is not None and beta != 0 else None
    return Problem(DTYPES[a.dtype], matrices["a"], matrices["b"], matrices["out"], c_matrix, alpha, beta)


def _matrix(name: str, tensor: torch.Tensor) -> Matrix:
    rows, cols = tensor.shape
    row_stride, col_stride = tensor.stride()
    if col_stride == 1 or cols == 1 and row_stride != 1:
        return Matrix(tensor.data_ptr(), rows, cols, row_stride)
    if row_stride == 1:
        return Matrix(tensor.data_ptr(), rows, cols, col_stride, col_major=True)
    raise InputError(f"{name}.stride()={tensor.stride()}: one stride must be 1; pass {name}.contiguous()")


@functools.cache
def _sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def execute(stage: Stage, plan: Plan, problem: Problem) -> None:
    """Launch a plan on torch's current stream of the current device, without synchronising."""
    workspace = None
    if plan.workspace_bytes:
        workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device="cuda")
        if plan.zeroed_bytes:
            workspace[: plan.zeroed_bytes].zero_()
    base = 0 if workspace is None else workspace.data_ptr()
    stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
    majors = "".join("c" if matrix.col_major else "r" for matrix in (problem.a, problem.b))
    for launch in plan.launches:
        function = _function(stage, problem.dtype, majors, launch.kernel, torch.cuda.current_device())
        values, addresses = _pack(launch, base)
        array = ctypes.addressof(addresses)  # the void** of cuLaunchKernel, which copies before it returns
        shape = (*launch.grid, launch.threads, 1, 1, launch.smem)
        _check(driver.cuLaunchKernel(function, *shape, stream, array, 0))


def _pack(launch: Launch, workspace: int) -> tuple[list[Any], ctypes.Array[ctypes.c_void_p]]:
    """Return the arguments' values, which must stay alive, and the array of their addresses."""
    values = [_value(argument, workspace) for argument in launch.arguments]
    addresses = (
        value.getPtr() if isinstance(value, driver.CUtensorMap) else ctypes.addressof(value)
        for value in values
    )
    return values, (ctypes.c_void_p * len(values))(*addresses)


def _value(argument: Argument, workspace: int) -> Any:
    if isinstance(argument, TensorMap):
        return encode(argument)
    if isinstance(argument, Workspace):
        return ctypes.c_void_p(workspace + argument.offset)
    return argument


@functools.lru_cache(maxsize=1024)
def encode(described: TensorMap) -> driver.CUtensorMap:
    """Have the driver encode a tensor map: 128-byte swizzle, zero fill outside the matrix."""
    one = driver.cuuint32_t(1)
    return _check(
        driver.cuTensorMapEncodeTiled(
            _MAP_TYPES[described.dtype],
            2,
            described.pointer,
            [driver.cuuint64_t(extent) for extent in described.extents],
            [driver.cuuint64_t(described.pitch_bytes)],
            [driver.cuuint32_t(extent) for extent in described.box],
            [one, one],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


@functools.cache
def _function(stage: Stage, dtype: str, majors: str, kernel: str, device: int) -> driver.CUfunction:
    """Load a compiled kernel and set its shared-memory limit to the stage's.

    The library is never unloaded, since its function is cached for the life of the process.
    """
    cubin = stage.compiled(dtype, majors).cubin
    library = _check(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
    function = _check(driver.cuKernelGetFunction(_check(driver.cuLibraryGetKernel(library, kernel.encode()))))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(driver.cuFuncSetAttribute(function, attribute, stage.constants.get("SMEM", 0)))
    return function


def _check(result: tuple[Any, ...]) -> Any:
    """Return the first value of a driver call's result.

    Raises:
        GemmError: the call failed.
    """
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise GemmError(f"CUDA driver: {status.name}")
    return values[0] if values else None
