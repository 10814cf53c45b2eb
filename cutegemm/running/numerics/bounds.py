# SPDX-License-Identifier: Apache-2.0
"""Bounds of a kernel's results: the epilogue graph in fp64 with a running error analysis (Higham, Accuracy and
Stability of Numerical Algorithms, section 3.3).

Each node has its fp64 value and a bound on the error of an fp32 evaluation with the GPU's approximate functions: the
operands' bounds propagated through the operation, plus the operation's own error. If an operand is so near a pole, a
domain's edge or fp32's range that its error decides whether the result is finite, every result is accepted.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cutegemm.arch.instructions import EXACT, Instruction, instruction
from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.graph import FP32_MAX, STORE, Graph, Node, Result
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.request.promotion import coarse_promotion, rounds_coarsely
from cutegemm.running.numerics import reference
from cutegemm.running.numerics.accepted import INFINITY, Bound, U, bound_of_blocks
from cutegemm.running.numerics.eight_bits import powers

INT32 = torch.iinfo(torch.int32)
# error of one fp32 accumulation on tensor cores: four times fp32's roundoff, because they truncate
STEP = 2.0**-22
# up to this many instructions, a sum is not much larger than its products, so these keep their bits
NEAR_STEPS = 4
# error of a product of two-part elements: the omitted product of low parts, and the rounding of both low parts
LEFT_OUT = 2.0**-20 + 2.0**-21
# most that an operation which flushes subnormals may lose
FLUSHED = 2.0**-126
# relative error of tanh.approx.f32; the PTX ISA gives 2^-11
TANH = 2.0**-10.9
Own = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Operation = Callable[..., "Bounded"]
# op -> its own error, a function of the operand and the exact result
OWN: dict[str, Own] = {
    "exp": lambda x, v: (2.0**-21 + x.abs() * 2.0**-23) * v,  # ex2.approx of x * log2(e), rounded
    "log": lambda x, v: 2.0**-20 + 2.0**-22 * v.abs(),
    "sqrt": lambda x, v: 2.0**-21 * v,
    "rsqrt": lambda x, v: 2.0**-21 * v,
    "tanh": lambda x, v: 2.0**-21 + 0 * v,  # 1 - 2 / (1 + exp(2 |x|))
    "sigmoid": lambda x, v: 2.0**-21 + 0 * v,
    "erf": lambda x, v: 2.0**-20 + 0 * v,  # 1 - polynomial * exp(-x^2)
}
APPROXIMATE: dict[str, Own] = {
    "tanh": lambda x, v: TANH * v.abs(),
    "sigmoid": lambda x, v: TANH / 2 + 0 * v,  # 1/2 + 1/2 tanh(x / 2)
    "erf": lambda x, v: (TANH + 2.0**-13.9) * v.abs(),  # tanh of a polynomial
}
EXACT_STEPS = ("floor", "round", "cast")  # monotone; exact unless the operand's error changes the step
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass(frozen=True)
class Bounded:
    """fp64 values and the error bound of each; a truth value with a nonzero error may be the opposite."""

    value: torch.Tensor
    error: torch.Tensor


def bound(
    graph: Graph,
    a: torch.Tensor,
    b: torch.Tensor,
    inputs: Mapping[str, Any],
    out_dtypes: Mapping[str, torch.dtype],
    approximate: bool = True,
    promote: int | None = None,
    arithmetic: str = EXACT,
    origin: tuple[int, int, int] = reference.ORIGIN,
) -> dict[str, Bound]:
    """The bound of each output in `out_dtypes`, a map from names to torch dtypes (reductions finished).

    `approximate` is whether tanh, sigmoid and erf may use tanh.approx instead of exp. `promote` is that of
    `KernelConfig`; None is the largest default for the operands and outputs. `arithmetic` is the config's; `origin` is
    as for `reference.evaluate`.
    """
    how = _instruction(a, b, arithmetic)
    if how is not None:
        a, b = reference.taken(a, how.ignored), reference.taken(b, how.ignored)
    accumulators = reference.products(graph, a.double(), b.double(), inputs, torch.float64)
    sizes = {x.name: powers(inputs[x.name]).abs() for x in graph.scales}
    magnitudes = reference.products(graph, a.double().abs(), b.double().abs(), sizes, torch.float64)
    if promote is None and how is not None:
        promote = _largest_default(graph, a.shape[-1], how, out_dtypes.values())
    relative = _accumulated(a.shape[-1], how, promote or 0, bool(graph.scales))
    shape = next(iter(accumulators.values())).shape

    def leaf(node: Node) -> Bounded:
        if node.op == "acc":
            name = None if node.value is None else str(node.value)
            value, magnitude = accumulators[name], magnitudes[name]
            error = torch.where(magnitude == 0, 0.0, relative * magnitude + FLUSHED)
            doubtful = []
            if not (a.dtype.is_floating_point or graph.scales):
                # a partial sum may saturate before products of the opposite sign are added
                doubtful = [(magnitude > INT32.max) & (value.abs() < magnitude)]
                value = value.clamp(INT32.min, INT32.max)
            return _settle(value, error, [], doubtful)
        value = reference.passed(node.value if node.op == "const" else inputs[str(node.value)], a.device)
        if node.op == "integer":
            return Bounded(value.long(), torch.zeros((), device=a.device))
        value = reference.broadcastable(node.op, value.double())
        return _settle(value, (value - value.float().double()).abs().nan_to_num(0.0), [], [])

    def random(seed: Bounded, offset: Bounded) -> Bounded:
        value = reference.uniform(seed.value, offset.value, shape, a.device, graph.swapped, origin)
        return Bounded(value, torch.zeros_like(value))

    operations: dict[str, Operation] = {
        **_OPERATIONS,
        **(_APPROXIMATE if approximate else {}),
        "random": random,
    }
    values = graph.evaluate(leaf, operations)
    return {
        x.name: _bound_of(x, values[x.node], shape, out_dtypes[x.name])
        for x in graph.outputs
        if x.name in out_dtypes
    }


def described(config: Any) -> tuple[bool, int | None, str]:
    """The last arguments of `bound` for a GEMM kernel's config; None is that of an empty GEMM."""
    approximate = config is None or config.approximate
    return approximate, getattr(config, "promote", None), getattr(config, "arithmetic", EXACT)


