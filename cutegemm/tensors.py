# SPDX-License-Identifier: Apache-2.0
"""torch tensors seen as a `Problem`: every check of `run`'s inputs, before anything is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import Graph, Result
from cutegemm.errors import InputError, check, field_error
from cutegemm.problem import Operand, Problem, columns

ONLY_C_ITSELF = "; it may only be c itself (same pointer, shape, strides and dtype)"
_OPERANDS = {"torch.float16", "torch.bfloat16", "torch.float32"}
_INPUTS = _OPERANDS | {"torch.float8_e4m3fn", "torch.float8_e5m2"}


@dataclass(frozen=True)
class Wanted:
    """One output of a call as the caller sees it: a stored matrix, or a reduction's results."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    order: tuple[int, ...] | None = (
        None  # of a new matrix's axes in memory, outermost first; None is row-major
    )


@dataclass(frozen=True)
class Call:
    """A validated call: the problem, and its outputs, stored ones first."""

    problem: Problem
    outputs: tuple[Wanted, ...]


def validate(
    a: Any,
    b: Any,
    graph: Graph,
    inputs: Mapping[str, Any],
    outs: Mapping[str, Any],
    d_dtype: DType | None,
    d_major: str | None = None,
) -> Call:
    """Check ranks, shapes, dtypes, devices and autograd of a call and describe it.

    Args:
        a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); 2-D operands serve every batch.
        graph: the epilogue.
        inputs: its tensors by name: matrices (M, N) or (L, M, N), rows (N,) or (L, N), columns (M,) or
            (L, M); and its scalars that are tensors. Of a gated graph N is half of B's columns.
        outs: the outputs given, by name; matrices (M, N) or (L, M, N).
        d_dtype, d_major: D's element type and unit-stride axis when it is not given; None means A's type, "n".

    Raises:
        InputError: naming the tensor, what it is, and the rule.
    """
    import torch

    kinds = graph.tensors
    _check_tensor("a", a, (2, 3), _OPERANDS, torch)
    _check_tensor("b", b, (2, 3), _OPERANDS, torch)
    for name, tensor in inputs.items():
        ranks = {"matrix": (2, 3), "row": (1, 2), "col": (1, 2)}.get(kinds.get(name), (0,))
        _check_tensor(name, tensor, ranks, _INPUTS if name in kinds else {"torch.float32"}, torch)
    for name, tensor in outs.items():
        ranks = (2, 3) if name in {x.name for x in graph.stores} else (0, 1, 2)
        _check_tensor(_shown(name), tensor, ranks, _INPUTS, torch)
    for name, tensor in (("b", b), *inputs.items(), *((_shown(x), t) for x, t in outs.items())):
        if tensor.device != a.device:
            raise field_error(
                InputError, f"{name}.device", str(tensor.device), f"must be a's device, {a.device}"
            )
    check(a.dtype == b.dtype, InputError, f"b.dtype={b.dtype}: must be a's dtype, {a.dtype}")
    k = a.shape[-1]
    if b.shape[-2] != k:
        rule = f"a is {tuple(a.shape)}, so b must have {k} rows (K)"
        raise InputError(f"b.shape={tuple(b.shape)}: {rule}")
    batch, lead = _batch(a, b)
    if graph.gated and b.shape[-1] % 2:
        raise InputError(f"b.shape={tuple(b.shape)}: a gated pair needs an even number of columns")
    m, n = a.shape[-2], columns(graph, b.shape[-1])
    read = []
    for name, kind in kinds.items():
        _check_shape(name, inputs[name], {"matrix": (m, n), "row": (n,), "col": (m,)}[kind], lead)
        read.append((name, _input(inputs[name], kind, batch)))
    stored, wanted = [], []
    for x in graph.stores:
        given = outs.get(x.name)
        kind = as_dtype(x.dtype) if x.dtype else d_dtype if x.name == "d" and d_dtype else as_dtype(a.dtype)
        column_major = (x.major or (d_major if x.name == "d" else None)) == "m"
        order = (*range(len(lead)), len(lead) + 1, len(lead)) if column_major else None
        if given is not None:
            _check_out(x, given, (*lead, m, n))
            kind = as_dtype(given.dtype)
        operand = (
            _operand(given, batch) if given is not None else _contiguous(m, n, batch, kind, column_major)
        )
        stored.append((x.name, operand))
        wanted.append(Wanted(x.name, (*lead, m, n), kind, order))
    for x in graph.reductions:
        shape = (*lead, *x.by_axis((n,), (m,), ()))
        if x.name in outs:
            _check_reduction_out(x, outs[x.name], shape)
        wanted.append(Wanted(x.name, shape, DType.FP32))
    described = Problem(
        m=m, n=b.shape[-1], k=k, batch=batch, a=_operand(a, batch), b=_operand(b, batch), inputs=tuple(read),
        outputs=tuple(stored), device_scalars=tuple(x for x in graph.numbers if x in inputs),
    )  # fmt: skip
    check_overlaps({"a": a, "b": b, **inputs}, dict(outs), kinds)
    return Call(described, tuple(wanted))


