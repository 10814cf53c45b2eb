# SPDX-License-Identifier: Apache-2.0
"""Describes torch tensors as a `Problem`: the half of validation that needs no addresses.

It checks ranks, shapes, types, devices and strides, also of fake and meta tensors. `check` reads addresses.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from cutegemm.arch.instructions import partners, types_fault
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue import call_order, element_types, scaling
from cutegemm.epilogue.graph import SCALE, Graph, Result
from cutegemm.epilogue.scales import BLOCK_KINDS
from cutegemm.errors import InputError, field_error
from cutegemm.problems import Operand, Problem, columns, operand_of
from cutegemm.running.arguments.call import Request
from cutegemm.running.numerics.eight_bits import EXPONENTS
from cutegemm.running.numerics.reference import TORCH_DTYPE
from cutegemm.running.recorded import recording

# operand types of functions with gradients; kernels support more
OPERANDS = (torch.float16, torch.bfloat16, torch.float32)
MULTIPLIED = tuple(TORCH_DTYPE[x] for x in DType if partners(x))
# types of block scales: fp32, torch's ue8m0, and uint8 that holds ue8m0 exponents
SCALES = tuple(x for x in (torch.float32, torch.uint8, EXPONENTS) if x is not None)


@dataclass(frozen=True)
class Wanted:
    """The shape and type of one output: a stored matrix, or a reduction's results.

    `order` lists a new matrix's axes in memory order, outermost first; None is row-major.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Call:
    """A described call: the problem, and its outputs, stored ones first."""

    problem: Problem
    outputs: tuple[Wanted, ...]


def describe(
    graph: Graph,
    request: Request,
    d_dtype: DType | None = None,
    d_major: str | None = None,
) -> Call:
    """Check the layouts and types of a call and describe it as a problem.

    Args:
        graph: the epilogue.
        request: the tensors.
        d_dtype, d_major: element type and unit-stride axis of a D that is not given; None means A's type, "n".

    Returns:
        The call, as if every address were a multiple of 16 bytes (`check.aligned` corrects that).

    Raises:
        InputError: naming the tensor, what it is, and the rule.
    """
    a, b, inputs, outs, kinds = request.a, request.b, request.inputs, request.outs, graph.tensors
    _check_tensors(graph, request)
    _check_devices(request)
    check_pair(a, b)
    k = a.shape[-1]
    if b.shape[-2] != k:
        turned = ", as b.T has" if b.shape[-1] == k else ""
        raise _shape_error("b", b, f"a is {tuple(a.shape)}, so b must have {k} rows (K){turned}")
    batch, lead = _batch(a, b)
    if graph.gated and b.shape[-1] % 2:
        raise _shape_error("b", b, "a gated pair needs an even number of columns")
    m, n = a.shape[-2], columns(graph, b.shape[-1])
    layout = Layouts(batch)
    read = []
    for name, kind in kinds.items():
        shapes = {"matrix": (m, n), "row": (n,), "col": (m,)}
        if kind in shapes:
            _check_shape(name, inputs[name], shapes[kind], lead)
        else:
            _check_blocks(graph, name, inputs[name], (m, b.shape[-1], k), lead)
        read.append((name, layout.of_input(inputs[name], kind)))
    stored, wanted = [], []
    for x in graph.stores:
        default = (
            as_dtype(x.dtype)
            if x.dtype
            else d_dtype
            if x.name == "d" and d_dtype
            else scaling.default_type(graph, as_dtype(a.dtype))
        )
        if (fault := element_types.fault(graph, x.name, default, as_dtype(a.dtype).whole)) is not None:
            raise field_error(InputError, f"epilogue.{x.name}" if x.dtype else "d_dtype", default, *fault)
        major = x.major or (d_major if x.name == "d" else None)
        operand, shown = _store(x, outs.get(x.name), layout, (*lead, m, n), default, major)
        stored.append((x.name, operand))
        wanted.append(shown)
    for x in graph.reductions:
        wanted.append(_reduced(x, lead, m, n))
        if x.name in outs:
            _check_reduction_out(x, outs[x.name], wanted[-1])
    problem = Problem(
        m=m,
        n=b.shape[-1],
        k=k,
        batch=batch,
        a=layout.of(a),
        b=layout.of(b),
        inputs=tuple(read),
        outputs=tuple(stored),
        device_scalars=tuple(x for x in graph.numbers if x in inputs),
    )
    return Call(problem, tuple(wanted))


