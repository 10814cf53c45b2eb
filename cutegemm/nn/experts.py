# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts, from routing to the weighted sum of the experts' results, in two grouped launches.

The first launch applies SwiGLU and the routing weights: w (h W) = (w h) W. Without gradients it also gathers tokens.
With gradients they are copied in the order of experts. The gradient of a routing weight w is the sum over a row of h
times the gradient of w h: the GEMM that computes that gradient sums its column tiles, and a small launch adds those.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.epilogue.functions import silu
from cutegemm.epilogue.trace import Col, define
from cutegemm.epilogue.value import Value
from cutegemm.errors import InputError, field_error
from cutegemm.nn.linear import Linear
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.dispatch import recording
from cutegemm.ops.fallback import FALLBACKS, HALF, autocast_type, untouched
from cutegemm.ops.gradients.once import final, sources_of
from cutegemm.ops.groups.grouped import grouped_mm
from cutegemm.ops.groups.row_sum import row_sum
from cutegemm.ops.perceptron import grouped_perceptron
from cutegemm.ops.transforms.group_sharding import begin, part, sharded, whole
from cutegemm.running import tangents
from cutegemm.running.arguments.describe import OPERANDS
from cutegemm.spec import GemmSpec

MOST = 2**31 - 1  # largest width or count
# of the router's and the experts' GEMMs, if a token's result must not depend on the other tokens
INVARIANT = GemmSpec(batch_invariant=True)


@define(gated="halves")
def WEIGHTED(gate: Value, up: Value, *, weights: Col) -> Value:
    """SwiGLU times the routing weight of the row."""
    return silu(gate) * up * weights


class Routes(NamedTuple):
    """The order of the R = T k pairs (token, expert) after a stable sort by expert.

    Attributes:
        order: (R,), the index of each sorted pair in the unsorted list, t * k + j.
        rows: (R,), the token of each pair.
        place: (T, k), the inverse of `order`: the sorted position of each token's pairs.
        bounds: (experts + 1,), the first sorted position of each expert, then the end of the last.
    """

    order: Tensor
    rows: Tensor
    place: Tensor
    bounds: Tensor


