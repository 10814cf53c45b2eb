# SPDX-License-Identifier: Apache-2.0
"""The run path: a validated kind of call becomes a callable that only launches.

`prepare` does everything that depends on shapes, strides, types and devices; what it returns repeats per
call only what depends on addresses: the overlap check, the stream, and the launches.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import tvm_ffi

from cutegemm import arguments, cache, loader, reference, tensors
from cutegemm import hardware as hw
from cutegemm.config import Config
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import CompileError, HardwareError, InputError, field_error
from cutegemm.plan import KernelPlan, plan
from cutegemm.spec import AUTO, GemmSpec

log = logging.getLogger("cutegemm")

BACKENDS = ("gpu", "reference", "emulator")
_TORCH_DTYPE = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16, DType.FP32: torch.float32}
_ready: dict[
    tuple[Config, int], Callable
] = {}  # (config, device index) -> a function whose code is on the device
_lock = threading.Lock()

# torch's own cheap forms of current_device() and current_stream(); absent from CPU builds
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

# u, the unit roundoff of each type: half the distance from 1 to the next number
_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def prepare(spec: GemmSpec, inputs: tuple, beta: float | None, backend: str | None) -> Callable:
    """Validate one kind of call and return `f((a, b, c, out), addresses, alpha, beta, workspace) -> D`.

    Raises:
        InputError, PlanError, HardwareError, CompileError: see `Gemm.run`.
    """
    a, b, c, out = inputs
    if beta is not None and beta != 0 and c is None and spec.epilogue == AUTO:
        raise field_error(InputError, "beta", beta, "needs c", 0.0)
    if backend is not None and backend not in BACKENDS:
        raise field_error(InputError, "backend", backend, f"must be one of {', '.join(BACKENDS)}")
    call = tensors.validate(a, b, c, out, None if spec.d_dtype == AUTO else spec.d_dtype)
    on_gpu = a.is_cuda
    if backend == "gpu" and not on_gpu:
        raise field_error(InputError, "backend", backend, f"the tensors are on {a.device}", "reference")
    problem = call.problem
    reads_c = c is not None and not (spec.epilogue == AUTO and beta is not None and beta == 0)
    if not reads_c and spec.epilogue == AUTO:
        problem = dataclasses.replace(problem, c=None)
    graph = linear_combination(problem.c is not None) if spec.epilogue == AUTO else spec.epilogue
    dtype = _TORCH_DTYPE[problem.d.dtype]
    if backend == "emulator":
        if on_gpu:
            raise field_error(InputError, "backend", backend, f"the tensors are on {a.device}", "gpu")
        from cutegemm.emulated import Emulated

        return Emulated(plan(spec, problem), call.out_shape, dtype)
    if not on_gpu or backend == "reference":
        plan(spec, problem)  # the same refusals as on the GPU
        return _Reference(graph, call.out_shape, dtype)
    device = _device(a.device)
    prepared = _Launcher(plan(spec, problem, device), call.out_shape, dtype, a.device, inputs)
    return _Checked(prepared, graph) if os.environ.get("CUTEGEMM_CHECK") == "1" else prepared


def _scalars(alpha: float, beta: float | None, c: Any) -> tuple[float, float]:
    return float(alpha), float(beta) if beta is not None else (0.0 if c is None else 1.0)


class _Reference:
    """A call served by torch: fp32 accumulation, the same epilogue graph."""

    def __init__(self, graph: Graph, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.graph, self.shape, self.dtype = graph, shape, dtype

    def __call__(self, inputs, places, alpha, beta, workspace):
        a, b, c, out = inputs
        if out is not None:
            tensors.check_overlap(a, b, c, out)
        alpha, beta = _scalars(alpha, beta, c)
        d = reference.evaluate(self.graph, a, b, {"c": c}, {"alpha": alpha, "beta": beta}, torch.float32)
        d = d.expand(self.shape).to(self.dtype)
        return d if out is None else out.copy_(d)


class _Launcher:
    """A call served by kernels: an ordered list of launches with everything but addresses worked out."""

    def __init__(
        self,
        plan: KernelPlan,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        inputs: tuple,
    ):
        self.plan, self.shape, self.dtype, self.device = plan, shape, dtype, device
        self.index = device.index
        self.need = plan.workspace_bytes
        self.sizes = tuple(0 if t is None else tensors.extent_bytes(t) for t in inputs)
        self.same_layout = (
            inputs[2] is not None and inputs[3] is not None and _same_layout(inputs[2], inputs[3])
        )
        self.launch = self._launch_nothing
        if plan.steps:
            self.relayouts = [
                (function_for(step.config, self.index), "ab".index(step.operand), step.offset, _packed(tail))
                for step, tail in ((step, arguments.relayout_tail(step)) for step in plan.steps[:-1])
            ]
            self.launch = self._launch_all if self.relayouts else self._launch_gemm
            self.gemm = function_for(plan.config, self.index)
            self.extents, self.strides, self.walk = _packed(arguments.gemm_tail(plan))

    def __call__(self, inputs, places, alpha, beta, workspace):
        # On the path of every call: a name looked up here is tens of nanoseconds on each.
        out = inputs[3]
        if out is None:
            out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            places = (*places[:3], out.data_ptr())
        else:
            self._check_overlap(places)
        if beta is None:
            beta = 0.0 if inputs[2] is None else 1.0
        if _current_device() == self.index:
            self.launch(places, (float(alpha), float(beta)), _current_stream(self.index), workspace)
        else:
            with torch.cuda.device(self.index):
                self.launch(places, (float(alpha), float(beta)), _current_stream(self.index), workspace)
        return out

    def _launch_nothing(self, places: Any, scalars: Any, stream: int, workspace: Any) -> None:
        """D is empty."""

    def _launch_gemm(self, places: Any, scalars: tuple[float, float], stream: int, workspace: Any) -> None:
        """A run of one launch."""
        self.gemm(places, self.extents, self.strides, scalars, self.walk, stream)

    def _launch_all(self, places: Any, scalars: tuple[float, float], stream: int, workspace: Any) -> None:
        """Re-layouts into workspace, then the GEMM."""
        if workspace is None:
            workspace = torch.empty(self.need, dtype=torch.uint8, device=self.device)
        base = self._workspace_address(workspace)
        moved = list(places)
        for function, operand, offset, (extents, strides) in self.relayouts:
            function((places[operand], base + offset), extents, strides, stream)
            moved[operand] = base + offset
        self._launch_gemm(tuple(moved), scalars, stream, workspace)

    def _workspace_address(self, workspace: Any) -> int:
        size = workspace.numel() * workspace.element_size()
        if workspace.device != self.device or size < self.need or not workspace.is_contiguous():
            rule = f"must be {self.need} contiguous bytes on {self.device}"
            raise field_error(InputError, "workspace", f"{size} bytes on {workspace.device}", rule)
        if workspace.data_ptr() % 16:
            raise field_error(InputError, "workspace", hex(workspace.data_ptr()), "must be 16-byte aligned")
        return workspace.data_ptr()

    def _check_overlap(self, places: tuple[int, int, int, int]) -> None:
        """`tensors.check_overlap` on addresses alone: `out` may share memory with nothing but c itself."""
        pa, pb, pc, pd = places
        size_a, size_b, size_c, size_d = self.sizes
        end = pd + size_d
        if (pa < end and pd < pa + size_a) or (pb < end and pd < pb + size_b):
            raise InputError(f"out: overlaps {'a' if pa < end and pd < pa + size_a else 'b'} in memory")
        if size_c and pc < end and pd < pc + size_c and not (pc == pd and self.same_layout):
            raise InputError(f"out: overlaps c in memory{tensors.ONLY_C_ITSELF}")


class _Checked:
    """CUTEGEMM_CHECK=1: every result compared with the fp64 reference, and the plan that ran logged.

    Synchronises, copies c, and computes the product a second time: for finding bugs, not for use.
    """

    def __init__(self, launcher: _Launcher, graph: Graph) -> None:
        self.launcher, self.graph = launcher, graph

    def __call__(self, inputs, places, alpha, beta, workspace):
        a, b, c, _ = inputs
        kept = None if c is None else c.clone()
        result = self.launcher(inputs, places, alpha, beta, workspace)
        alpha, beta = _scalars(alpha, beta, c)
        scalars = {"alpha": alpha, "beta": beta}
        expected = reference.evaluate(self.graph, a, b, {"c": kept}, scalars, torch.float64)
        magnitude = reference.evaluate(
            self.graph, a.abs(), b.abs(), {"c": None if kept is None else kept.abs()},
            {"alpha": abs(alpha), "beta": abs(beta)}, torch.float64,
        )  # fmt: skip
        bound = (_ROUNDOFF[result.dtype] + 2.0**-20 * max(a.shape[-1], 1) ** 0.5) * 2 * magnitude
        wrong = ~((result.double() - expected).abs() <= bound) & expected.isfinite()
        log.info("checked %s\n%s", tuple(result.shape), self.launcher.plan)
        if wrong.any():
            where = tuple(wrong.nonzero()[0].tolist())
            raise AssertionError(
                f"D{where} = {result[where].item()}, expected {expected[where].item()}; {int(wrong.sum())} of "
                f"{wrong.numel()} elements are off\n{self.launcher.plan}"
            )
        return result


def _packed(tail: tuple) -> tuple:
    """Argument tuples as TVM-FFI arrays, converted once instead of at every call."""
    return tuple(tvm_ffi.convert(values) for values in tail)


def _same_layout(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype


def _device(device: torch.device) -> hw.Device:
    """The planner's figures for a CUDA device.

    Raises:
        HardwareError: it is not a Hopper GPU.
    """
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        name = torch.cuda.get_device_name(device)
        raise HardwareError(
            f"{device} is {name}, compute capability {capability[0]}.{capability[1]}: kernels need 9.0 (Hopper)"
        )
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return hw.H200 if sms == hw.H200.sms else dataclasses.replace(hw.H200, sms=sms, clusters=())


def current_device() -> tuple[int | None, hw.Device]:
    """The index and figures of the current CUDA device if it is a Hopper GPU, else None and the H200's figures."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return None, hw.H200
    index = torch.cuda.current_device()
    return index, _device(torch.device("cuda", index))