def _shown(name: str) -> str:
    """An output's name in messages: D is passed as `out`."""
    return "out" if name == "d" else name


def _batch(a: Any, b: Any) -> tuple[int, tuple[int, ...]]:
    """The batch extent, and the leading dimension that outputs have because of it."""
    batched = [t.shape[0] for t in (a, b) if t.dim() == 3]
    batch = max((x for x in batched if x != 1), default=1) if batched else 1
    if any(x == 0 for x in batched):
        batch = 0
    for name, t in (("a", a), ("b", b)):
        if t.dim() == 3 and t.shape[0] not in (1, batch):
            raise InputError(f"{name}.shape={tuple(t.shape)}: batch must be 1 or {batch}")
    return batch, (batch,) if batched else ()


def _check_shape(name: str, tensor: Any, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
    """An input has a batch of its own, one for all, or none."""
    legal = {(*lead, *shape), shape, *([(1, *shape)] if lead else [])}
    if tuple(tensor.shape) not in legal:
        raise InputError(f"{name}.shape={tuple(tensor.shape)}: must be {(*lead, *shape)}")


def _check_out(result: Result, out: Any, shape: tuple[int, ...]) -> None:
    shown = _shown(result.name)
    if tuple(out.shape) != shape:
        raise InputError(f"{shown}.shape={tuple(out.shape)}: must be {shape}")
    if result.dtype is not None and as_dtype(out.dtype) != as_dtype(result.dtype):
        raise InputError(f"{shown}.dtype={out.dtype}: the epilogue stores {result.dtype}")
    axis = {"n": -1, "m": -2, None: None}[result.major]
    if axis is not None and out.shape[axis] > 1 and out.stride(axis) != 1:
        raise InputError(f"{shown}.stride()={out.stride()}: the epilogue stores it {result.major}-major")
    if _overlaps_itself(out):
        raise InputError(f"{shown}.stride()={out.stride()}: two elements of {shown} share memory")


def _check_reduction_out(result: Result, out: Any, shape: tuple[int, ...]) -> None:
    if result.partial:
        raise InputError(f"{result.name}: partial results lie as the tile has them and cannot be given")
    if tuple(out.shape) != shape or str(out.dtype) != "torch.float32" or not out.is_contiguous():
        what = f"{tuple(out.shape)} of {out.dtype}"
        raise InputError(f"{result.name}: is {what}, must be {shape} of torch.float32, contiguous")


def _check_tensor(name: str, tensor: Any, ranks: tuple[int, ...], dtypes: set[str], torch: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name}: must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dim() not in ranks:
        many = " or ".join(str(x) for x in ranks)
        what = " (matrix, or batch of them)" if ranks == (2, 3) else ""
        raise InputError(f"{name}.shape={tuple(tensor.shape)}: must have {many} dimensions{what}")
    if str(tensor.dtype) not in dtypes:
        names = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
        known = [x for x in names if f"torch.{x}" in dtypes]
        listed = f"{', '.join(known[:-1])} or {known[-1]}" if len(known) > 1 else known[0]
        raise InputError(f"{name}.dtype={tensor.dtype}: must be {listed}")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name}.layout={tensor.layout}: must be strided")
    if tensor.requires_grad and torch.is_grad_enabled():
        rule = "there is no backward pass; use torch.no_grad() or detach()"
        raise InputError(f"{name}.requires_grad=True: {rule}")


