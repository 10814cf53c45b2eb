# SPDX-License-Identifier: Apache-2.0
"""Calls on a GPU: a list of launches. All arguments except addresses are converted in advance."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import tvm_ffi
from torch.autograd import forward_ad

from cutegemm.arch import records
from cutegemm.arch.device import Device
from cutegemm.compiling import kernel_cache, loader
from cutegemm.config import Config
from cutegemm.errors import CompileError, HardwareError
from cutegemm.launch_layout import COUNTERS, layout_of
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.running import tangents
from cutegemm.running.arguments import check
from cutegemm.running.arguments.call import Request
from cutegemm.running.backends import counters, properties
from cutegemm.running.backends.packed import WORKSPACE, packed
from cutegemm.running.backends.uncompiled import uncompiled
from cutegemm.running.kind import Kind
from cutegemm.running.numerics.reference import TORCH_DTYPE

Function = Callable[..., None]

# (config, device index) -> the launching function whose code is on the device
_ready: dict[tuple[Config, int], Function] = {}
_lock = threading.Lock()

# torch's fast forms of current_device() and current_stream(); CPU builds lack them
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Pair(NamedTuple):
    """An output and a tensor that may overlap it: positions in the call, bytes, and whether they may be identical."""

    out: int
    size: int
    other: int
    reach: int
    same: bool


class Launcher:
    """Runs a kind of call on a Hopper GPU.

    Memory that a call allocates goes to the caller or back to torch's allocator when it returns. Nothing may stay in
    the memory pool of a CUDA graph.

    Args:
        kind: the kind.
        request: the first call's tensors; all calls have their layouts and types. None of them is kept.
    """

    def __init__(self, kind: Kind, request: Request) -> None:
        self.kind = kind
        self.device = kind.device
        self.index: Any = self.device.index
        plan = kind.plan
        self.need, self.counts = plan.workspace_bytes, plan.counter_bytes
        self.first_out = kind.order.first_out
        self.single = kind.shapes.alone
        self.dtype = TORCH_DTYPE[kind.shapes.wanted[0].dtype]
        self.like = torch.empty(0, dtype=self.dtype, device=self.device)
        self.pairs = _pairs(kind, request)
        # the kernel, if a call is one launch
        self.alone: Function | None = None
        self._make_ready()
        if self.counts and not torch.cuda.is_current_stream_capturing():
            counters.owner(self.index).reserve(self.counts)

    def _make_ready(self) -> None:
        """Load the plan's kernels and convert the arguments that all calls share."""
        plan = cast(KernelPlan, self.kind.plan)
        functions = [function_for(step.config, self.index) for step in plan.steps]
        order = self.kind.order
        self.launches = packed(plan, order.names, order.numbers, functions)
        if plan.multiply is None:
            return
        if len(plan.steps) == 1 and not self.need and not self.counts:
            self.alone = _taking(plan.multiply.factors, functions[plan.steps.index(plan.multiply)])
        layout, fixed = layout_of(plan.multiply.config), plan.multiply.fixed()
        # converted once instead of in every call
        self.extents, self.strides, self.schedule = (
            tvm_ffi.convert(layout[name].pack(fixed[name])) for name in ("shape", "strides", "schedule")
        )

    @uncompiled
    def __call__(
        self, given: tuple[Any, ...], addresses: tuple[int, ...], numbers: tuple[float, ...], workspace: Any
    ) -> Any:
        if _current_device() != self.index:  # type: ignore[misc]
            with torch.cuda.device(self.index):
                return self(given, addresses, numbers, workspace)
        # this runs in every call; each name lookup costs tens of nanoseconds
        for i, size, j, reach, same in self.pairs:
            p, q = addresses[i], addresses[j]
            if q < p + size and p < q + reach and not (p == q and same):
                self._check_pair(given, i, j)
        if forward_ad._current_level >= 0:
            tangents.refuse(zip(self.kind.order.names, given))
        if workspace is not None:
            check.workspace(workspace, self.need, self.kind.order.named(given))
        if given[self.first_out] is None or not self.single:
            given, addresses = self._allocate(given, addresses)
        stream = _current_stream(self.index)  # type: ignore[misc]
        if self.alone is None:
            self._launch_all(addresses, numbers, stream, workspace)
        else:
            self.alone(addresses, self.extents, self.strides, numbers or _NO_NUMBERS, self.schedule, stream)
        if self.single:
            return given[self.first_out]
        kind = self.kind
        outs = dict(zip(kind.order.outs, given[self.first_out :]))
        if not kind.plan.steps:
            kind.shapes.fill_empty(outs)
        return kind.shapes.present(outs)

    def _check_pair(self, given: tuple[Any, ...], i: int, j: int) -> None:
        """Refuse an output whose address range overlaps another tensor's, unless they share no element."""
        if check.apart(given[i], given[j]):
            return
        names = self.kind.order.names
        raise check.overlap(names[i], names[j], self.kind.graph.tensors.get(names[j]) == "matrix")

    def _allocate(
        self, given: tuple[Any, ...], addresses: tuple[int, ...]
    ) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Allocate the outputs that were not given."""
        first, shapes = self.first_out, self.kind.shapes
        if self.single:
            wanted = shapes.wanted[0]
            if wanted.order is None:
                # a quarter faster than torch.empty with type and device
                out = self.like.new_empty(wanted.shape)
            else:
                out = shapes.allocate(wanted)
            rest = first + 1
            found = (*addresses[:first], out.data_ptr(), *addresses[rest:])
            return (*given[:first], out, *given[rest:]), found
        tensors, every = list(given), list(addresses)
        for i, wanted in enumerate(shapes.wanted, first):
            if tensors[i] is None:
                tensors[i] = shapes.allocate(wanted)
                every[i] = tensors[i].data_ptr()
        return tuple(tensors), tuple(every)

    def _launch_all(self, addresses: tuple[int, ...], numbers: Any, stream: int, workspace: Any) -> None:
        """Launch relayouts, the GEMM and the finishes of reductions; nothing if outputs are empty."""
        if workspace is None:
            workspace = torch.empty(self.need, dtype=torch.uint8, device=self.device)
        order = self.kind.order
        named, values = dict(zip(order.names, addresses)), dict(zip(order.numbers, numbers))
        # `held` keeps the counters alive until everything is launched
        held, named[COUNTERS] = self._counters(stream)
        self._launch(named, workspace.data_ptr(), values, stream)

    def _launch(
        self, addresses: dict[str, int], workspace: int, numbers: dict[str, float], stream: int
    ) -> None:
        """Launch everything of one call, with its addresses and numbers by name."""
        addresses[WORKSPACE] = workspace
        for launch in self.launches:
            launch(addresses, numbers, stream)

    def _counters(self, stream: int) -> tuple[Any, int]:
        """(owner, address) of zeroed counters for exclusive use; address 0 if there are none."""
        if not self.counts:
            return None, 0
        owner = counters.owner(self.index)
        if not torch.cuda.is_current_stream_capturing():
            return owner, owner.of_stream(stream, self.counts)
        place = owner.of_capture(self.counts)
        if place is not None:
            return owner, place
        # a memset in the graph zeroes them
        made = torch.zeros(self.counts, dtype=torch.uint8, device=self.device)
        return made, made.data_ptr()


def _taking(factors: tuple[str, str], function: Function) -> Function:
    """A launching function that takes a call's addresses in the call's order."""
    if factors == ("a", "b"):
        return function

    def swapped(
        addresses: tuple[int, ...], extents: Any, strides: Any, numbers: Any, schedule: Any, stream: int
    ) -> None:
        a, b, *others = addresses
        function((b, a, *others), extents, strides, numbers, schedule, stream)

    return swapped


# the group "numbers" of a launch without numbers
_NO_NUMBERS = (0.0,)


def _pairs(kind: Kind, request: Request) -> tuple[Pair, ...]:
    """The pairs to check for overlap in every call: each given output with all inputs and earlier outputs."""
    order, given = kind.order, request.tensors
    sizes = {name: check.extent_bytes(x) for name, x in given.items()}
    found = []
    for i in range(order.first_out, order.end_out):
        out = order.names[i]
        if not sizes.get(out):
            continue
        for j, other in enumerate(order.names):
            if (j < i or j >= order.end_out) and sizes.get(other):
                matrix = kind.graph.tensors.get(other) == "matrix"
                same = matrix and check.same_layout(given[other], given[out])
                found.append(Pair(i, sizes[out], j, sizes[other], same))
    return tuple(found)


def device_of(device: torch.device) -> Device:
    """The planner's figures for a CUDA device.

    Raises:
        HardwareError: it is not a Hopper GPU.
    """
    capability, name = torch.cuda.get_device_capability(device), torch.cuda.get_device_name(device)
    if capability != records.DEFAULT.limits.capability:
        raise HardwareError(
            f"{device} is {name}, compute capability {capability[0]}.{capability[1]}: kernels need 9.0 (Hopper)"
        )
    found = torch.cuda.get_device_properties(device)
    return properties.device_for(
        name, found.multi_processor_count, found.L2_cache_size, lambda: properties.Gpu(device)
    )


def current_device() -> tuple[int | None, Device]:
    """The index and figures of the current CUDA device if it is a Hopper GPU, else None and the H200's figures."""
    hopper = records.DEFAULT.limits.capability
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != hopper:
        return None, records.DEFAULT
    index = torch.cuda.current_device()
    return index, device_of(torch.device("cuda", index))


def function_for(config: Config, index: int) -> Function:
    """The launching function of a config, with its code on device `index`; compiled or read from the cache if needed.

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
        function = loader.load(kernel_cache.artifact(config).obj)
        with torch.cuda.device(index):
            _touch(function, config)
        with _lock:
            _ready[config, index] = function
    return function


def _touch(function: Function, config: Config) -> None:
    """Launch once on scratch memory, so that the module loads now and not inside a graph capture."""
    scratch = torch.zeros(8192, dtype=torch.uint8, device="cuda")
    function(*layout_of(config).sample(scratch.data_ptr()), torch.cuda.current_stream().cuda_stream)


__all__ = ["Launcher", "current_device", "device_of", "function_for"]