def check_pair(a: Any, b: Any) -> None:
    """Check that kernels support this pair of operand types, each of which is legal by itself.

    Raises:
        InputError: no kernel supports the pair.
    """
    kind = as_dtype(a.dtype)
    if a.dtype == b.dtype or types_fault(kind, as_dtype(b.dtype)) is None:
        return
    rule, legal = f"must be a's dtype, {a.dtype}", [str(TORCH_DTYPE[x]) for x in partners(kind)]
    if len(legal) > 1:
        rule = f"must be {' or '.join(legal)}: the other operand is {a.dtype}"
    raise field_error(InputError, "b.dtype", b.dtype, rule)


def shown(name: str) -> str:
    """A tensor's name in messages; D is called `out`, as its argument is."""
    return "out" if name == "d" else name


def _shape_error(name: str, tensor: Any, rule: str) -> InputError:
    return field_error(InputError, f"{name}.shape", tuple(tensor.shape), rule)


@dataclass(frozen=True)
class Layouts:
    """Describes a call's tensors as operands of a problem with `batch` GEMMs."""

    batch: int

    def of(self, tensor: Any) -> Operand:
        """A matrix; a batch extent of 1 broadcasts."""
        return operand_of(tensor) if self.batch else dataclasses.replace(operand_of(tensor), batch=0)

    def of_input(self, tensor: Any, kind: str) -> Operand:
        """An epilogue's input; rows are 1 x N, columns M x 1."""
        if kind == "matrix":
            return self.of(tensor)
        if kind in BLOCK_KINDS:
            blocks = tensor.view(torch.uint8) if tensor.dtype == EXPONENTS else tensor
            # B's scales run along N, like its columns
            return self.of(blocks if kind == "blocks_m" else blocks.mT)
        return self.of(tensor.unsqueeze(-2 if kind == "row" else -1))


def _store(
    result: Result,
    given: Any,
    layout: Layouts,
    shape: tuple[int, ...],
    default: DType,
    major: str | None,
) -> tuple[Operand, Wanted]:
    """Describe a stored matrix of the given shape, ([L,] M, N): the given one, or the one to be allocated."""
    *lead, m, n = shape
    column_major = major == "m"
    order = (*range(len(lead)), len(lead) + 1, len(lead)) if column_major else None
    if given is not None:
        _check_out(result, given, shape)
        return layout.of(given), Wanted(result.name, shape, as_dtype(given.dtype), order)
    strides = (1, max(m, 1)) if column_major else (max(n, 1), 1)
    operand = Operand(dtype=default, rows=m, cols=n, strides=(*strides, m * n), batch=layout.batch)
    return operand, Wanted(result.name, shape, default, order)


def _check_tensors(graph: Graph, request: Request) -> None:
    """Check each tensor by itself: type, rank, dtype, layout, autograd."""
    given = request.tensors
    scalars = (name for name in graph.numbers if name in request.inputs)
    for name, role in ((x.name, x.role) for x in call_order.tensors(graph, scalars) if x.name in given):
        tensor, field = given[name], shown(name) if role.written else name
        check_tensor(field, tensor, role.ranks, _legal(element_types.of(name, role.types), request))
        if role.written and tensor.is_neg():
            rule = "must not be a negated view; pass the tensor that it is a view of"
            raise field_error(InputError, f"{field}.is_neg()", True, rule)


def _legal(types: str, request: Request) -> tuple[torch.dtype, ...]:
    """The legal torch types of a role. For block scales they include torch's ue8m0, which a problem holds as bytes."""
    whole = isinstance(request.a, torch.Tensor) and not request.a.is_floating_point()
    return SCALES if types == "scales" else tuple(TORCH_DTYPE[x] for x in element_types.legal(types, whole))


def _check_devices(request: Request) -> None:
    device = request.a.device
    for name, tensor in request.tensors.items():
        if tensor.device != device:
            rule = f"must be a's device, {device}"
            raise field_error(InputError, f"{shown(name)}.device", str(tensor.device), rule)


def _batch(a: Any, b: Any) -> tuple[int, tuple[int, ...]]:
    """The batch extent, and the leading dimensions of outputs."""
    batched = [t.shape[0] for t in (a, b) if t.dim() == 3]
    batch = max((x for x in batched if x != 1), default=1) if batched else 1
    if any(x == 0 for x in batched):
        batch = 0
    for name, t in (("a", a), ("b", b)):
        if t.dim() == 3 and t.shape[0] not in (1, batch):
            raise _shape_error(name, t, f"batch must be 1 or {batch}")
    return batch, (batch,) if batched else ()


