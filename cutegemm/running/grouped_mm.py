# SPDX-License-Identifier: Apache-2.0
"""Runs of grouped GEMMs. Calls with equal layouts share one validated and planned entry.

The tensors of a call are in the usual order (`running.arguments.named`), followed by the group ends and, if given,
the row indices.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from cutegemm import checks
from cutegemm.arch.records import DEFAULT
from cutegemm.epilogue import call_order
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import GemmError, InputError, field_error
from cutegemm.launch_layout import GROUP_ENDS, ROW_INDICES
from cutegemm.planning.grouped import plan_groups
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import Ends
from cutegemm.problems import operand_of
from cutegemm.request import requirements
from cutegemm.request.group_forms import PACKED, check_form
from cutegemm.running.arguments import check
from cutegemm.running.arguments.call import NOWHERE, Memo, Request, identity, substance
from cutegemm.running.arguments.describe import Call, Layouts, check_tensor, describe
from cutegemm.running.arguments.named import Order, Signature, Unprepared
from cutegemm.running.arguments.results import Shapes
from cutegemm.running.backends.launcher import Launcher, device_of
from cutegemm.running.backends.torch_backend import Described
from cutegemm.running.groups import Grouping, Groups, agree, check_index
from cutegemm.running.kind import Kind, Prepared, writing
from cutegemm.running.numerics.group_checked import GroupChecked
from cutegemm.running.numerics.group_reference import GroupReference
from cutegemm.running.run import asked_of_d, backend_for, circumstances, resolved
from cutegemm.spec import AUTO, GemmSpec

# fields of a spec that describe only D
_OF_D = {"d_dtype", "d_major"}
# kind of an input -> its number of dimensions if every group has its own
OWN = {"row": 2, "col": 2, "blocks_m": 3, "blocks_n": 3}


class GroupedGemm:
    """The grouped kernels of one spec and one epilogue.

    Attributes:
        spec: without an epilogue; graph: the epilogue.
    """

    def __init__(self, spec: GemmSpec, graph: Graph) -> None:
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
            a, b: rows (M, K) and (G, K, N); columns (G, M, K) and (K, N); masked (G, C, K) and (G, K, N); along K
                (M, K) and (K, N).
            groups: the group ends, and perhaps row indices.
            named: the epilogue's inputs; out: as for `Gemm.run`.
            backend: as for `Gemm.run`.

        Raises:
            InputError: a tensor breaks a rule; nothing has been written.
            PlanError: no grouped kernel supports the operands under the spec.
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
        """`prepared` for a call whose kind is not cached."""
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
        """Validate and plan a call whose kind is not cached."""
        request = order.request(order.named(given))
        call = _described(self.graph, request, how, self.spec)
        chosen = backend_for(request, backend)
        if chosen == "meta":
            return Described(_kind(self.graph, order, call, None, request))
        check.overlaps(request, self.graph.tensors)
        found = writing(self._served(request, order, call, how, chosen), given)
        if checks.switch("CUTEGEMM_CHECK"):
            return GroupChecked(found, self.spec, GroupReference(found.kind, how.form, how.lead, how.tail))
        return found

    def _served(self, request: Request, order: Order, call: Call, how: Grouping, chosen: str) -> Prepared:
        """The callable that runs a described call on a backend."""
        empty = not (request.a.numel() and request.b.numel() and call.problem.batch)
        if chosen == "reference" or empty:
            # fp32 operands need a spec with math="tf32"
            if not empty and (set(self.spec.given()) - _OF_D or request.a.dtype == torch.float32):
                self._planned(request, call, how)  # for its errors: a CPU refuses the same calls as a GPU
            kind = _kind(self.graph, order, call, None, request)
            return GroupReference(kind, how.form, how.lead, how.tail)
        kind = _kind(self.graph, order, call, self._planned(request, call, how), request)
        if chosen == "gpu":
            return Launcher(kind, request)
        from cutegemm.running.backends.emulated import Emulated

        return Emulated(kind, whole=how.tail or how.form == "depth")

    def plan(self, a: Any, b: Any, groups: Groups, named: dict[str, Any], out: Any = None) -> KernelPlan:
        """The plan of a call with the arguments of `run`; CPU tensors are planned for an H200.

        Raises:
            InputError, PlanError: as for `run`.
        """
        given, _, scalars = self.signature.bind(a, b, named, out)
        how = groups.how(a, b)
        order = ordered(self.signature.order(scalars), how)
        told = (groups.ends,) if groups.rows is None else (groups.ends, groups.rows)
        request = order.request(order.named((*given, *told)))
        return self._planned(request, _described(self.graph, request, how, self.spec), how)

    def _planned(self, request: Request, call: Call, how: Grouping) -> KernelPlan:
        ends, indices = request.inputs[GROUP_ENDS], request.inputs.get(ROW_INDICES)
        told = Ends(
            width=ends.element_size() // 4,
            lead=how.lead,
            tail=how.tail and how.form != "depth",
            indices=0 if indices is None else indices.element_size() // 4,
            rows=0 if indices is None else request.a.shape[0],
        )
        whole = dataclasses.replace(self.spec, epilogue=self.graph, d_dtype=AUTO, d_major=AUTO)
        device = device_of(ends.device) if request.a.is_cuda else DEFAULT
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
    """Check the rules for tensors of grouped runs that other runs do not have.

    Raises:
        InputError: naming the tensor, what it is, and the rule.
    """
    a, b = request.a, request.b
    ranks = {"rows": (2, 3), "columns": (3, 2), "masked": (3, 3), "depth": (2, 2)}[how.form]
    for name, x, rank in zip("ab", (a, b), ranks, strict=True):
        check_tensor(name, x, (rank,), (x.dtype,) if isinstance(x, torch.Tensor) else ())
    check_form(graph, how.form)
    groups, k = (a if how.form == "columns" else b).shape[0], a.shape[-1]
    shape, of_b, count = f"{how.name}.shape", tuple(b.shape), tuple(ends.shape)
    if how.form == "masked":
        agree("b.shape", of_b, groups == a.shape[0], f"must have a matrix for each of {a.shape[0]} groups")
    if how.form != "depth":
        agree(shape, count, count[0] == groups + how.lead, f"must be ({groups + how.lead},)")
        each = " in each matrix" if b.dim() == 3 else ""
        agree("b.shape", of_b, b.shape[-2] == k, f"must have {k} rows (K){each}")
    elif how.lead:
        agree(shape, count, count[0] > 0, "must contain the start of the first group")
    agree(f"{how.name}.stride()", ends.stride(), ends.is_contiguous(), "must be contiguous")
    if how.indexed:
        rows = request.inputs[ROW_INDICES]
        agree("rows", tuple(rows.shape), how.form == "rows", "needs groups of rows: a (M, K) and b (G, K, N)")
        check_index("rows", rows, a.shape[0], a)
        agree("rows.stride()", rows.stride(), rows.is_contiguous(), "must be contiguous")
    agree(f"{how.name}.device", str(ends.device), ends.device == a.device, f"must be a's device, {a.device}")


def check_own(name: str, x: Any, groups: int) -> None:
    """Refuse an input of the epilogue whose first extent is not the number of groups.

    Raises:
        InputError: it is another number.
    """
    if x.shape[0] != groups:
        rule = f"must have one for each of {groups} groups"
        raise field_error(InputError, f"{name}.shape", tuple(x.shape), rule)


def _check_shared(name: str, x: Any) -> None:
    """Refuse block scales of groups along K that have a dimension for groups, which meet inside blocks.

    Raises:
        InputError: they have one.
    """
    rule = "groups along K share scales of blocks, which lie as those of A (M, K) and B (N, K)"
    agree(f"{name}.shape", tuple(x.shape), x.dim() == 2, rule)


def _described(graph: Graph, request: Request, how: Grouping, spec: GemmSpec) -> Call:
    """The problem of a grouped call (`planning.grouped.plan_groups`) and its outputs.

    The operands of one group, or of a batch of all, are described first and then extended to all groups.

    Raises:
        InputError: a tensor breaks a rule.
        PlanError: the spec specifies a type or a major that a tensor does not have.
    """
    _check(request, request.inputs[GROUP_ENDS], how, graph)
    inputs = {name: x for name, x in request.inputs.items() if name not in (GROUP_ENDS, ROW_INDICES)}
    a, b, groups = request.a, request.b, request.inputs[GROUP_ENDS].shape[0] - how.lead
    kinds, packed = graph.tensors, PACKED.get(how.form)
    for name in kinds:
        if not isinstance(inputs[name], torch.Tensor):
            raise InputError(f"must be a torch.Tensor, got {type(inputs[name]).__name__}", field=name)
    # kinds of vectors that may differ by group, then the names of the inputs that do
    kept = () if packed is None else packed.own
    own = {name for name, kind in kinds.items() if kind in kept and inputs[name].dim() == OWN[kind]}
    if how.form == "depth":
        a, b = a.expand(groups, -1, -1), b.expand(groups, -1, -1)
    elif how.form == "columns":
        a = _first(a)
    elif how.form == "rows":
        # D has a row per index; A's strides are restored below
        a = a[:1].expand(request.inputs[ROW_INDICES].shape[0], -1) if how.indexed else a
        b = _first(b)
    for name in own:
        check_own(name, inputs[name], groups)
    for x in graph.scales if how.form == "depth" else ():
        _check_shared(x.name, inputs[x.name])
    one = {name: _first(x) if name in own else x for name, x in inputs.items()}
    seen = Request(a, b, one, request.outs)
    call = describe(graph, seen, *asked_of_d(spec))
    call = call if _fake(a) else check.aligned(call, seen)
    problem = call.problem
    if packed is not None:
        wide = {name: Layouts(groups).of_input(inputs[name], kinds[name]) for name in own}
        found = tuple(
            (name, dataclasses.replace(wide.get(name, x), align=x.align)) for name, x in problem.inputs
        )
        a, b = operand_of(request.a), operand_of(request.b)
        a = dataclasses.replace(a, rows=problem.m, align=problem.a.align)
        b = dataclasses.replace(b, align=problem.b.align)
        problem = dataclasses.replace(problem, batch=groups, a=a, b=b, inputs=found)
    requirements.check_dtypes(spec, problem)
    requirements.check_majors(spec, problem)
    return dataclasses.replace(call, problem=problem)


def _first(x: Any) -> Any:
    """The first group's part."""
    return x[0] if x.shape[0] else x.new_empty(x.shape[1:])


def _fake(x: Any) -> bool:
    return bool(x.is_meta) or type(x).__name__ == "FakeTensor"


__all__ = ["GroupedGemm", "check_own"]
