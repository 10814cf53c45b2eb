# SPDX-License-Identifier: Apache-2.0
"""The run path: a validated kind of call becomes a callable that only launches.

`prepare` does everything that depends on shapes, strides, types and devices; what it returns repeats per
call only what depends on addresses: the overlap check, the stream, and the launches.

Tensors and addresses travel as tuples in one order: a, b, the epilogue's tensors, its outputs (stored ones,
then reductions; None where one is to be allocated), its scalars that are tensors.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import tvm_ffi

from cutegemm import arguments, cache, fused, loader, reference, tensors
from cutegemm import hardware as hw
from cutegemm.compile import sample_arguments
from cutegemm.config import Config
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import CompileError, HardwareError, InputError, field_error
from cutegemm.plan import KernelPlan, plan
from cutegemm.plan_types import GEMM
from cutegemm.results import TORCH_DTYPE, Shapes, reference_outputs
from cutegemm.spec import AUTO, GemmSpec

log = logging.getLogger("cutegemm")

BACKENDS = ("gpu", "reference", "emulator")
_ready: dict[
    tuple[Config, int], Callable
] = {}  # (config, device index) -> a function whose code is on the device
_lock = threading.Lock()

# torch's own cheap forms of current_device() and current_stream(); absent from CPU builds
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


@dataclasses.dataclass(frozen=True)
class Request:
    """One kind of call: what was passed, by name.

    `inputs` are the epilogue's tensors and tensor scalars, `outs` the outputs given.
    """

    a: Any
    b: Any
    inputs: Mapping[str, Any]
    outs: Mapping[str, Any]


def prepare(spec: GemmSpec, graph: Graph, request: Request, backend: str | None) -> Callable:
    """Validate one kind of call and return `f(tensors, addresses, numbers, workspace) -> result`.

    Raises:
        InputError, PlanError, HardwareError, CompileError: see `Gemm.run`.
    """
    if backend is not None and backend not in BACKENDS:
        raise field_error(InputError, "backend", backend, f"must be one of {', '.join(BACKENDS)}")
    d_dtype = None if spec.d_dtype == AUTO else spec.d_dtype
    a = request.a
    d_major = None if spec.d_major == AUTO else spec.d_major
    call = tensors.validate(a, request.b, graph, request.inputs, request.outs, d_dtype, d_major)
    if backend == "gpu" and not a.is_cuda:
        raise field_error(InputError, "backend", backend, f"the tensors are on {a.device}", "reference")
    if backend == "emulator":
        if a.is_cuda:
            raise field_error(InputError, "backend", backend, f"the tensors are on {a.device}", "gpu")
        from cutegemm.emulated import Emulated

        chosen = plan(spec, call.problem)
        return Emulated(chosen, Shapes(graph, call, chosen, a.device))
    if not a.is_cuda or backend == "reference":
        plan(spec, call.problem)  # the same refusals as on the GPU
        return _Reference(call, Shapes(graph, call, None, a.device))
    chosen = plan(spec, call.problem, _device(a.device))
    prepared = _Launcher(chosen, Shapes(graph, call, chosen, a.device), request)
    plain = graph in (linear_combination(True), linear_combination(False))
    return _Checked(prepared, graph) if plain and os.environ.get("CUTEGEMM_CHECK") == "1" else prepared


class _Places:
    """Where things are in a call's tuples."""

    def __init__(self, graph: Graph, scalars: tuple[str, ...]) -> None:
        inputs, rest = fused.order(graph, scalars)
        self.names = (*inputs, *rest)
        self.scalars = scalars
        self.first_out, self.end_out = len(inputs), len(self.names) - len(scalars)
        self.outs = self.names[self.first_out : self.end_out]


