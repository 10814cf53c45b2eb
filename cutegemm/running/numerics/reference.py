# SPDX-License-Identifier: Apache-2.0
"""The reference in torch: a GEMM and an epilogue graph, for CPU tensors and for checking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.graph import STORE, Graph, Node, Result
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.running.numerics.eight_bits import powers, quantised

_INT32 = torch.iinfo(torch.int32)
_WORD = 0xFFFF_FFFF
# batch, row and column of D's first element
ORIGIN = (0, 0, 0)
# Philox4x32, Salmon et al., SC'11, section 4.3 and Random123
_MULTIPLIERS = (0xD251_1F53, 0xCD9E_8D57)
_WEYL = (0x9E37_79B9, 0xBB67_AE85)
TORCH_DTYPE = {
    DType.FP32: torch.float32,
    DType.FP16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.FP8_E4M3: torch.float8_e4m3fn,
    DType.FP8_E5M2: torch.float8_e5m2,
    DType.INT8: torch.int8,
    DType.UINT8: torch.uint8,
    DType.INT32: torch.int32,
}
# all operations but "random", which needs the shape
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "abs": torch.abs,
    "min": torch.minimum,
    "max": torch.maximum,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "floor": torch.floor,
    "round": torch.round,
    "cast": lambda x, dtype: round_to(x, TORCH_DTYPE[DType(dtype)]).to(x.dtype),
    "where": torch.where,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
}


def evaluate(
    graph: Graph,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, Any],
    dtype: torch.dtype,
    origin: tuple[int, int, int] = ORIGIN,
) -> dict[str, torch.Tensor]:
    """All outputs by name: a @ b and the graph, computed in `dtype` and not rounded to the outputs' types.

    Reductions are finished, also partial ones; `combine` converts a kernel's partial results to that form.

    Args:
        graph: the epilogue.
        a: (M, K) or (L, M, K); b: (K, N) or (L, K, N), any dtype. If gated, N (M for a swapped graph) is twice D's.
        inputs: rows (N,) or (L, N), columns (M,) or (L, M), matrices (M, N) or (L, M, N), any dtype, with
            D's N; scalars and integers as Python numbers or 0-d tensors.
        dtype: torch.float32 or torch.float64.
        origin: batch, first row and first column if this is a part of D, for random numbers, which depend on them.

    Returns:
        Stored outputs (M, N) or (L, M, N); reductions over axis 0 (N,), over 1 (M,), over all (), each with
        a leading L if the GEMM has one.
    """
    accumulators = products(graph, a, b, inputs, dtype)
    shape, device = next(iter(accumulators.values())).shape, a.device

    def leaf(node: Node) -> torch.Tensor:
        if node.op == "acc":
            return accumulators[None if node.value is None else str(node.value)]
        if node.op == "const":
            return torch.tensor(node.value, dtype=dtype, device=device)
        if node.op == "integer":
            return torch.as_tensor(inputs[str(node.value)], device=device).to(torch.int64)
        return broadcastable(node.op, passed(inputs[str(node.value)], device).to(dtype))

    def random(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        return uniform(seed, offset, shape, device, graph.swapped, origin).to(dtype)

    values = graph.evaluate(leaf, {**OPERATIONS, "random": random})
    return {x.name: _result(x, values[x.node].expand(shape)) for x in graph.outputs}


def passed(value: Any, device: torch.device) -> torch.Tensor:
    """An input of an epilogue as a kernel gets it: a number is fp32, whatever torch's default type."""
    kind = torch.float32 if isinstance(value, float) else None
    return torch.as_tensor(value, dtype=kind, device=device)


def products(
    graph: Graph, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any], dtype: torch.dtype
) -> dict[str | None, torch.Tensor]:
    """The accumulators by name, (M, N) or (L, M, N): a @ b as None, or its "gate" and "up" parts.

    With block scales they are sums over blocks of K: partial sums times both scales, whose product is fp32,
    as in kernels. Integer sums saturate at 32 bits, except under block
    scales: sums over 128 elements cannot reach 32 bits.
    """
    x, y = a.to(dtype), b.to(dtype)
    if graph.scales:
        product = _scaled_sums(graph, x, y, inputs)
    else:
        product = torch.matmul(x, y)
        if not a.dtype.is_floating_point:
            product = product.clamp(_INT32.min, _INT32.max)
    if graph.gated is None:
        return {None: product}
    axis = -2 if graph.gated_axis == "m" else -1
    half = product.shape[axis] // 2
    shape = (2, half) if graph.gated == "halves" else (half, 2)
    gate, up = torch.unflatten(product, axis, shape).unbind(axis - 1 if graph.gated == "halves" else axis)
    return {"gate": gate, "up": up}


