# SPDX-License-Identifier: Apache-2.0
"""Plans a program's gradient once: the accumulators that the forward saves, and the computation of the gradient of
each stored output and each sum. No tensors.

With D = f(acc, inputs) and the gradient G of D, `epi.backward` gives the gradients of acc and of the inputs as an
epilogue. If each of them is G, or G times a number, the epilogue needs no launch: the factor is applied in the GEMMs
that follow. Otherwise one launch without a mainloop (K = 0) reads G and the saved tensors and computes all of them,
including bias sums.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cutegemm.epilogue.derivative import SAVED, backward, with_saved
from cutegemm.epilogue.graph import ACCUMULATORS, STORE, Graph, Node, Result
from cutegemm.errors import InputError, field_error
from cutegemm.ops.program import Program, kept

# Names of the accumulators that a forward saves.
SAVED_NAMES = tuple(SAVED.values())


@dataclass(frozen=True)
class Factor:
    """A factor of G: one of the graph's scalars, or a constant."""

    value: str | float

    def of(self, numbers: Mapping[str, float]) -> float:
        """The value, from a call's numbers."""
        return float(numbers[self.value]) if isinstance(self.value, str) else self.value


@dataclass(frozen=True)
class OutputGradient:
    """The gradient of one stored output or sum.

    Attributes:
        graph: `epi.backward` of the output.
        factors: the factor of each result, by the forward's name, if all are G times a number; else None.
        upstream: the name under which the launch without a mainloop reads G.
        program: of the launch without a mainloop.
        result: the output.
    """

    graph: Graph
    factors: dict[str, Factor] | None
    upstream: str
    program: Program
    result: Result

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """The saved accumulators that it reads."""
        return tuple(x for x in self.program.inputs if x in SAVED_NAMES)


@dataclass(frozen=True)
class Plan:
    """The gradient of a program with respect to some of its inputs.

    Attributes:
        program: the forward.
        forward: the program that also saves what the gradient reads.
        outputs: the gradient of each stored output and each sum, by name.
        accumulators: their names; empty if neither A nor B needs a gradient.
        inputs: names of the epilogue's inputs that need one.
    """

    program: Program
    forward: Program
    outputs: dict[str, OutputGradient]
    accumulators: tuple[str, ...]
    inputs: tuple[str, ...]

    def __post_init__(self) -> None:
        """Compute what a traced backward pass reads, as `Program` does."""
        _ = self.keeps

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The forward's inputs that some gradient reads, in the forward's order."""
        used = {name for x in self.outputs.values() if x.factors is None for name in x.program.inputs}
        return tuple(name for name in self.forward.inputs if name in used)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """The accumulators that the forward saves for it."""
        used = {name for x in self.outputs.values() if x.factors is None for name in x.saved}
        return tuple(name for name in self.forward.outputs if name in used)

    @cached_property
    def keeps(self) -> tuple[str, ...]:
        """The names of both."""
        return (*self.read, *self.saved)


@lru_cache(maxsize=512)
def plan_gradient(program: Program, operands: bool, inputs: tuple[str, ...]) -> Plan:
    """Plan the gradient of a program.

    Args:
        program: the forward.
        operands: whether A or B needs a gradient.
        inputs: names of the epilogue's inputs that need one.

    Raises:
        InputError: the program's form has no gradient.
    """
    if program.form not in ("matrix", "linear"):
        raise field_error(InputError, "form", program.form, "has no gradient", "matrix")
    if program.merged:
        raise field_error(InputError, "merged", program.merged, "has no gradient; its caller has one", ())
    graph = program.graph
    accumulators = () if not operands else ACCUMULATORS if graph.gated else ("acc",)
    wanted = (*accumulators, *inputs)
    forward, outputs = graph, {}
    for x in graph.outputs:
        if x.kind not in (STORE, "sum"):
            continue
        found = _output_gradient(program, x, wanted)
        outputs[x.name] = found
        if found.factors is None:
            forward = with_saved(forward, x.name, wanted)
    made = program
    if forward != graph:
        made = kept(dataclasses.replace(program, graph=forward))
    return Plan(program, made, outputs, accumulators, inputs)


def _output_gradient(program: Program, result: Result, wanted: tuple[str, ...]) -> OutputGradient:
    graph = backward(program.graph, result.name, wanted)
    # the gradient of a sum is smaller than D, so a launch must broadcast it
    factors: dict[str, Factor] | None = {} if result.kind == STORE else None
    for name, x in zip(_order(program.graph, wanted), graph.outputs, strict=True):
        if factors is None:
            break
        factor = _factor(graph, x)
        if factor is None or factor.value in program.scalars:
            factors = None
            break
        factors[name] = factor
    upstream = "upstream"
    while upstream in (*graph.tensors, *graph.numbers, *(x.name for x in graph.outputs)):
        upstream += "_"
    kind = "matrix" if result.kind == STORE else "row" if result.axis == 0 else "col"
    nodes = tuple(Node(kind, value=upstream) if x.op == "acc" else x for x in graph.nodes)
    alone = Graph(nodes, graph.outputs, graph.gated, graph.swapped)
    return OutputGradient(graph, factors, upstream, program.derived(alone), result)


def _order(graph: Graph, wanted: tuple[str, ...]) -> list[str]:
    """The wanted names, in the order of `backward`'s gradients."""
    accumulators = ACCUMULATORS if graph.gated else ("acc",)
    return [x for x in (*accumulators, *graph.tensors, *graph.numbers) if x in wanted]


def gradient_name(name: str) -> str:
    """The name that `backward` gives to the gradient of an accumulator or input."""
    return "d" if name == "acc" else f"d{name}"


def _factor(graph: Graph, result: Result) -> Factor | None:
    """The factor of a result that is G times a number, before any sum; None for other results."""
    node = graph.nodes[result.node]
    if node.op == "acc":
        return Factor(1.0)
    if node.op == "const" and node.value == 0.0:
        return Factor(0.0)
    if node.op != "mul":
        return None
    x, y = (graph.nodes[i] for i in node.args)
    if x.op == "acc":
        x, y = y, x
    if y.op != "acc" or x.op not in ("scalar", "const"):
        return None
    assert x.value is not None
    return Factor(x.value)


__all__ = ["SAVED_NAMES", "STORE", "Factor", "OutputGradient", "Plan", "gradient_name", "plan_gradient"]