def _operand(tensor: Any, batch: int) -> Operand:
    """How a matrix lies in memory; a batch extent of 1 broadcasts."""
    strides = tensor.stride()
    rows, cols = tensor.shape[-2:]
    batches, step = (tensor.shape[0], strides[0]) if tensor.dim() == 3 else (1, 0)
    if batches > 1 and step == 0:
        batches = 1
    return Operand(
        dtype=as_dtype(tensor.dtype), rows=rows, cols=cols, strides=(strides[-2], strides[-1], step),
        batch=batches if batch else 0, align=alignment(tensor.data_ptr()),
    )  # fmt: skip


def _input(tensor: Any, kind: str, batch: int) -> Operand:
    """How an epilogue input lies in memory: rows are 1 x N, columns M x 1."""
    if kind == "matrix":
        return _operand(tensor, batch)
    return _operand(tensor.unsqueeze(-2 if kind == "row" else -1), batch)


def _contiguous(m: int, n: int, batch: int, dtype: DType, column_major: bool) -> Operand:
    strides = (1, max(m, 1)) if column_major else (max(n, 1), 1)
    return Operand(dtype=dtype, rows=m, cols=n, strides=(*strides, m * n), batch=batch)


def alignment(pointer: int) -> int:
    """The largest power of two, at most 16, that divides an address."""
    return min(pointer & -pointer, 16) or 16


def extent_bytes(tensor: Any) -> int:
    """Bytes from a tensor's first element to past its last; 0 when it is empty."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


def _overlaps_itself(tensor: Any) -> bool:
    """Whether two indices may share memory: sorted by stride, each must pass all it steps over."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def same_layout(x: Any, y: Any) -> bool:
    """Shape, strides and dtype agree."""
    return x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype


def check_overlaps(inputs: Mapping[str, Any], outs: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """An output may be a matrix input itself; other shared memory would let one tile read what another wrote."""
    done: dict[str, Any] = {}
    for name, out in outs.items():
        start, size = out.data_ptr(), extent_bytes(out)
        for other, tensor in (*inputs.items(), *done.items()):
            matrix = kinds.get(other) == "matrix"
            first, reach = tensor.data_ptr(), extent_bytes(tensor)
            if not (size and reach and first < start + size and start < first + reach):
                continue
            if not (matrix and first == start and same_layout(tensor, out)) and not apart(out, tensor):
                raise overlap(_shown(name), _shown(other) if other in outs else other, matrix)
        done[name] = out


def apart(x: Any, y: Any) -> bool:
    """Whether two matrices whose address ranges overlap share no element: other columns, or rows, of one buffer.

    That is decided where both have the same strides, one of them 1, and the other the buffer's pitch.
    """
    if x.dim() < 2 or x.stride() != y.stride() or x.dtype != y.dtype:
        return False
    row, col = x.stride()[-2:]
    pitch, axis = (row, -1) if col == 1 else (col, -2)
    if min(row, col) != 1 or pitch <= 1 or any(step % pitch for step in x.stride()[:-2]):
        return False
    base = min(x.data_ptr(), y.data_ptr())
    (a, m), (b, n) = (((t.data_ptr() - base) // t.element_size() % pitch, t.shape[axis]) for t in (x, y))
    return a + m <= pitch and b + n <= pitch and (a + m <= b or b + n <= a)


def overlap(name: str, other: str, matrix: bool) -> InputError:
    """The error of an output that shares memory with another tensor."""
    itself = ONLY_C_ITSELF.replace(" c ", f" {other} ") if matrix else ""
    return InputError(f"{name}: overlaps {other} in memory{itself}")
