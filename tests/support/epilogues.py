# SPDX-License-Identifier: Apache-2.0
"""Random epilogue graphs and inputs for them; the bound their results keep is in `epilogue_bounds`.

`graphs` is the hypothesis strategy, which shrinks. `seeded_graph(seed)` is one graph a seed, the same on every
machine: for fuzzing over many calls of few kernels, `few_graphs(count)` draws among so many of them.
"""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from cutegemm.epilogue.graph import ACCUMULATORS, COMPARISONS, GATED, REDUCTIONS, STORE, TRUTH, Graph, Result
from cutegemm.epilogue.value import Trace, Value, apply
from tests.support.epilogue_bounds import assert_outputs_close, bound

# operations above one another
DEPTH = 6
ARITHMETIC = ("add", "sub", "mul")
FUNCTIONS = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "round")
CHOICES = (
    "where", "compare", "logic", *ARITHMETIC * 3, "div", "min", "max", *FUNCTIONS * 2, "cast", "cast", "where",
    "where", "logic", "random",
)  # fmt: skip
KINDS = ("row", "col", "matrix", "scalar")
CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0, 0.044715, -3.25)
# operations tried for the graph of a seed
SEEDED = (8, 12, 16, 20, 24)
CASTS = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")

# one of a sequence: hypothesis's choice or a seeded one
Pick = Callable[[Sequence[Any]], Any]


class _Pool:
    """The values drawn so far, by type, each with its depth."""

    def __init__(self, pick: Pick) -> None:
        self.choose = pick
        self.trace = Trace()
        self.values: list[tuple[Value, int]] = []

    def add(self, value: Value, depth: int = 0) -> None:
        self.values.append((value, depth))

    def pick(self, kind: str = "number") -> tuple[Value, int]:
        """An earlier value that is not too deep, the latest ones more often."""
        legal = [x for x in self.values if x[0].type == kind and x[1] < DEPTH]
        return self.choose(legal + 2 * legal[-3:])

    def choice(self) -> tuple[Value, int]:
        """A value to choose between: as `pick`, or a constant."""
        constant = self.choose((None, None, None, *CONSTANTS))
        return self.pick() if constant is None else (self.trace.constant(constant), 0)

    def grow(self) -> None:
        """One more operation."""
        op = self.choose(CHOICES)
        if op == "random":
            if any(x.type == "integer" for x, _ in self.values):
                self.add(apply("random", self.pick("integer")[0], self.pick("integer")[0]), 1)
            return
        truths = any(x.type == TRUTH and depth < DEPTH for x, depth in self.values)
        if op in ("logic", "where") and not truths:
            op = "compare"
        if op == "logic":
            op = self.choose(("and", "or", "not"))
            picked = [self.pick(TRUTH) for _ in range(1 if op == "not" else 2)]
        elif op == "where":
            picked = [self.pick(TRUTH), self.choice(), self.choice()]
        else:
            op = self.choose(sorted(COMPARISONS)) if op == "compare" else op
            picked = [self.pick() for _ in range(1 if op in (*FUNCTIONS, "cast") else 2)]
        if all(x.node.op == "const" for x, _ in picked):
            # what Python itself computes never reaches a graph
            return
        if op in COMPARISONS and picked[0][0].node.op == "const":
            # as Python does with a number on the left
            picked.reverse()
        dtype = self.choose(CASTS) if op == "cast" else None
        depth = 1 + max(depth for _, depth in picked)
        self.add(apply(op, *(x for x, _ in picked), value=dtype), depth)


def _graph(
    pick: Pick,
    gated: str | None,
    reductions: bool,
    most_outputs: int,
    forms: bool,
    sizes: Sequence[int] = (1, 4, 6, 8, 10, 12, 14),
) -> Graph:
    """What `graphs` describes, by a way of picking."""
    gated = pick(GATED) if gated == "any" else gated
    pool = _Pool(pick)
    accumulators = [pool.trace.record("acc", value=x) for x in (ACCUMULATORS if gated else (None,))]
    for _ in range(pick(range(5))):
        kind = pick(KINDS)
        pool.add(pool.trace.record(kind, value=f"{kind}{len(pool.values)}"))
    if pick(range(5)) == 0:
        pool.add(pool.trace.record("integer", value="seed"))
        pool.add(pool.trace.record("integer", value="offset"))
        pool.add(apply("random", pool.pick("integer")[0], pool.pick("integer")[0]), 1)
    for _ in range(pick(range(3))):
        pool.add(pool.trace.constant(pick(CONSTANTS)))
    for x in accumulators:
        pool.add(x)
    for _ in range(pick(sizes)):
        pool.grow()
    return _close(pool, accumulators, gated, _outputs(pool, reductions, most_outputs, forms))