class _Reference:
    """A call served by torch: fp32 accumulation, the same epilogue graph."""

    def __init__(self, call: tensors.Call, shapes: Shapes) -> None:
        self.shapes, self.at = shapes, _Places(shapes.graph, call.problem.device_scalars)
        self.numbers = tuple(x for x in shapes.graph.numbers if x not in self.at.scalars)

    def __call__(self, given, places, numbers, workspace):
        shapes, graph = self.shapes, self.shapes.graph
        named = dict(zip(self.at.names, given, strict=True))
        outs = {x.name: named.pop(x.name) for x in graph.outputs}
        kept = {name: x for name, x in outs.items() if x is not None}
        tensors.check_overlaps(named, kept, graph.tensors)
        inputs = {k: v for k, v in named.items() if k not in ("a", "b")} | dict(zip(self.numbers, numbers))
        values = reference.evaluate(graph, named["a"], named["b"], inputs, torch.float32)
        found = {}
        for wanted in shapes.wanted:
            value = reference.round_to(values[wanted.name], TORCH_DTYPE[wanted.dtype]).expand(wanted.shape)
            target = kept.get(wanted.name)
            if target is None:
                target = shapes.allocate(wanted)
            found[wanted.name] = target.copy_(value)
        if shapes.alone:
            return found["d"]
        return shapes.named(reference_outputs(graph, found))


class _Launcher:
    """A call served by kernels: an ordered list of launches with everything but addresses worked out."""

    def __init__(self, plan: KernelPlan, shapes: Shapes, request: Request) -> None:
        self.plan, self.shapes, self.device = plan, shapes, request.a.device
        self.index = self.device.index
        self.need = plan.workspace_bytes
        graph = shapes.graph
        self.at = _Places(graph, plan.problem.device_scalars)
        self.single = shapes.alone
        self.dtype = TORCH_DTYPE[shapes.wanted[0].dtype]
        given = {"a": request.a, "b": request.b, **request.inputs, **request.outs}
        self.sizes = {name: tensors.extent_bytes(x) for name, x in given.items()}
        self.pairs = self._pairs(graph, given)
        self.numbers = tuple(plan.config.host_numbers) if plan.steps else ()
        self.launch = self._launch_nothing
        if plan.steps:
            self.launch = self._launch_all if self.need else self._launch_gemm
            self.functions = [function_for(step.config, self.index) for step in plan.steps]
            self.gemm = self.functions[[x.name for x in plan.steps].index(GEMM)]
            self.extents, self.strides, self.walk = _packed(arguments.gemm_tail(plan))

    def _pairs(self, graph: Graph, given: dict) -> list[tuple]:
        """By place: (output, its bytes, other tensor, its bytes, whether they may be one); checked at every call."""
        pairs, kinds = [], graph.tensors
        names = self.at.names
        for i in range(self.at.first_out, self.at.end_out):
            out = given.get(names[i])
            if out is None or not self.sizes[names[i]]:
                continue
            for other in names[:i] + names[self.at.end_out :]:
                j = names.index(other)
                tensor = given.get(other)
                if tensor is not None and self.sizes[other]:
                    same = kinds.get(other) == "matrix" and tensors.same_layout(tensor, out)
                    pairs.append((i, self.sizes[names[i]], j, self.sizes[other], same))
        return pairs

    def __call__(self, given, places, numbers, workspace):
        # On the path of every call: a name looked up here is tens of nanoseconds on each.
        for i, size, j, other, same in self.pairs:
            p, q = places[i], places[j]
            if q < p + size and p < q + other and not (p == q and same):
                self._check_pair(given, i, j)
        if given[self.at.first_out] is None or not self.single:
            given, places = self._allocate(given, places)
        if _current_device() == self.index:
            self.launch(places, numbers, _current_stream(self.index), workspace)
        else:
            with torch.cuda.device(self.index):
                self.launch(places, numbers, _current_stream(self.index), workspace)
        if self.single:
            return given[self.at.first_out]
        outs = dict(zip(self.at.outs, given[self.at.first_out :]))
        if not self.plan.steps:
            self.shapes.fill_empty(outs)
        return self.shapes.present(outs)

    def _check_pair(self, given: tuple, i: int, j: int) -> None:
        """Refuse an output whose address range overlaps another tensor's, unless they share no element."""
        if tensors.apart(given[i], given[j]):
            return
        names = self.at.names
        shown = ["out" if x == "d" else x for x in (names[i], names[j])]
        raise tensors.overlap(*shown, self.shapes.graph.tensors.get(names[j]) == "matrix")

    def _allocate(self, given: tuple, places: tuple) -> tuple[tuple, tuple]:
        """New tensors for the outputs that were not given."""
        first = self.at.first_out
        if self.single:
            wanted = self.shapes.wanted[0]
            if wanted.order is None:
                out = torch.empty(wanted.shape, dtype=self.dtype, device=self.device)
            else:
                out = self.shapes.allocate(wanted)
            return (*given[:first], out), (*places[:first], out.data_ptr(), *places[first + 1 :])
        given, places = list(given), list(places)
        for i, wanted in enumerate(self.shapes.wanted, first):
            if given[i] is None:
                given[i] = self.shapes.allocate(wanted)
                places[i] = given[i].data_ptr()
        return tuple(given), tuple(places)

    def _launch_nothing(self, places: Any, numbers: Any, stream: int, workspace: Any) -> None:
        """The stored outputs are empty."""

    def _launch_gemm(self, places: Any, numbers: tuple[float, ...], stream: int, workspace: Any) -> None:
        """A run of one launch."""
        self.gemm(places, self.extents, self.strides, numbers, self.walk, stream)

    def _launch_all(self, places: Any, numbers: tuple[float, ...], stream: int, workspace: Any) -> None:
        """Re-layouts into workspace, the GEMM, finishes of reductions."""
        if workspace is None:
            workspace = torch.empty(self.need, dtype=torch.uint8, device=self.device)
        base = self._workspace_address(workspace)
        named = dict(zip(self.at.names, places, strict=True))
        values = dict(zip(self.numbers, numbers))
        launches = arguments.launch_arguments(self.plan, named, base, values, stream)
        for function, (_, args) in zip(self.functions, launches):
            function(*args)

    def _workspace_address(self, workspace: Any) -> int:
        size = workspace.numel() * workspace.element_size()
        if workspace.device != self.device or size < self.need or not workspace.is_contiguous():
            rule = f"must be {self.need} contiguous bytes on {self.device}"
            raise field_error(InputError, "workspace", f"{size} bytes on {workspace.device}", rule)
        if workspace.data_ptr() % 16:
            raise field_error(InputError, "workspace", hex(workspace.data_ptr()), "must be 16-byte aligned")
        return workspace.data_ptr()