def routes(experts: Tensor, count: int) -> Routes:
    """Sort the pairs of `experts` (T, k) by expert. Pairs with an index outside [0, count) lie outside the bounds.

    The host does not wait for the device.
    """
    # int32 keys, because a radix sort takes one pass per byte of the key
    named, order = experts.reshape(-1).to(torch.int32).sort(stable=True)
    pairs = order.shape[0]
    steps = torch.arange(pairs + count + 1, dtype=torch.int32, device=experts.device)
    bounds = torch.searchsorted(named, steps[: count + 1], out_int32=True)
    place = torch.empty_like(named).scatter_(0, order, steps[:pairs])
    return Routes(order, order // experts.shape[1], place.view(experts.shape), bounds)


def summed(y: Tensor, place: Tensor) -> Tensor:
    """The sum of each token's rows of y, (T, N): in the order of its experts, in fp32, with one rounding."""
    return row_sum(y, place)


class _Dispatched(torch.autograd.Function):
    """A copy of the token of each sorted pair, (R, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return row_sum(x, rows[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return summed(grads[0], *ctx.saved_tensors), None, None


class _Combined(torch.autograd.Function):
    """The weighted sum of each token's rows, (T, N)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weights: Tensor, order: Tensor, rows: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(y, weights, order, rows, place)
        return torch.embedding(y, place).mul_(weights[..., None]).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        y, weights, order, rows, place = ctx.saved_tensors
        sources = sources_of(grads[0], y, weights)
        with torch.no_grad():
            above = row_sum(grads[0], rows[:, None])
            each = (above * y).sum(1, dtype=torch.float32).index_select(0, place.view(-1))
            above.mul_(weights.reshape(-1).index_select(0, order)[:, None])
        return *final((above, each.view(weights.shape).to(weights.dtype)), sources), None, None, None


class _Ordered(torch.autograd.Function):
    """The weight of each sorted pair, (R,), from (T, k)."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return weights.reshape(-1).index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (place,) = ctx.saved_tensors
        return grads[0].index_select(0, place.view(-1)).view(place.shape), None, None


class _Summed(torch.autograd.Function):
    """`summed`, (T, N)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, rows: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(rows, place)
        return summed(y, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, _ = ctx.saved_tensors
        return row_sum(grads[0], rows[:, None]), None, None


def dispatched(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """The token of each pair, (R, H), from x (T, H) and fields of `Routes`."""
    if not torch.compiler.is_compiling():
        tangents.refuse((("x", x),))
    found: Tensor = _Dispatched.apply(x, rows, place)  # type: ignore[no-untyped-call]
    return found


def _recorded(
    x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, to: Routes, fallback: str, invariant: bool
) -> Tensor:
    """`mixture` of sorted pairs, recorded by autograd."""
    if not torch.compiler.is_compiling():
        tangents.refuse((("weights", weights),))
    sorted_weights = _Ordered.apply(weights, to.order, to.place)  # type: ignore[no-untyped-call]
    rows = dispatched(x, to.rows, to.place)
    y = grouped_perceptron(
        rows, gate_up.mT, WEIGHTED, down.mT, to.bounds, fallback, invariant, weights=sorted_weights
    )
    found: Tensor = _Summed.apply(y, to.rows, to.place)  # type: ignore[no-untyped-call]
    return found


def combined(y: Tensor, weights: Tensor, order: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """The weighted sum of each token's rows of y, (T, N), from weights (T, k) and fields of `Routes`."""
    if not torch.compiler.is_compiling():
        tangents.refuse((("y", y), ("weights", weights)))
    found: Tensor = _Combined.apply(y, weights, order, rows, place)  # type: ignore[no-untyped-call]
    return found


def mixture(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    fallback: str = "torch",
    batch_invariant: bool = False,
) -> Tensor:
    """sum_j weights[t, j] * (silu(x gate_e) * (x up_e)) down_e with e = experts[t, j]: (T, H).

    The host does not wait for the device.

    Args:
        x: (T, H).
        experts, weights: (T, k), of each token. An out-of-range expert gives 0.
        gate_up: (E, H, 2 I), gates before up parts; down: (E, I, H). DTensors sharded by expert give partial sums.
        fallback: as of `grouped_mm`.
        batch_invariant: whether a token's bits must not depend on the other tokens.
    """
    if sharded(gate_up):
        spread: Any = gate_up
        cuts, mesh = ["g" if p.is_shard(0) else "" for p in spread.placements], spread.device_mesh
        x, experts, weights = (part(t, (), cuts) for t in (x, experts, weights))
        experts = experts - begin("g", gate_up.shape[0], cuts, mesh)
        gate_up, down = (part(t, ("g",), cuts) for t in (gate_up, down))
        own = mixture(x, experts, weights, gate_up, down, fallback, batch_invariant)
        found: Tensor = whole(own, (), cuts, mesh, {})
        return found
    to = routes(experts, gate_up.shape[0])
    if recording(x, weights, gate_up, down) and not untouched():
        return _recorded(x, gate_up, down, weights, to, fallback, batch_invariant)
    # a literal alpha, because Dynamo fails on float defaults in checkpointed regions (docs/pytorch.md)
    told: dict[str, Any] = {"cu_seqlens": to.bounds, "alpha": 1.0, "fallback": fallback}
    told["spec"] = INVARIANT if batch_invariant else None
    sorted_weights = weights.reshape(-1).index_select(0, to.order)
    hidden = grouped_mm(
        x, gate_up, rows=to.rows, epilogue=WEIGHTED, weights=sorted_weights, tail="undefined", **told
    )
    return summed(grouped_mm(hidden, down, **told), to.place)


class _Router(Linear):
    """A linear layer whose logits of a token do not depend on the other tokens."""

    def spec_for(self, weight: Tensor) -> GemmSpec:
        """The spec of a call."""
        return INVARIANT


class MoE(torch.nn.Module):
    """A mixture of SwiGLU experts: softmax routing to `top_k` of them, and optionally a shared expert.

    Parameters: "router.weight" (E, H), "gate_up_weight" (E, 2 I, H), "down_weight" (E, H, I).

    Args:
        hidden, intermediate: widths of a token and of an expert.
        experts, top_k: the number of experts, and of experts per token.
        shared: a module that is applied to every token and added; None is none.
        normalise: whether a token's weights are normalized to sum to 1.
        device, dtype: of the parameters.
        fallback: as of `grouped_mm`.
        batch_invariant: whether the bits of a token's result must not depend on the other tokens of a call. This covers
            routing, experts and their sum on a Hopper GPU, but not `shared`, gradients and fallback="torch".

    Raises:
        InputError: an argument has another type, a width or a count is not positive, `top_k` exceeds `experts`, or the
            fallback is unknown.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        experts: int,
        top_k: int,
        *,
        shared: torch.nn.Module | None = None,
        normalise: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        fallback: str = "torch",
        batch_invariant: bool = False,
    ) -> None:
        super().__init__()
        hidden, intermediate, experts = (
            checks.integer(InputError, name, x, 1, MOST)
            for name, x in (("hidden", hidden), ("intermediate", intermediate), ("experts", experts))
        )
        top_k = checks.integer(InputError, "top_k", top_k, 1, experts)
        checks.choice(InputError, "fallback", fallback, FALLBACKS)
        checks.truth(InputError, "normalise", normalise)
        checks.truth(InputError, "batch_invariant", batch_invariant)
        if shared is not None and not isinstance(shared, torch.nn.Module):
            raise field_error(InputError, "shared", shared, "must be a torch.nn.Module or None")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise field_error(
                InputError, "dtype", dtype, "must be a floating-point torch.dtype", torch.bfloat16
            )
        linear_layer: dict[str, Any] = {"bias": False, "device": device, "dtype": dtype}
        if batch_invariant:
            self.router: torch.nn.Linear = _Router(hidden, experts, fallback=fallback, **linear_layer)
        else:
            self.router = torch.nn.Linear(hidden, experts, **linear_layer)
        self.gate_up_weight, self.down_weight = (
            torch.nn.Parameter(torch.empty(experts, *shape, device=device, dtype=dtype))
            for shape in ((2 * intermediate, hidden), (hidden, intermediate))
        )
        self.top_k, self.normalise, self.shared, self.fallback = top_k, normalise, shared, fallback
        self.batch_invariant = batch_invariant
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the experts' weights as torch.nn.Linear does."""
        for x in (self.gate_up_weight, self.down_weight):
            bound = x.shape[-1] ** -0.5
            torch.nn.init.uniform_(x, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """The mixture's result for each token, (..., H) to (..., H).

        Raises:
            InputError: x has another width or type than the weights, or these are not 16-bit and autocast is off.
        """
        check_tensor("x", x)
        weight = self.gate_up_weight
        if x.dim() == 0 or x.shape[-1] != weight.shape[-1]:
            rule = f"must be (..., {weight.shape[-1]})"
            raise field_error(InputError, "x.shape", tuple(x.shape), rule)
        cast = torch._C._is_any_autocast_enabled() and autocast_type(x.device) in HALF
        if not (cast and x.dtype in OPERANDS) and x.dtype != weight.dtype:
            raise field_error(InputError, "x.dtype", x.dtype, f"must be that of the weights, {weight.dtype}")
        if not cast and weight.dtype not in HALF:
            rule = "groups multiply float16 and bfloat16: convert the module, or call it under autocast"
            raise field_error(InputError, "gate_up_weight.dtype", weight.dtype, rule, torch.bfloat16)
        flat = x.reshape(-1, x.shape[-1])
        chances = self.router(flat)
        if self.normalise:
            # the softmax over the top-k logits equals the softmax over all, normalized over the top k
            chances, experts = chances.topk(self.top_k, -1)
            weights = chances.softmax(-1, dtype=torch.float32)
        else:
            weights, experts = chances.softmax(-1, dtype=torch.float32).topk(self.top_k, -1)
        up, down = self.gate_up_weight.mT, self.down_weight.mT
        found = mixture(flat, experts, weights, up, down, self.fallback, self.batch_invariant)
        if self.shared is not None:
            found = found + self.shared(flat)
        return found.to(x.dtype).view(x.shape)


__all__ = ["MoE", "Routes", "combined", "dispatched", "mixture", "routes", "summed"]
