# SPDX-License-Identifier: Apache-2.0
"""Reductions of the epilogue: each warp's partial results, in a fixed order, to workspace.

A state is one number for sums and maxima, and (maximum, sum of exp(x - maximum)) for logsumexp. Lanes
combine states by butterfly shuffles; nothing is atomic, so results are the same on every run. Partial
results lie, per reduction, as the plan's workspace gives them (fp32, PARTS = partial results per result):
    over columns    (part of N, l, m)     one per BLK_N columns (a warp's columns on the CUDA cores)
    over rows       (part of M, l, n)     one per warp's rows
    over all        (l, part)             one per warp and tile
    blocks' scales  (block of N, l, block of M)
and those of logsumexp twice, the maxima first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.epilogue.graph import NEUTRAL
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.kernels.epilogue import element_functions as functions

State = tuple  # of one or two fp32 numbers


def _maximum(x: State, y: State) -> State:
    return (functions.FINE["max"](x[0], y[0]),)


def _exp_of(x: Any, base: Any) -> Any:
    return functions.FINE["exp"](x - base)


def _base(top: Any) -> Any:
    """The number to subtract from values whose maximum is `top`: 0 if it is infinite, as inf - inf is NaN."""
    infinite = cute.math.absf(top) == cutlass.Float32(math.inf)
    return functions.where(infinite, cutlass.Float32(0.0), top)


def _join(x: State, y: State) -> State:
    (top,) = _maximum(x, y)
    base = _base(top)
    return top, x[1] * _exp_of(x[0], base) + y[1] * _exp_of(y[0], base)


COMBINE: dict[str, Callable] = {"sum": lambda x, y: (x[0] + y[0],), "max": _maximum, "logsumexp": _join}


def fold(kind: str, values: list[Any], inside: list[Any], known: State | None = None) -> State:
    """The state of the values whose element is inside the output, and of what is `known` of others.

    A logsumexp's new maximum depends on the known one, so that the values of one call are dead before the next call's
    are computed: states that are joined later let the compiler interleave all of a tile's subtiles, and spill.
    """
    empty = cutlass.Float32(NEUTRAL[kind][0])
    kept = [functions.where(ok, x, empty) for x, ok in zip(values, inside, strict=True)]
    if kind != "logsumexp":
        state = _tree([(x,) for x in kept], COMBINE[kind])
        return state if known is None else COMBINE[kind](known, state)
    (top,) = _tree([(x,) for x in kept], _maximum)
    if known is not None:
        (top,) = _maximum((top,), known)
    base = _base(top)
    # terms are masked, not `kept` again: masked copies would live beside the accumulators until the maximum is known
    zero = cutlass.Float32(0.0)
    terms = [(functions.where(ok, _exp_of(x, base), zero),) for x, ok in zip(values, inside, strict=True)]
    (total,) = _tree(terms, COMBINE["sum"])
    return top, total if known is None else known[1] * _exp_of(known[0], base) + total


def _tree(states: list[State], combine: Callable) -> State:
    """All states into one, pairwise: short dependencies and small rounding errors."""
    while len(states) > 1:
        pairs = [combine(x, y) for x, y in zip(states[::2], states[1::2])]
        states = pairs + states[len(pairs) * 2 :]
    return states[0]


def across_lanes(kind: str, state: State, offsets: tuple[int, ...]) -> State:
    """Combine with the lanes whose number differs in one of the bits `offsets`, one bit after the other."""
    for offset in offsets:
        other = tuple(cute.arch.shuffle_sync_bfly(x, offset) for x in state)
        state = COMBINE[kind](state, other)
    return state


@dataclass(frozen=True)
class Partials:
    """One reduction's partial results in workspace: (part, l, element) of fp32, states side by side."""

    result: Any  # graph.Result
    tensors: tuple  # one per number of the state

    @cute.jit
    def put(
        self, state: Any, part: Any, batch: Any, element: Any, wanted: Any, step: cutlass.Constexpr = 0
    ) -> None:
        """Write one partial result, if `wanted` by this thread.

        Args:
            element: where in the result, or a first place that many share.
            step: elements from there, known at compile time: all of them take one address.
        """
        tensors = self.tensors
        if wanted:
            for i in cutlass.range_constexpr(len(tensors)):
                of = tensors[i]
                place = cute.crd2idx((part, batch, element), of.layout) + cutlass.Int64(step)
                cute.make_tensor(of.iterator + place, cute.make_layout(1))[0] = state[i]


@dataclass(frozen=True)
class ZeroParts:
    """Zeroing a reduction where no tile covers its elements, as `zero_rows.Zeroed` does a matrix.

    Attributes:
        partials: of the reduction.
        thread, threads: which of how many that zero together.
    """

    partials: Partials
    thread: Any
    threads: Any

    @cute.jit
    def zero(self, batch: Any, first: Any, end: Any) -> None:
        """Write what the elements from `first` to before `end` are finished to 0 from: of a logsumexp exp(0) once."""
        for element in cutlass.range(first + self.thread, end, self.threads, unroll=1):
            for part in cutlass.range(self.partials.tensors[0].shape[0], unroll=1):
                once = cutlass.select_(part == 0, cutlass.Float32(1.0), cutlass.Float32(0.0))
                state = (cutlass.Float32(0.0), once)[: len(self.partials.tensors)]
                self.partials.put(state, part, batch, element, cutlass.Boolean(True))


def partials(results: tuple, addresses: tuple, parts: tuple, shape: Any) -> tuple[Partials, ...]:
    """Views of every reduction's workspace.

    Args:
        results: the graph's reductions.
        addresses: of each one's partial results, Int64.
        parts: partial results per result of each axis 0, 1, None; Int32.
        shape: (m, n, l) of the output.
    """
    m, n, batch = shape
    found = []
    for result, address in zip(results, addresses, strict=True):
        elements, count, numeric = result.by_axis(n, m, 1), result.by_axis(*parts), cutlass.Float32
        if result.block:
            # a scale for each block of columns, and of rows
            elements, count = (m + (result.block - 1)) // result.block, (n + (K_BLOCK - 1)) // K_BLOCK
            numeric = cutlass.Uint8 if result.exponents else cutlass.Float32
        each = cutlass.Int64(batch) * elements
        strides = (1, cutlass.Int64(count), 0) if result.axis is None else (each, cutlass.Int64(elements), 1)
        tensors = []
        for i in range(len(NEUTRAL.get(result.kind, (0,)))):
            size = numeric.width // 8
            place = address + i * each * count * size
            ptr = cute.make_ptr(numeric, place, cute.AddressSpace.gmem, assumed_align=size)
            tensors.append(cute.make_tensor(ptr, cute.make_layout((count, batch, elements), stride=strides)))
        found.append(Partials(result, tuple(tensors)))
    return tuple(found)