class _Checked:
    """CUTEGEMM_CHECK=1: every plain result compared with the fp64 reference, and the plan that ran logged.

    Synchronises, copies c, and computes the product a second time: for finding bugs, not for use.
    """

    def __init__(self, launcher: _Launcher, graph: Graph) -> None:
        self.launcher, self.graph = launcher, graph

    def __call__(self, given, places, numbers, workspace):
        a, b = given[:2]
        kept = {"c": given[2].clone()} if self.graph.tensors else {}
        values = dict(zip(self.graph.numbers, numbers))
        result = self.launcher(given, places, numbers, workspace)
        expected = reference.evaluate(self.graph, a, b, kept | values, torch.float64)["d"]
        sizes = {name: abs(x) for name, x in (kept | values).items()}
        magnitude = reference.evaluate(self.graph, a.abs(), b.abs(), sizes, torch.float64)["d"]
        roundoff = torch.finfo(result.dtype).eps / 2
        bound = (roundoff + 2.0**-20 * max(a.shape[-1], 1) ** 0.5) * 2 * magnitude
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
    """Launch over matrices of scratch memory, so that the module loads now and not inside a graph capture."""
    scratch = torch.zeros(8192, dtype=torch.uint8, device="cuda")
    function(*sample_arguments(config, scratch.data_ptr()), torch.cuda.current_stream().cuda_stream)
