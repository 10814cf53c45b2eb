# SPDX-License-Identifier: Apache-2.0
"""Runs of grouped GEMMs: a kind of call is described and planned once.

A call's tensors are those of any run, in the same order (`running.arguments.named`), then the tensor of group ends and,
if there are any, the indices of the rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from cutegemm.arch.records import DEFAULT
from cutegemm.epilogue import call_order
from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scales import BLOCKS, K_BLOCK, ROW
from cutegemm.errors import GemmError, InputError, field_error
from cutegemm.launch_layout import GROUP_ENDS, ROW_INDICES
from cutegemm.planning.grouped import Ends, plan_groups
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.problems import Operand, operand_of
from cutegemm.running.arguments import check
from cutegemm.running.arguments.call import NOWHERE, Memo, Request, identity, substance
from cutegemm.running.arguments.describe import Call, Layouts, check_tensor, describe
from cutegemm.running.arguments.named import Order, Signature, Unprepared
from cutegemm.running.arguments.results import Shapes
from cutegemm.running.backends.launcher import Launcher, device_of
from cutegemm.running.backends.torch_backend import Described
from cutegemm.running.groups import Grouping, Groups, agree, check_index
from cutegemm.running.kind import Kind, Prepared
from cutegemm.running.numerics.group_reference import GroupReference
from cutegemm.running.run import backend_for, circumstances, resolved
from cutegemm.spec import AUTO, GemmSpec

# fields of a spec that describe D alone
_OF_D = {"d_dtype", "d_major"}
# dimensions of an input that has a part for each group of rows, by its kind
OWN = {"row": 2, "blocks_n": 3}


class GroupedGemm:
    """The kernels of groups under one spec and one epilogue.

    Attributes:
        spec: without an epilogue; graph: the epilogue.
    """

    def __init__(self, spec: GemmSpec, graph: Graph) -> None:
        for x in graph.reductions:
            rule = "groups have no reductions; reduce what is stored"
            raise field_error(InputError, f"epilogue.{x.name}", x.kind, rule)
        self.spec, self.graph = spec, graph
        self.signature = Signature(graph)
        self._kinds: Memo[Prepared] = Memo()

    def run(
        self,
        a: Any,
        b: Any,
        groups: Groups,
        named: dict[str, Any],
        out: Any = None,
        backend: str | None = None,
        workspace: Any = None,
    ) -> Any:
        """Prepare a call and run it."""
        serve, given, addresses, numbers = self.prepared(a, b, groups, named, out, backend)
        if groups.rows is not None:
            check_index("rows", groups.rows, a.shape[0], a)
        return serve(given, addresses, numbers, workspace)

    def prepared(
        self, a: Any, b: Any, groups: Groups, named: dict[str, Any], out: Any = None, backend: Any = None
    ) -> tuple[Prepared, tuple[Any, ...], tuple[int, ...], tuple[float, ...]]:
        """The prepared kind of a call, and its arguments: tensors, addresses and numbers.

        Args:
            a, b: (M, K) and (G, K, N); masked (G, C, K) and (G, K, N); along K (M, K) and (K, N).
            groups: where they lie.
            named: what the epilogue reads; out: as for `Gemm.run`.
            backend: as for `Gemm.run`.

        Raises:
            InputError: a tensor breaks a rule; nothing has been written.
            PlanError: no kernel of groups serves the operands under the spec.
        """
        if not isinstance(groups, Groups):
            raise field_error(InputError, "groups", groups, "must be cutegemm.Groups")
        how = groups.how(a, b)
        given, numbers, scalars = self.signature.bind(a, b, named, out)
        given = (*given, groups.ends) if groups.rows is None else (*given, groups.ends, groups.rows)
        addresses: tuple[int, ...]
        key: Any
        try:
            if type(a).__name__ == "FakeTensor":
                raise TypeError
            addresses = tuple([NOWHERE if t is None else t.data_ptr() for t in given])
            key = (
                *[None if t is None else identity(t) for t in given],
                tuple([p & 15 for p in addresses]), scalars, how, backend,
            )  # fmt: skip
            if 0 in addresses:
                key += substance(given)
            prepared = self._kinds.recent.get(key)
        except (AttributeError, RuntimeError, TypeError):
            key = prepared = None
            addresses = (0,) * len(given)
        if prepared is not None:
            return prepared, given, addresses, numbers
        call = Unprepared(self.signature, given, addresses, numbers, key, scalars)
        return self._first(resolved(call) or call, how, backend)

    def _first(
        self, call: Unprepared, how: Grouping, backend: str | None
    ) -> tuple[Prepared, tuple[Any, ...], tuple[int, ...], tuple[float, ...]]:
        """As `prepared`, of a kind that is not among the recent ones."""
        prepared = None if call.key is None else self._kinds.get(call.key)
        if prepared is None:
            order = ordered(self.signature.order(call.scalars), how)
            try:
                prepared = self._prepare(order, call.given, how, backend)
            except GemmError as error:
                raise error.about(spec=self.spec, **circumstances(order, call.given)) from None
            if call.key is not None:
                self._kinds.put(call.key, prepared)
        return prepared, call.given, call.addresses, call.numbers

    def _prepare(self, order: Order, given: tuple[Any, ...], how: Grouping, backend: str | None) -> Prepared:
        """Validate and plan a kind of call."""
        graph, spec = self.graph, self.spec
        named = order.named(given)
        request = order.request(named)
        ends = named[GROUP_ENDS]
        _check(request, ends, how, graph)
        call = _described(graph, request, how, spec.d_dtype, spec.d_major)
        chosen, groups = backend_for(request, backend), call.problem.batch
        if chosen == "meta":
            return Described(_kind(graph, order, call, None, request))
        check.overlaps(request, graph.tensors)
        empty = any(x.numel() == 0 for x in (request.a, request.b)) or not groups
        if chosen == "reference" or empty:
            if not empty and set(spec.given()) - _OF_D:
                # other backends refuse what a GPU would
                self._planned(call, how, ends, False, named.get(ROW_INDICES), request.a.shape[0])
            return GroupReference(_kind(graph, order, call, None, request), how.form, how.lead, how.tail)
        plan = self._planned(call, how, ends, chosen == "gpu", named.get(ROW_INDICES), request.a.shape[0])
        kind = _kind(graph, order, call, plan, request)
        if chosen == "gpu":
            return Launcher(kind, request)
        from cutegemm.running.backends.emulated import Emulated

        return Emulated(kind, whole=how.tail or how.form == "depth")

    def plan(self, a: Any, b: Any, groups: Groups, named: dict[str, Any], out: Any = None) -> KernelPlan:
        """The plan of a call with the arguments of `run`; for CPU tensors that of an H200.

        Raises:
            InputError, PlanError: as for `run`.
        """
        given, _, scalars = self.signature.bind(a, b, named, out)
        how = groups.how(a, b)
        order = ordered(self.signature.order(scalars), how)
        told = (groups.ends,) if groups.rows is None else (groups.ends, groups.rows)
        request = order.request(order.named((*given, *told)))
        _check(request, groups.ends, how, self.graph)
        call = _described(self.graph, request, how, self.spec.d_dtype, self.spec.d_major)
        return self._planned(call, how, groups.ends, a.is_cuda, groups.rows, a.shape[0])

    def _planned(
        self, call: Call, how: Grouping, ends: Any, gpu: bool, indices: Any = None, extent: int = 0
    ) -> KernelPlan:
        told = Ends(
            width=ends.element_size() // 4,
            lead=how.lead,
            tail=how.tail and how.form != "depth",
            indices=0 if indices is None else indices.element_size() // 4,
            rows=extent,
        )
        whole = dataclasses.replace(self.spec, epilogue=self.graph, d_dtype=AUTO, d_major=AUTO)
        device = device_of(ends.device) if gpu else DEFAULT
        return plan_groups(whole, call.problem, how.form, told, device)


def ordered(order: Order, how: Grouping) -> Order:
    """The order of a call's tensors, followed by those that describe its groups."""
    names = (GROUP_ENDS, ROW_INDICES) if how.indexed else (GROUP_ENDS,)
    more = [call_order.Passed(x, call_order.Role(ranks=(1,), strided=False)) for x in names]
    return dataclasses.replace(order, passed=(*order.passed, *more), names=(*order.names, *names))


