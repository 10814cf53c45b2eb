# SPDX-License-Identifier: Apache-2.0
"""The run path: validates and plans a kind of call once, and returns a callable for it.

Arguments are sorted by name (`named`). The kind of call is described (layouts and types -> Problem), checked
(addresses) and planned, and a backend is created for it. CUTEGEMM_CHECK=1 compares every result with fp64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from cutegemm import checks
from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT
from cutegemm.database.choice import choose
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import GemmError, InputError, field_error
from cutegemm.problems import Problem
from cutegemm.running.arguments import check
from cutegemm.running.arguments.blas import PLAIN_WITH_C
from cutegemm.running.arguments.call import Memo, Planned, Request
from cutegemm.running.arguments.describe import Call, describe
from cutegemm.running.arguments.named import Order, Unprepared
from cutegemm.running.arguments.results import Shapes
from cutegemm.running.backends.launcher import Launcher, device_of
from cutegemm.running.backends.torch_backend import Described, Referenced
from cutegemm.running.kind import Kind, Prepared, writing
from cutegemm.running.numerics.checked import Checked
from cutegemm.spec import AUTO, GemmSpec

# legal values of `backend`
BACKENDS = ("gpu", "reference", "emulator")


def described(spec: GemmSpec, graph: Graph, request: Request) -> Call:
    """The problem of a call under a spec, and its outputs, for real, meta or fake tensors.

    Raises:
        InputError: a tensor breaks a rule.
    """
    call = describe(graph, request, *asked_of_d(spec))
    return call if _has_no_memory(request) else check.aligned(call, request)


def agreed(spec: GemmSpec, graph: Graph, request: Request) -> None:
    """Refuse calls that no kernel supports, for paths that run without a kernel. Addresses are not checked.

    Raises:
        InputError: a tensor breaks a rule.
        PlanError: the spec does not support the operands.
    """
    call = describe(graph, request, *asked_of_d(spec))
    if spec.given():
        _chosen(spec, call.problem, DEFAULT)


def asked_of_d(spec: GemmSpec) -> tuple[DType | None, str | None]:
    """The specified type and major of D; None if unspecified."""
    return None if spec.d_dtype == AUTO else spec.d_dtype, None if spec.d_major == AUTO else spec.d_major


Planner = Callable[[GemmSpec, Problem, Device], Planned]
# (backend, kind, first call) -> a callable for calls of the kind
Maker = Callable[[str, Kind, Request], Prepared]


def _chosen(spec: GemmSpec, problem: Problem, device: Device) -> Planned:
    """The default plan: from the database, or by the cost model."""
    return choose(spec, problem, device).plan


def prepare(
    spec: GemmSpec,
    graph: Graph,
    order: Order,
    given: tuple[Any, ...],
    backend: str | None,
    planner: Planner = _chosen,
    make: Maker | None = None,
) -> Prepared:
    """Validate and plan a kind of call and return a callable for it.

    Args:
        spec: the spec.
        graph: the epilogue.
        order: of tensors and numbers.
        given: the first call's tensors.
        backend: as the caller gave it.
        planner: makes the plan.
        make: creates the callable; None compiles the plan's kernels.

    Raises:
        InputError, PlanError, HardwareError, CompileError: see `Gemm.run`.
    """
    request = order.request(order.named(given))
    call = described(spec, graph, request)
    chosen = backend_for(request, backend)
    if chosen != "meta":
        check.overlaps(request, graph.tensors)
    # other backends refuse the same calls as a GPU
    device = device_of(request.a.device) if chosen == "gpu" else DEFAULT
    found = planner(spec, call.problem, device)
    shapes = Shapes(graph, call, None if chosen == "reference" else found, request.a.device)
    kind = Kind(graph, order, call, found, shapes, request.a.device)
    prepared = writing((make or _make)(chosen, kind, request), given)
    if chosen != "meta" and checks.switch("CUTEGEMM_CHECK"):
        return Checked(prepared, spec, chosen != "reference")
    return prepared


def first(
    spec: GemmSpec,
    kinds: Memo[Prepared],
    call: Unprepared,
    backend: str | None,
    workspace: Any,
    planner: Planner = _chosen,
    make: Maker | None = None,
) -> Any:
    """Run a call whose kind is not cached: validate, plan, cache the kind, run.

    Args:
        spec: the spec.
        kinds: the cache of kinds, for a call that has a key.
        call: the call.
        backend, workspace: as the caller gave them.
        planner, make: as for `prepare`.

    Raises:
        InputError, PlanError, HardwareError, CompileError: see `Gemm.run`.
    """
    prepared = None if call.key is None else kinds.get(call.key)
    if prepared is None:
        order = call.signature.order(call.scalars)
        call = resolved(call) or call
        try:
            if call.unread is not None:
                # C is not read if beta is 0, but must be legal
                whole = Request(call.given[0], call.given[1], {"c": call.unread})
                described(spec, PLAIN_WITH_C.graph, whole)
            prepared = prepare(spec, call.signature.graph, order, call.given, backend, planner, make)
        except GemmError as error:
            raise error.about(spec=spec, **circumstances(order, call.given)) from None
        if call.key is not None:
            kinds.put(call.key, prepared)
    return prepared(call.given, call.addresses, call.numbers, workspace)


def resolved(call: Unprepared) -> Unprepared | None:
    """The call with copies of its negated inputs; None if it has none.

    Memory holds the opposite sign of such a view (`z.conj().imag`), so it must be copied, as torch does. The copies
    are new tensors in each call, so the call has no key.
    """
    order = call.signature.order(call.scalars)
    outs = range(order.first_out, order.end_out)
    negated = [
        i for i, x in enumerate(call.given) if i not in outs and isinstance(x, torch.Tensor) and x.is_neg()
    ]
    if not negated:
        return None
    given, addresses = list(call.given), list(call.addresses)
    for i in negated:
        given[i] = given[i].resolve_neg()
        addresses[i] = given[i].data_ptr()
    return dataclasses.replace(call, given=tuple(given), addresses=tuple(addresses), key=None)


def circumstances(order: Order, given: tuple[Any, ...]) -> dict[str, Any]:
    """The tensors of a call by name, for an error's context."""
    return {name: x for name, x in order.named(given).items() if x is not None}


