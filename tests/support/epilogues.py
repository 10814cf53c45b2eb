# SPDX-License-Identifier: Apache-2.0
"""Random epilogue graphs and inputs for them; the bound their results keep is in `epilogue_bounds`."""

import torch
from hypothesis import strategies as st

from cutegemm.epilogue.graph import ACCUMULATORS, COMPARISONS, GATED, REDUCTIONS, STORE, TRUTH, Graph, Result
from cutegemm.epilogue.value import Trace, Value, apply
from tests.support.epilogue_bounds import assert_outputs_close, bound

DEPTH = 6  # operations above one another
ARITHMETIC = ("add", "sub", "mul")
FUNCTIONS = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "round")
CHOICES = (
    "where", "compare", "logic", *ARITHMETIC * 3, "div", "min", "max", *FUNCTIONS * 2, "cast", "cast", "where",
    "where", "logic", "random",
)  # fmt: skip
KINDS = ("row", "col", "matrix", "scalar")
CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0, 0.044715, -3.25)
CASTS = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")


class _Pool:
    """The values drawn so far, by type, each with its depth."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.trace = Trace()
        self.values: list[tuple[Value, int]] = []

    def add(self, value: Value, depth: int = 0) -> None:
        self.values.append((value, depth))

    def pick(self, kind: str = "number") -> tuple[Value, int]:
        """An earlier value that is not too deep, the latest ones more often."""
        legal = [x for x in self.values if x[0].type == kind and x[1] < DEPTH]
        return self.draw(st.sampled_from(legal + 2 * legal[-3:]))

    def grow(self) -> None:
        """One more operation."""
        op = self.draw(st.sampled_from(CHOICES))
        if op == "random":
            if any(x.type == "integer" for x, _ in self.values):
                self.add(apply("random", self.pick("integer")[0], self.pick("integer")[0]), 1)
            return
        truths = any(x.type == TRUTH and depth < DEPTH for x, depth in self.values)
        if op in ("logic", "where") and not truths:
            op = "compare"
        if op == "logic":
            op = self.draw(st.sampled_from(("and", "or", "not")))
            picked = [self.pick(TRUTH) for _ in range(1 if op == "not" else 2)]
        elif op == "where":
            picked = [self.pick(TRUTH), self.pick(), self.pick()]
        else:
            op = self.draw(st.sampled_from(sorted(COMPARISONS))) if op == "compare" else op
            picked = [self.pick() for _ in range(1 if op in (*FUNCTIONS, "cast") else 2)]
        if all(x.node.op == "const" for x, _ in picked):
            return  # what Python itself computes never reaches a graph
        if op in COMPARISONS and picked[0][0].node.op == "const":
            picked.reverse()  # as Python does with a number on the left
        dtype = self.draw(st.sampled_from(CASTS)) if op == "cast" else None
        depth = 1 + max(depth for _, depth in picked)
        self.add(apply(op, *(x for x, _ in picked), value=dtype), depth)


@st.composite
def graphs(draw, gated=None, reductions: bool = True, most_outputs: int = 3) -> Graph:
    """Expressions up to six operations deep, up to four inputs beside seed and offset, up to three outputs.

    An accumulator always reaches an output.

    Args:
        draw: hypothesis's.
        gated: None, "halves", "interleaved", or "any".
        reductions: whether outputs may be reductions.
        most_outputs: the largest number of outputs.
    """
    gated = draw(st.sampled_from(GATED)) if gated == "any" else gated
    pool = _Pool(draw)
    accumulators = [pool.trace.record("acc", value=x) for x in (ACCUMULATORS if gated else (None,))]
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=4)):
        pool.add(pool.trace.record(kind, value=f"{kind}{len(pool.values)}"))
    if draw(st.integers(0, 4)) == 0:
        pool.add(pool.trace.record("integer", value="seed"))
        pool.add(pool.trace.record("integer", value="offset"))
    for number in draw(st.lists(st.sampled_from(CONSTANTS), max_size=2)):
        pool.add(pool.trace.constant(number))
    for x in accumulators:
        pool.add(x)
    for _ in range(draw(st.sampled_from((1, 4, 6, 8, 10, 12, 14)))):
        pool.grow()
    return _close(draw, pool, accumulators, gated, reductions, most_outputs)


def _close(draw, pool: _Pool, accumulators: list, gated, reductions: bool, most_outputs: int) -> Graph:
    """The graph of some of a pool's numbers as outputs; D is the deepest."""
    numbers = [x for x, depth in sorted(pool.values, key=lambda x: x[1]) if x.type == "number"]
    numbers = [x for x in numbers if x.node.op != "const"]
    results = []
    for name in ("d", "second", "third")[: draw(st.integers(1, most_outputs))]:
        value = numbers[-1] if name == "d" else draw(st.sampled_from(numbers))
        kind = draw(st.sampled_from((STORE, *REDUCTIONS))) if reductions and name != "d" else STORE
        if kind == STORE:
            dtype = None if name == "d" else draw(st.sampled_from((None, *CASTS)))
            results.append(Result(name, value.index, dtype=dtype))
        else:
            results.append(Result(name, value.index, kind, axis=draw(st.sampled_from((None, 0, 1)))))
    if reductions and len(results) > 1 and draw(st.integers(0, 5)) == 0:
        results = results[1:]  # D itself is not stored
    graph = pool.trace.graph(results, gated)
    if not any(n.op == "acc" for n in graph.nodes):
        value = Value(pool.trace, results[0].node)
        for x in accumulators:
            value = value + x
        results[0] = Result(**{**vars(results[0]), "node": value.index})
        graph = pool.trace.graph(results, gated)
    return graph


def random_inputs(
    graph: Graph, shape: tuple[int, ...], generator: torch.Generator, dtypes: tuple = (torch.float32,)
) -> dict:
    """Normally distributed inputs for D of a shape (M, N) or (L, M, N): tensors of the dtypes in turn, batched
    if D is and the input's turn is even; numbers as Python numbers.
    """
    *batch, m, n = shape
    extents = {"matrix": (m, n), "row": (n,), "col": (m,)}
    inputs: dict = {}
    for turn, (name, kind) in enumerate(graph.tensors.items()):
        size = (*(batch if turn % 2 == 0 else ()), *extents[kind])
        values = torch.randn(size, generator=generator, device=generator.device)
        inputs[name] = values.to(dtypes[turn % len(dtypes)])
    for name, kind in graph.numbers.items():
        number = torch.randn((), generator=generator, device=generator.device).item()
        inputs[name] = int(number * 2**20) if kind == "integer" else number
    return inputs


__all__ = ["assert_outputs_close", "bound", "graphs", "random_inputs"]