def _scaled_sums(graph: Graph, a: torch.Tensor, b: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """a @ b with the partial sums over blocks of K multiplied by scales."""
    scales = []
    for x in graph.scales:
        rows = a.shape[-2] if x.axis == "m" else b.shape[-1]
        # (..., M, 1, blocks of K) or (..., 1, N, blocks of K)
        wide = powers(inputs[x.name]).float().repeat_interleave(x.extent, -2)[..., :rows, :]
        scales.append(wide.unsqueeze(-2 if x.axis == "m" else -3))
    total: torch.Tensor = torch.matmul(a[..., :0], b[..., :0, :])
    for first in range(0, a.shape[-1], K_BLOCK):
        part = torch.matmul(a[..., first : first + K_BLOCK], b[..., first : first + K_BLOCK, :])
        one, *other = (x[..., first // K_BLOCK] for x in scales)
        total = total + part * (one * other[0] if other else one).to(a.dtype)
    return total


def taken(x: torch.Tensor, ignored: int) -> torch.Tensor:
    """fp32 operands rounded to nearest even, for an instruction that ignores `ignored` low bits."""
    if not ignored:
        return x
    bits = x.view(torch.int32)
    near = (bits + ((1 << ignored - 1) - 1) + (bits >> ignored & 1)) & -(1 << ignored)
    return torch.where(x.isfinite(), near, bits & -(1 << ignored)).view(x.dtype)


def round_to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert x as a kernel stores it: nearest even; fp8 and integers saturate; NaN becomes the integer 0."""
    if not dtype.is_floating_point:
        kept = torch.iinfo(dtype)
        return x.double().nan_to_num(0.0, kept.max, kept.min).round().clamp(kept.min, kept.max).to(dtype)
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(dtype)


def combine(kind: str, partials: torch.Tensor, dim: int | tuple[int, ...]) -> torch.Tensor:
    """A reduction ("sum", "max" or "logsumexp") of values or partial results along some axes.

    Over no elements the sum is 0, and the maximum and the logsumexp are -inf.
    """
    if kind == "sum":
        return partials.sum(dim)
    dims = {d % partials.dim() for d in ((dim,) if isinstance(dim, int) else dim)}
    if any(partials.shape[d] == 0 for d in dims):
        shape = [n for d, n in enumerate(partials.shape) if d not in dims]
        return partials.new_full(shape, float("-inf"))
    return partials.amax(dim) if kind == "max" else partials.logsumexp(dim)


def uniform(
    seed: torch.Tensor,
    offset: torch.Tensor,
    shape: tuple[int, ...],
    device: Any,
    swapped: bool = False,
    origin: tuple[int, int, int] = ORIGIN,
) -> torch.Tensor:
    """The "random" operation for an (M, N) or (L, M, N) matrix: fp64 in [0, 1), by an element's index in D.

    For a swapped graph the matrix is D's transpose. `origin` is the batch, row and column of its first element in D.
    """
    if swapped:
        return uniform(seed, offset, (*shape[:-2], shape[-1], shape[-2]), device, origin=origin).mT
    place = torch.meshgrid(*(torch.arange(n, device=device) for n in shape), indexing="ij")
    batch = (place[0] if len(shape) == 3 else torch.zeros_like(place[0])) + origin[0]
    word = philox(
        (place[-1] + origin[2], place[-2] + origin[1], batch, offset & _WORD),
        (seed & _WORD, torch.zeros_like(seed)),
    )[0]
    return (word >> 8).to(torch.float64) * 2.0**-24


def philox(
    counter: tuple[torch.Tensor, ...], key: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Philox4x32-10: four 32-bit words from four counter words and two key words, as int64 tensors."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap modulo 2^64, so all 64 bits are right
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _WORD) ^ c1 ^ k0,
            p1 & _WORD,
            ((p0 >> 32) & _WORD) ^ c3 ^ k1,
            p0 & _WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def broadcastable(kind: str, x: torch.Tensor) -> torch.Tensor:
    """An input with axes added so that it broadcasts over (L, M, N)."""
    if kind == "row":
        return x.unsqueeze(-2)
    return x.unsqueeze(-1) if kind == "col" else x


def _result(x: Result, value: torch.Tensor) -> torch.Tensor:
    """An output from the values of its node; exponents become numbers."""
    if x.block:
        how = ("block", x.block, K_BLOCK), TORCH_DTYPE[as_dtype(x.dtype)]
        values, scale = quantised(value, *how, exponents=x.exponents)
        scale = scale.view(torch.uint8) if x.exponents else scale
        return (values if x.kind == STORE else scale).to(value.dtype)
    if x.kind == STORE:
        return value
    return combine(x.kind, value, x.by_axis(-2, -1, (-2, -1)))
