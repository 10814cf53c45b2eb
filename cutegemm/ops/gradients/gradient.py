# SPDX-License-Identifier: Apache-2.0
"""What a program's gradient computes, worked out once: which accumulators the forward saves, and for every stored
output and every sum what its gradient is made of. No tensors.

With D = f(acc, inputs) and the gradient G of D, `epi.backward` gives the gradients of acc and of the inputs as an
epilogue. Where each of them is G itself, or G times a number, nothing is launched for it: the factor goes into the
products that follow. Otherwise one launch without a mainloop (K = 0) reads G and what was saved and gives them all,
bias sums among them.
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

# Names of the accumulators that a forward run saves.
SAVED_NAMES = tuple(SAVED.values())


@dataclass(frozen=True)
class Factor:
    """G times a number: one of the graph's scalars, or a constant."""

    value: str | float

    def of(self, numbers: Mapping[str, float]) -> float:
        """The number itself, among a call's numbers."""
        return float(numbers[self.value]) if isinstance(self.value, str) else self.value


@dataclass(frozen=True)
class OutputGradient:
    """The gradient of one stored output or sum.

    Attributes:
        graph: `epi.backward` of it.
        factors: of every result its factor, by the forward's name, where all of them are G times a number; else None.
        upstream: the name under which the launch without a mainloop reads G.
        program: of that launch.
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
    """The gradient of a program with respect to some of what it reads.

    Attributes:
        program: itself.
        forward: the program that also saves what the gradient reads.
        outputs: a gradient for every stored output and every sum, by name.
        accumulators: their names; empty where neither A nor B needs a gradient.
        inputs: names of the epilogue's inputs that need one.
    """

    program: Program
    forward: Program
    outputs: dict[str, OutputGradient]
    accumulators: tuple[str, ...]
    inputs: tuple[str, ...]

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The forward inputs that some gradient reads, in the forward's order."""
        used = {name for x in self.outputs.values() if x.factors is None for name in x.program.inputs}
        return tuple(name for name in self.forward.inputs if name in used)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """The accumulators that the forward saves for it."""
        used = {name for x in self.outputs.values() if x.factors is None for name in x.saved}
        return tuple(name for name in self.forward.outputs if name in used)

    @cached_property
    def keeps(self) -> tuple[str, ...]:
        """Both."""
        return (*self.read, *self.saved)


@lru_cache(maxsize=512)
def plan_gradient(program: Program, operands: bool, inputs: tuple[str, ...]) -> Plan:
    """How a program's gradient is computed.

    Args:
        program: the forward.
        operands: whether A or B needs a gradient.
        inputs: names of the epilogue's inputs that need one.

    Raises:
        InputError: of this form there is none.
    """
    if program.form not in ("matrix", "linear"):
        raise field_error(InputError, "form", program.form, "has no gradient", "matrix")
    if program.merged:
        raise field_error(
            InputError, "merged", program.merged, "has no gradient: who merges outputs has one", ()
        )
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
    # the gradient of a sum is smaller than D, so that it is spread out by a launch
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
    """The names of what is wanted, in the order in which `backward` gives their gradients."""
    accumulators = ACCUMULATORS if graph.gated else ("acc",)
    return [x for x in (*accumulators, *graph.tensors, *graph.numbers) if x in wanted]


def gradient_name(name: str) -> str:
    """What `backward` calls the gradient of an accumulator or input."""
    return "d" if name == "acc" else f"d{name}"


def _factor(graph: Graph, result: Result) -> Factor | None:
    """The number that a result is G times, before any sum; None if it is something else."""
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