def _check_shape(name: str, tensor: Any, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
    """Check a shape. An input has all batches, a batch extent of 1, or no batch axis."""
    legal = {(*lead, *shape), shape, *([(1, *shape)] if lead else [])}
    if tuple(tensor.shape) not in legal:
        raise _shape_error(name, tensor, f"must be {(*lead, *shape)}")


def _check_blocks(
    graph: Graph, name: str, tensor: Any, extents: tuple[int, int, int], lead: tuple[int, ...]
) -> None:
    """Check block scales: one matrix per batch, or one for all batches."""
    scale = next(x for x in graph.scales if x.name == name)
    wanted = scale.shape(*extents)
    legal = ((), lead, (1,)) if lead else ((),)
    if not scale.fits(tuple(tensor.shape[-2:]), wanted) or tuple(tensor.shape[:-2]) not in legal:
        what = "A, M x K" if scale.axis == "m" else "B, N x K"
        raise _shape_error(name, tensor, f"must be {wanted}, one for each {scale.extent} x 128 of {what}")


def _check_out(result: Result, out: Any, shape: tuple[int, ...]) -> None:
    name = shown(result.name)
    if tuple(out.shape) != shape:
        raise _shape_error(name, out, f"must be {shape}")
    if result.dtype is not None and as_dtype(out.dtype) != as_dtype(result.dtype):
        rule = f"the epilogue stores {result.dtype}"
        raise field_error(InputError, f"{name}.dtype", out.dtype, rule)
    axis = {"n": -1, "m": -2, None: None}[result.major]
    if axis is not None and out.shape[axis] > 1 and out.stride(axis) != 1:
        rule = f"the epilogue stores it {result.major}-major"
        raise field_error(InputError, f"{name}.stride()", out.stride(), rule)
    if _overlaps_itself(out):
        rule = f"two elements of {name} share memory"
        raise field_error(InputError, f"{name}.stride()", out.stride(), rule)


def _reduced(x: Result, lead: tuple[int, ...], m: int, n: int) -> Wanted:
    """Describe a reduction's results, or block scales with adjacent rows and contiguous batches."""
    if x.kind != SCALE:
        return Wanted(x.name, (*lead, *x.by_axis((n,), (m,), ())), DType.FP32)
    blocks, _, rows = x.shape(1, m, n, (0, 0, 0))
    order = (2, 0, 1) if lead else (1, 0)
    return Wanted(x.name, (*lead, rows, blocks), DType.UINT8 if x.exponents else DType.FP32, order)


def _check_reduction_out(result: Result, out: Any, wanted: Wanted) -> None:
    if result.partial:
        rule = "partial results have a layout that depends on the tile, so they cannot be given"
        raise InputError(rule, field=result.name)
    dtype, shape = TORCH_DTYPE[wanted.dtype], wanted.shape
    ordered = out.permute(wanted.order) if wanted.order and out.dim() == len(shape) else out
    if tuple(out.shape) != shape or out.dtype != dtype or not ordered.is_contiguous():
        what = f"{tuple(out.shape)} of {out.dtype}"
        how = f"contiguous in the order {wanted.order} of its dimensions" if wanted.order else "contiguous"
        raise InputError(f"is {what}, must be {shape} of {dtype}, {how}", field=result.name)


def check_tensor(name: str, tensor: Any, ranks: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    """Check one tensor by itself: type, layout, rank, dtype, autograd.

    Raises:
        InputError: naming the tensor, what it is, and the rule.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"must be a torch.Tensor, got {type(tensor).__name__}", field=name)
    if tensor.is_nested:
        raise field_error(InputError, name, tensor, "must be a tensor of one shape, not a nested one")
    if tensor.layout is not torch.strided:
        raise field_error(InputError, f"{name}.layout", tensor.layout, "must be strided")
    if tensor.dim() not in ranks:
        many = " or ".join(str(x) for x in ranks)
        what = " (matrix, or batch of them)" if ranks == (2, 3) else ""
        raise _shape_error(name, tensor, f"must have {many} dimensions{what}")
    if tensor.dtype not in dtypes:
        names = [str(x).removeprefix("torch.") for x in dtypes]
        listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
        raise field_error(InputError, f"{name}.dtype", tensor.dtype, f"must be {listed}")
    if recording(tensor):
        rule = "there is no backward pass; use torch.no_grad() or detach()"
        raise field_error(InputError, f"{name}.requires_grad", True, rule)


def _overlaps_itself(tensor: Any) -> bool:
    """Whether two indices may share memory: some stride does not exceed the span of all smaller strides."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


__all__ = [
    "MULTIPLIED",
    "OPERANDS",
    "SCALES",
    "Call",
    "Layouts",
    "Wanted",
    "check_pair",
    "check_tensor",
    "describe",
    "shown",
]