def _kind(graph: Graph, order: Order, call: Call, plan: Any, request: Request) -> Kind:
    device = request.a.device
    return Kind(graph, order, call, plan, Shapes(graph, call, plan, device), device)


def _check(request: Request, ends: Any, how: Grouping, graph: Graph) -> None:
    """Check what groups require of tensors beyond the checks of any run.

    Raises:
        InputError: naming the tensor, what it is, and the rule.
    """
    a, b = request.a, request.b
    ranks = {"rows": (2, 3), "masked": (3, 3), "depth": (2, 2)}[how.form]
    for name, x, rank in zip("ab", (a, b), ranks, strict=True):
        check_tensor(name, x, (rank,), (x.dtype,) if isinstance(x, torch.Tensor) else ())
    if how.form == "masked":
        agree(
            "b.shape",
            tuple(b.shape),
            b.shape[0] == a.shape[0],
            f"must have a matrix for each of {a.shape[0]} groups",
        )
    elif how.form == "depth" and graph.gated:
        raise field_error(InputError, "epilogue", graph.gated, "groups along K have no gated pairs", None)
    _check_scales(graph, how)
    if how.form != "depth":
        groups = b.shape[0]
        agree(
            f"{how.name}.shape",
            tuple(ends.shape),
            ends.shape[0] == groups + how.lead,
            f"must be ({groups + how.lead},)",
        )
        agree(
            "b.shape",
            tuple(b.shape),
            b.shape[1] == a.shape[-1],
            f"must have {a.shape[-1]} rows (K) in each matrix",
        )
    elif how.lead:
        agree(f"{how.name}.shape", tuple(ends.shape), ends.shape[0] > 0, "must hold the first group's begin")
    agree(f"{how.name}.stride()", ends.stride(), ends.is_contiguous(), "must be contiguous")
    if how.indexed:
        rows = request.inputs[ROW_INDICES]
        agree("rows", tuple(rows.shape), how.form == "rows", "names rows of groups: a (M, K) and b (G, K, N)")
        check_index("rows", rows, a.shape[0], a)
        agree("rows.stride()", rows.stride(), rows.is_contiguous(), "must be contiguous")
    agree(f"{how.name}.device", str(ends.device), ends.device == a.device, f"must be a's device, {a.device}")