def _instruction(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> Instruction | None:
    """The instruction on which the bound depends: for 8-bit operands, and for every arithmetic but "exact"."""
    if arithmetic == EXACT and a.element_size() + b.element_size() > 2:
        return None
    return instruction(as_dtype(a.dtype), as_dtype(b.dtype), arithmetic)


def _largest_default(graph: Graph, k: int, how: Instruction, outputs: Iterable[torch.dtype]) -> int:
    """Elements of K between promotions that the planner chooses at most for such outputs; 0 is never."""
    if graph.scales or not rounds_coarsely(graph, map(as_dtype, outputs)):
        return how.coarse
    return coarse_promotion(how, k)


def _accumulated(k: int, how: Instruction | None, promote: int, scaled: bool) -> float:
    """The error bound of accumulators of `k` products, relative to the sum of their magnitudes.

    An instruction that keeps few bits truncates addends until its sums are promoted to fp32. `scaled` is whether
    sums over blocks of K are multiplied by scales.
    """
    added = 0.0
    if how is not None and how.accumulator.whole:
        # exact sums, then one rounding to fp32; with scales, a block's sum is multiplied by two scales and added
        return U * (3 + math.ceil(k / K_BLOCK)) if scaled else U
    if how is not None:
        steps = min(k, promote or k) / how.k * len(how.products)
        # the longer a sum of one sign, the more bits of each product fall below those kept, until all do
        each = min(how.k / 8, max(1.0, steps / NEAR_STEPS))
        added = float(2.0 ** (1 - how.fraction)) * (4 + steps * each)
        if how.parts > 1:
            added += LEFT_OUT
    return added + STEP * (4 + math.sqrt(k))


def _together(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Tensors broadcast to one shape, side by side along a new first axis."""
    found: list[torch.Tensor] = torch.broadcast_tensors(*tensors)
    return torch.stack(found)


def _settle(
    value: torch.Tensor, error: torch.Tensor, operands: list[Bounded], doubtful: list[torch.Tensor]
) -> Bounded:
    """Value and error; the error is infinite if the operands' errors decide whether the value is finite.

    `doubtful` are masks of elements that are uncertain for other reasons of the operation.
    """
    if operands:
        known = _together(x.value.isfinite() for x in operands).all(0)
        exact = _together(x.error == 0 for x in operands).all(0)
        # A finite result of an infinite operand, as exp(-inf) or 1 / inf, is exact.
        error = torch.where(~known & value.isfinite(), error.nan_to_num(0.0, posinf=INFINITY), error)
        # An infinite or invalid result of finite operands is certain only if they are exact.
        error = torch.where(~value.isfinite(), torch.where(known & ~exact, INFINITY, 0.0), error)
        for x in operands:
            error = torch.where(x.error == INFINITY, INFINITY, error)
    else:
        error = torch.where(value.isfinite(), error, 0.0)
    for mask in doubtful:
        error = torch.where(mask, INFINITY, error)
    near_range = value.isfinite() & (value.abs() + error >= FP32_MAX)
    return Bounded(value, torch.where(near_range | error.isnan(), INFINITY, error))


def _rounding(value: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """One fp32 rounding of a result with error `error`; an exact zero stays exact."""
    return error + torch.where((value == 0) & (error == 0), 0.0, U * (value.abs() + error) + FLUSHED)


def _flushed(value: torch.Tensor) -> torch.Tensor:
    """The loss of an operand in an approximate function that flushes subnormals to zero."""
    return torch.where(value.abs() < FLUSHED, value.abs(), 0.0)


def _sum(x: Bounded, y: Bounded, sign: int) -> Bounded:
    value = x.value + sign * y.value
    return _settle(value, _rounding(value, x.error + y.error), [x, y], [])


def _product(x: Bounded, y: Bounded) -> Bounded:
    value = x.value * y.value
    error = x.value.abs() * y.error + y.value.abs() * x.error + x.error * y.error
    error = torch.where((x.error == 0) & (y.error == 0), 0.0, error)
    return _settle(value, _rounding(value, error), [x, y], [_sign_open(x, y), _sign_open(y, x)])


def _quotient(x: Bounded, y: Bounded) -> Bounded:
    value = x.value / y.value
    y = Bounded(y.value, y.error + _flushed(y.value))
    error = (x.error + value.abs() * y.error) / (y.value.abs() - y.error)
    error = error + torch.where(value == 0, 0.0, 2.0**-21 * value.abs() + FLUSHED)
    error = error + torch.where(y.value.abs() > 2.0**125, value.abs(), 0.0)  # the reciprocal is flushed
    near_pole = (y.value.abs() <= y.error) & (y.error > 0)
    return _settle(value, error, [x, y], [near_pole, _sign_open(x, y)])


def _sign_open(infinite: Bounded, other: Bounded) -> torch.Tensor:
    """Where an infinity is multiplied by a factor whose sign is uncertain."""
    return infinite.value.isinf() & (other.value.abs() <= other.error) & (other.error > 0)


def _monotone(op: str, own: Own | None = None) -> Operation:
    """A monotone function: its error is the distance to its values at both ends, plus its own."""
    function = reference.OPERATIONS[op]

    def bounded(x: Bounded, *extra: str) -> Bounded:
        value = function(x.value, *extra)
        reach = (x.error + _flushed(x.value)).nan_to_num(posinf=FP32_MAX)
        ends = [function(x.value + sign * reach, *extra) for sign in (-1, 1)]
        error = torch.maximum(*((end - value).abs() for end in ends))
        error = torch.where(reach == 0, 0.0, error)
        if own is not None:
            error = error + torch.where((value == 0) & (x.error == 0), 0.0, own(x.value, value) + FLUSHED)
        same = torch.stack([(end == value) | end.isnan() & value.isnan() for end in ends]).all(0)
        settled = _settle(value, error, [x], [~same & ~value.isfinite()])
        certain = same & ~value.isfinite() & (x.error < INFINITY)
        return Bounded(value, torch.where(certain, 0.0, settled.error))

    return bounded


def _exact(op: str) -> Operation:
    function = reference.OPERATIONS[op]
    return lambda x: Bounded(function(x.value), x.error)


def _extremum(op: str) -> Operation:
    def bounded(x: Bounded, y: Bounded) -> Bounded:
        value = reference.OPERATIONS[op](x.value, y.value)
        error = torch.maximum(x.error, y.error)
        invalid = x.value.isnan() & (x.error == 0) | y.value.isnan() & (y.error == 0)
        return Bounded(value, torch.where(invalid, 0.0, error))

    return bounded


def _comparison(op: str) -> Operation:
    def bounded(x: Bounded, y: Bounded) -> Bounded:
        error = x.error + y.error
        open_ = ((x.value - y.value).abs() <= error) & (error > 0) | (error == INFINITY)
        return Bounded(reference.OPERATIONS[op](x.value, y.value), open_)

    return bounded


def _logic(op: str) -> Operation:
    def bounded(x: Bounded, y: Bounded) -> Bounded:
        decisive = op == "or"  # the value of one operand that determines the result
        settled = (x.value == decisive) & ~x.error | (y.value == decisive) & ~y.error
        return Bounded(reference.OPERATIONS[op](x.value, y.value), (x.error | y.error) & ~settled)

    return bounded


def _where(condition: Bounded, x: Bounded, y: Bounded) -> Bounded:
    value = torch.where(condition.value, x.value, y.value)
    chosen = torch.where(condition.value, x.error, y.error)
    other = (x.value - y.value).abs() + x.error + y.error
    return Bounded(value, torch.where(condition.error, other.nan_to_num(INFINITY, posinf=INFINITY), chosen))


_OPERATIONS: dict[str, Operation] = {
    "add": lambda x, y: _sum(x, y, 1),
    "sub": lambda x, y: _sum(x, y, -1),
    "mul": _product,
    "div": _quotient,
    "where": _where,
    **{op: _exact(op) for op in ("neg", "abs", "not")},
    **{op: _extremum(op) for op in ("min", "max")},
    **{op: _comparison(op) for op in COMPARISONS},
    **{op: _logic(op) for op in ("and", "or")},
    **{op: _monotone(op, own) for op, own in OWN.items()},
    **{op: _monotone(op) for op in EXACT_STEPS},
}
_APPROXIMATE: dict[str, Operation] = {op: _monotone(op, own) for op, own in APPROXIMATE.items()}


def _bound_of(x: Result, node: Bounded, shape: tuple[int, ...], dtype: torch.dtype) -> Bound:
    """An output's bound, rounded to its type. Rounding is monotone, so rounded limits still bound rounded results."""
    value, error = node.value.expand(shape), node.error.expand(shape)
    free = error == INFINITY
    if x.block:
        return bound_of_blocks(x, value, torch.where(free, 0.0, error), free, dtype)
    low, high = value - error.nan_to_num(posinf=0.0), value + error.nan_to_num(posinf=0.0)
    if x.kind != STORE:
        dims = {0: (-2,), 1: (-1,), None: (-2, -1)}[x.axis]
        count = math.prod(shape[d] for d in dims)
        own = _OWN_REDUCTION[x.kind](value, dims, count)
        if x.kind == "sum":
            own = own + reference.combine("sum", error.nan_to_num(posinf=0.0), dims)
            low = high = value
        free = free.sum(dims) > 0
        value, low, high = (reference.combine(x.kind, v, dims) for v in (value, low, high))
        own = torch.where(value.isfinite(), own, 0.0)
        free = free | value.isfinite() & (value.abs() + own >= FP32_MAX)
        low, high = low - own, high + own
    low, high = (reference.round_to(v, dtype).double() for v in (low, high))
    return Bound(value, low, high, free)


def _sum_error(value: torch.Tensor, dims: tuple[int, ...], count: int) -> torch.Tensor:
    """The error of a sum of `count` terms in any order."""
    return value.abs().sum(dims) * (STEP * (4.0 + math.sqrt(count)))


def _logsumexp_error(value: torch.Tensor, dims: tuple[int, ...], count: int) -> torch.Tensor:
    """The error of a logsumexp: exponentials relative to a growing maximum, rescaling, logarithm and shift."""
    largest = value.abs().nan_to_num(posinf=0.0).sum(dims) * 0
    if count:
        largest = value.abs().nan_to_num(posinf=0.0, neginf=0.0).amax(dims)
    return largest * 2.0**-22 + 2.0**-20 * (5.0 + math.sqrt(count))


_OWN_REDUCTION = {
    "sum": _sum_error,
    "max": lambda value, dims, count: torch.zeros_like(value.sum(dims)),
    "logsumexp": _logsumexp_error,
}