def function_for(config: Config, index: int) -> Callable:
    """The launching function of a config, its code on device `index`; compiled or read from the cache if need be.

    Raises:
        CompileError: it is not ready and a CUDA graph is being captured.
    """
    function = _ready.get((config, index))
    if function is None:
        if torch.cuda.is_current_stream_capturing():
            raise CompileError(
                "a kernel this call needs is not ready and a CUDA graph is being captured: call gemm.warm([problem]) "
                "or run the same call once before the capture"
            )
        function = loader.load(cache.artifact(config).obj)
        with torch.cuda.device(index):
            _touch(function, config)
        with _lock:
            _ready[config, index] = function
    return function


def _touch(function: Callable, config: Config) -> None:
    """Launch over 8 x 8 matrices of scratch memory, so that the module loads now and not inside a graph capture.

    Extents and strides of 8 elements satisfy whatever alignment a config was compiled for.
    """
    scratch = torch.zeros(4, 1024, dtype=torch.uint8, device="cuda")
    addresses = tuple(row.data_ptr() for row in scratch)
    stream = torch.cuda.current_stream().cuda_stream
    if config.family == "relayout":
        function(addresses[:2], (8, 8, 1), (8, 8, 64) * 2, stream)
    else:
        function(addresses, (8, 8, 8, 1, 1, 1), (8, 8, 64) * 4, (0.0, 0.0), (1, 1), stream)
