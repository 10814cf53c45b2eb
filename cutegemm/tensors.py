# SPDX-License-Identifier: Apache-2.0
"""torch tensors seen as a `Problem`: every check of `run`'s inputs, before anything is launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.dtypes import DType, as_dtype
from cutegemm.errors import InputError, check, field_error
from cutegemm.problem import Operand, Problem

ONLY_C_ITSELF = "; it may only be c itself (same pointer, shape, strides and dtype)"
_SUPPORTED = {"torch.float16", "torch.bfloat16", "torch.float32"}


@dataclass(frozen=True)
class Call:
    """A validated call: the problem, and D's shape as the caller sees it."""

    problem: Problem
    out_shape: tuple[int, ...]


def validate(a: Any, b: Any, c: Any, out: Any, d_dtype: DType | None) -> Call:
    """Check ranks, shapes, dtypes, devices and autograd of a call and describe it.

    Args:
        a: (M, K) or (L, M, K); b: (K, N) or (L, K, N); 2-D operands serve every batch.
        c: None or broadcastable-by-batch (M, N) or (L, M, N); out: None or D's exact shape.
        d_dtype: D's element type when `out` is None; None means A's.

    Raises:
        InputError: naming the tensor, what it is, and the rule.
    """
    import torch

    tensors = {
        name: t for name, t in (("a", a), ("b", b), ("c", c), ("out", out)) if t is not None or name in "ab"
    }
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, torch)
    for name in ("b", "c", "out"):
        if name in tensors and tensors[name].device != a.device:
            raise field_error(
                InputError, f"{name}.device", str(tensors[name].device), f"must be a's device, {a.device}"
            )
    check(a.dtype == b.dtype, InputError, f"b.dtype={b.dtype}: must be a's dtype, {a.dtype}")
    k = a.shape[-1]
    if b.shape[-2] != k:
        rule = f"a is {tuple(a.shape)}, so b must have {k} rows (K)"
        raise InputError(f"b.shape={tuple(b.shape)}: {rule}")
    batched = [t.shape[0] for t in (a, b) if t.dim() == 3]
    batch = max((x for x in batched if x != 1), default=1) if batched else 1
    if any(x == 0 for x in batched):
        batch = 0
    for name, t in (("a", a), ("b", b)):
        if t.dim() == 3 and t.shape[0] not in (1, batch):
            raise InputError(f"{name}.shape={tuple(t.shape)}: batch must be 1 or {batch}")
    m, n = a.shape[-2], b.shape[-1]
    shape = (batch, m, n) if batched else (m, n)
    if c is not None and tuple(c.shape) not in {shape, (m, n), (1, m, n)}:
        raise InputError(f"c.shape={tuple(c.shape)}: must be {shape}")
    if c is not None and not batched and c.dim() == 3:
        raise InputError(f"c.shape={tuple(c.shape)}: must be {shape}")
    if out is not None and tuple(out.shape) != shape:
        raise InputError(f"out.shape={tuple(out.shape)}: must be {shape}")
    if out is not None:
        check(
            not _overlaps_itself(out),
            InputError,
            f"out.stride()={out.stride()}: two elements of out share memory",
        )
        check_overlap(a, b, c, out)
    d_kind = as_dtype(out.dtype) if out is not None else d_dtype or as_dtype(a.dtype)
    d = _operand(out, batch) if out is not None else _contiguous(m, n, batch, d_kind)
    described = Problem(
        m=m, n=n, k=k, batch=batch, a=_operand(a, batch), b=_operand(b, batch),
        c=None if c is None else _operand(c, batch), d=d,
    )  # fmt: skip
    return Call(described, shape)


def _check_tensor(name: str, tensor: Any, torch: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name}: must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dim() not in (2, 3):
        raise InputError(
            f"{name}.shape={tuple(tensor.shape)}: must have 2 or 3 dimensions (matrix, or batch of them)"
        )
    if str(tensor.dtype) not in _SUPPORTED:
        raise InputError(f"{name}.dtype={tensor.dtype}: must be float16, bfloat16 or float32")
    if tensor.layout is not torch.strided:
        raise InputError(f"{name}.layout={tensor.layout}: must be strided")
    if tensor.requires_grad and torch.is_grad_enabled():
        rule = "there is no backward pass; use torch.no_grad() or detach()"
        raise InputError(f"{name}.requires_grad=True: {rule}")


def _operand(tensor: Any, batch: int) -> Operand:
    """How a tensor lies in memory; a batch extent of 1 broadcasts."""
    strides = tensor.stride()
    rows, cols = tensor.shape[-2:]
    batches, step = (tensor.shape[0], strides[0]) if tensor.dim() == 3 else (1, 0)
    if batches > 1 and step == 0:
        batches = 1
    return Operand(
        dtype=as_dtype(tensor.dtype), rows=rows, cols=cols, strides=(strides[-2], strides[-1], step),
        batch=batches if batch else 0, align=alignment(tensor.data_ptr()),
    )  # fmt: skip


def _contiguous(m: int, n: int, batch: int, dtype: DType) -> Operand:
    return Operand(dtype=dtype, rows=m, cols=n, strides=(max(n, 1), 1, m * n), batch=batch)


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


def same_matrix(x: Any, y: Any) -> bool:
    """The same elements in the same places: pointer, shape, strides and dtype agree."""
    return (
        x.data_ptr() == y.data_ptr()
        and x.shape == y.shape
        and x.stride() == y.stride()
        and x.dtype == y.dtype
    )


def check_overlap(a: Any, b: Any, c: Any, out: Any) -> None:
    """`out` may be `c` itself; any other shared memory would let one tile read what another wrote."""
    start, size = out.data_ptr(), extent_bytes(out)
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        if tensor is None or (name == "c" and same_matrix(c, out)):
            continue
        first = tensor.data_ptr()
        if size and first < start + size and start < first + extent_bytes(tensor) and extent_bytes(tensor):
            raise InputError(f"out: overlaps {name} in memory{ONLY_C_ITSELF if name == 'c' else ''}")