def backend_for(request: Request, named: str | None) -> str:
    """The backend of a call: "gpu", "reference", "emulator", or "meta" for tensors without memory.

    Raises:
        InputError: there is no such backend, or it does not support tensors of this device.
    """
    if named is not None and (not isinstance(named, str) or named not in BACKENDS):
        raise field_error(InputError, "backend", named, f"must be one of {', '.join(BACKENDS)}")
    if _has_no_memory(request):
        return "meta"
    device = request.a.device
    if named == "gpu" and not request.a.is_cuda:
        raise field_error(InputError, "backend", named, f"the tensors are on {device}", "reference")
    if named == "emulator" and request.a.is_cuda:
        raise field_error(InputError, "backend", named, f"the tensors are on {device}", "gpu")
    return named or ("gpu" if request.a.is_cuda else "reference")


def _make(chosen: str, kind: Kind, request: Request) -> Prepared:
    if chosen == "gpu":
        return Launcher(kind, request)
    if chosen == "emulator":
        # importing the emulator is slow, and few calls need it
        from cutegemm.running.backends.emulated import Emulated

        return Emulated(kind)
    return Described(kind) if chosen == "meta" else Referenced(kind)


def _has_no_memory(request: Request) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    a = request.a
    return isinstance(a, torch.Tensor) and (a.is_meta or isinstance(a, FakeTensor))


__all__ = [
    "BACKENDS",
    "agreed",
    "asked_of_d",
    "backend_for",
    "circumstances",
    "described",
    "first",
    "prepare",
    "resolved",
]