def _check_scales(graph: Graph, how: Grouping) -> None:
    for x in graph.scales:
        kind = ("block", x.extent, K_BLOCK)
        if how.form == "depth":
            raise field_error(InputError, x.name, kind, "groups along K begin inside blocks of K", ROW)
        if how.form == "rows" and x.axis == "m" and x.extent > 1:
            raise field_error(InputError, x.name, kind, "groups begin inside blocks of rows", BLOCKS[0])


def _described(graph: Graph, request: Request, how: Grouping, dtype: Any, major: Any) -> Call:
    """The problem of groups (`planning.grouped.plan_groups`) and its outputs.

    It is described as the GEMM of one group, or as a batch of all groups, then changed to what each group has.
    """
    inputs = {name: x for name, x in request.inputs.items() if name not in (GROUP_ENDS, ROW_INDICES)}
    asked = (None if dtype == AUTO else dtype, None if major == AUTO else major)
    a, b, groups = request.a, request.b, request.inputs[GROUP_ENDS].shape[0] - how.lead
    kinds = graph.tensors
    # what each group has of its own beside B
    for name in kinds:
        if not isinstance(inputs[name], torch.Tensor):
            raise InputError(f"must be a torch.Tensor, got {type(inputs[name]).__name__}", field=name)
    own = [name for name, kind in kinds.items() if inputs[name].dim() == OWN.get(kind)]
    if how.form == "masked":
        seen = Request(a, b, inputs, request.outs)
    elif how.form == "depth":
        seen = Request(a.expand(groups, -1, -1), b.expand(groups, -1, -1), inputs, request.outs)
    else:
        for name in own:
            shape = tuple(inputs[name].shape)
            agree(f"{name}.shape", shape, shape[0] == groups, f"must have one for each of {groups} groups")
        one = b[0] if groups else b.new_empty(b.shape[1:])
        first = {name: x[0] if name in own and groups else x for name, x in inputs.items()}
        if not groups:
            first |= {name: first[name].new_empty(first[name].shape[1:]) for name in own}
        # as many rows as there are indices; how they lie is told below
        multiplied = a[:1].expand(request.inputs[ROW_INDICES].shape[0], -1) if how.indexed else a
        seen = Request(multiplied, one, first, request.outs)
    call = describe(graph, seen, *asked)
    if not _fake(a):
        call = check.aligned(call, seen)
    if how.form != "rows":
        return call
    problem = call.problem

    def all_of(name: str, x: Operand) -> Operand:
        if name not in own:
            return x
        return dataclasses.replace(Layouts(groups).of_input(inputs[name], kinds[name]), align=x.align)

    return dataclasses.replace(
        call,
        problem=dataclasses.replace(
            problem,
            batch=groups,
            a=dataclasses.replace(operand_of(a), rows=problem.m, align=problem.a.align),
            b=dataclasses.replace(operand_of(b), align=problem.b.align),
            inputs=tuple((name, all_of(name, x)) for name, x in problem.inputs),
        ),
    )


def _fake(x: Any) -> bool:
    return bool(x.is_meta) or type(x).__name__ == "FakeTensor"


__all__ = ["GroupedGemm"]