def _outputs(pool: _Pool, reductions: bool, most_outputs: int, forms: bool) -> list[Result]:
    """Some of a pool's numbers as outputs; D is the deepest."""
    pick = pool.choose
    numbers = [x for x, depth in sorted(pool.values, key=lambda x: x[1]) if x.type == "number"]
    numbers = [x for x in numbers if x.node.op != "const"]
    results = []
    for name in ("d", "second", "third", "fourth", "fifth")[: pick(range(1, most_outputs + 1))]:
        value = numbers[-1] if name == "d" else pick(numbers)
        kind = pick((STORE, *REDUCTIONS)) if reductions and name != "d" else STORE
        if kind == STORE:
            dtype = None if name == "d" else pick((None, *CASTS))
            major = pick((None, "n", "m")) if forms else None
            results.append(Result(name, value.index, dtype=dtype, major=major))
        else:
            partial = forms and pick((False, True))
            axis = pick((None, 0, 1))
            results.append(Result(name, value.index, kind, axis=axis, partial=partial))
    if reductions and len(results) > 1 and pick(range(6)) == 0:
        # D itself is not stored
        results = results[1:]
    return results


def _close(pool: _Pool, accumulators: list[Value], gated: str | None, results: list[Result]) -> Graph:
    """The graph of some results, to one of which the accumulators are added if none has them."""
    graph = pool.trace.graph(results, gated)
    if any(n.op == "acc" for n in graph.nodes):
        return graph
    value = Value(pool.trace, results[0].node)
    for x in accumulators:
        value = value + x
    return pool.trace.graph([replace(results[0], node=value.index), *results[1:]], gated)


@st.composite
def graphs(
    draw, gated: str | None = None, reductions: bool = True, most_outputs: int = 3, forms: bool = False
) -> Graph:
    """Expressions up to six operations deep, up to four inputs beside seed and offset, up to three outputs.

    An accumulator always reaches an output.

    Args:
        draw: hypothesis's.
        gated: None, "halves", "interleaved", or "any".
        reductions: whether outputs may be reductions.
        most_outputs: the largest number of outputs, at most five.
        forms: whether stores may name their major and reductions may be partial.
    """
    return _graph(lambda options: draw(st.sampled_from(options)), gated, reductions, most_outputs, forms)


@functools.cache
def seeded_graph(seed: int) -> Graph:
    """The graph of a seed, plain or gated, with up to five outputs of every form."""
    return _graph(
        random.Random(seed).choice, "any", reductions=True, most_outputs=5, forms=True, sizes=SEEDED
    )


def few_graphs(count: int) -> st.SearchStrategy[Graph]:
    """The graphs of the seeds below `count`."""
    return st.integers(0, count - 1).map(seeded_graph)


def random_inputs(
    graph: Graph,
    shape: tuple[int, ...],
    generator: torch.Generator,
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
) -> dict[str, Any]:
    """Normally distributed inputs for D of a shape (M, N) or (L, M, N): tensors of the dtypes in turn, batched
    if D is and the input's turn is even; numbers as Python numbers.
    """
    *batch, m, n = shape
    extents = {"matrix": (m, n), "row": (n,), "col": (m,)}
    inputs: dict[str, Any] = {}
    for turn, (name, kind) in enumerate(graph.tensors.items()):
        size = (*(batch if turn % 2 == 0 else ()), *extents[kind])
        values = torch.randn(size, generator=generator, device=generator.device)
        inputs[name] = values.to(dtypes[turn % len(dtypes)])
    for name, kind in graph.numbers.items():
        number = torch.randn((), generator=generator, device=generator.device).item()
        inputs[name] = int(number * 2**20) if kind == "integer" else number
    return inputs


__all__ = ["assert_outputs_close", "bound", "few_graphs", "graphs", "random_inputs", "seeded_graph"]
