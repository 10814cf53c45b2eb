# SPDX-License-Identifier: Apache-2.0
"""The derivative of every operation, and `backward`: the epilogue of a GEMM's gradient.

For D = f(acc, inputs) the gradient of the accumulator is f'(acc, inputs) * dD, element by element. Where dD
is itself a product (dD = dY @ W^T of the layer above), that factor is an epilogue of the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from cutegemm import checks
from cutegemm.dtypes import as_dtype
from cutegemm.epilogue.functions import exp, rsqrt, where
from cutegemm.epilogue.graph import ACCUMULATORS, FP32_MAX, STORE, Graph, Node, Result
from cutegemm.epilogue.value import Trace, Value
from cutegemm.errors import SpecError, field_error

# accumulator -> the matrix that holds it after the forward run: an output of `with_saved`, an input of `backward`
SAVED: dict[Any, str] = {None: "saved_acc", "gate": "saved_gate", "up": "saved_up"}
_AXES = {"row": 0, "col": 1, "scalar": None}

Rule = Callable[..., tuple[Value | None, ...]]


def backward(graph: Graph, output: str = "d", wrt: Collection[str] | None = None) -> Graph:
    """The gradient epilogue of a stored output: from dD to the gradients of accumulator and inputs.

    Its accumulator is the gradient of the output. It reads the forward accumulator as a matrix input
    "saved_acc" (a gated graph's as "saved_gate" and "saved_up"), which `with_saved` has the forward store,
    and of the forward inputs those that a gradient needs; dropout repeats from the same seed and offset.
    Rounding passes the gradient through (`cast`) or stops it (`round`, `floor`); the operands of min and max
    share it where they are equal, as in torch, but a constant takes all of it.

    Args:
        graph: the forward epilogue.
        output: which output's gradient comes in, a stored one or a sum; others have none. Of a sum it is the same for
            all elements that the sum adds.
        wrt: the gradients wanted, by forward name: "acc" ("gate", "up") and inputs; None means all.

    Returns:
        A graph with these outputs: `d`, the accumulator's gradient (`dgate` and `dup` of a gated graph);
        and `d<name>` for each input, a row's summed over rows, a column's over columns, a scalar's over
        all, a matrix's element by element; batches apart.

    Raises:
        SpecError: no such stored output, a name in `wrt` that has no gradient, or an input or output that
            bears the name of a saved accumulator and is another value.

    Example:
        >>> print(backward(linear_combination(with_c=False), wrt=["acc"]))   # doctest: +SKIP
        d = acc * alpha
    """
    if not isinstance(graph, Graph):
        raise field_error(SpecError, "graph", graph, "must be an epilogue graph, as epi.define gives it")
    if graph.swapped:
        return backward(graph.transposed(), output, wrt).transposed()
    for x in graph.blocks:
        rule = "values of 8 bits and their scales have no gradient; store the value, and quantise it apart"
        raise field_error(SpecError, f"epilogue.{x.name}", "quantize", rule)
    linear = [x for x in graph.outputs if x.kind in (STORE, "sum")]
    target = next((x for x in linear if checks.among(output, (x.name,))), None)
    if target is None:
        names = tuple(x.name for x in linear)
        raise field_error(SpecError, "output", output, f"must be a stored output or a sum, one of {names}")
    accumulators = ACCUMULATORS if graph.gated else ("acc",)
    kinds = {**dict.fromkeys(accumulators, "acc"), **graph.tensors, **graph.numbers}
    wanted = _wanted(kinds, wrt)
    _check_saved(graph)
    trace = _Simplified()
    gradients = _gradients(graph, target.node, trace)
    leaves = {_name(n): g for n, g in zip(graph.nodes, gradients) if not n.args and n.op != "const"}
    return trace.graph([_result(name, kinds[name], leaves.get(name), trace) for name in wanted])


def with_saved(
    graph: Graph, output: str = "d", wrt: Collection[str] | None = None, dtype: Any = None
) -> Graph:
    """The forward epilogue, which also stores what `backward(graph, output, wrt)` reads of the accumulators.

    The new outputs have the names of that gradient's inputs: "saved_acc", of a gated graph "saved_gate" and
    "saved_up". None is added that the gradient does not read or the graph stores already.

    Args:
        graph: the forward epilogue.
        output, wrt: as of `backward`.
        dtype: of what is stored; None means A's.

    Raises:
        SpecError: as `backward` does.

    Example:
        >>> print(with_saved(define(lambda acc: relu(acc))))   # doctest: +SKIP
        d = max(acc, 0.0)
        saved_acc = acc
    """
    read = backward(graph, output, wrt).tensors
    kind = None if dtype is None else as_dtype(dtype, "with_saved.dtype").value
    stored = {x.name for x in graph.stores}
    added = [
        Result(SAVED[node.value], index, dtype=kind)
        for index, node in enumerate(graph.nodes)
        if node.op == "acc" and SAVED[node.value] in read and SAVED[node.value] not in stored
    ]
    return replace(graph, outputs=(*graph.outputs, *added))


def _check_saved(graph: Graph) -> None:
    """Refuse what could be taken for a saved accumulator."""
    for accumulator, name in SAVED.items():
        same = [x for x in graph.outputs if x.name == name and x.kind == STORE]
        saved = [x for x in same if graph.nodes[x.node] == Node("acc", value=accumulator)]
        if name in (*graph.tensors, *graph.numbers) or not saved and name in {x.name for x in graph.outputs}:
            rule = "is the name of the accumulator that the forward saves, which this is not"
            raise field_error(SpecError, "epilogue", name, rule, f"own_{name}")


def _wanted(kinds: dict[str, str], wrt: Collection[str] | None) -> list[str]:
    differentiable = [name for name, kind in kinds.items() if kind != "integer"]
    if wrt is None:
        return differentiable
    listed = isinstance(wrt, (Sequence, Set, Mapping)) and not isinstance(wrt, str)
    if not listed or not all(checks.among(name, differentiable) for name in wrt):
        raise field_error(SpecError, "wrt", wrt, f"must be names out of {', '.join(differentiable)}")
    return [name for name in differentiable if name in wrt]


def _name(node: Node) -> str:
    return str(node.value or "acc")


def _result(name: str, kind: str, gradient: Value | None, trace: Trace) -> Result:
    """The output that a leaf's gradient becomes."""
    value = trace.constant(0.0) if gradient is None else gradient
    called = "d" if name == "acc" else f"d{name}"
    if kind in _AXES:
        return Result(called, value.index, "sum", axis=_AXES[kind])
    return Result(called, value.index, STORE)


def _gradients(graph: Graph, target: int, trace: Trace) -> list[Value | None]:
    """The gradient of the target with respect to every node; None where there is none."""
    forward: list[Value] = []
    for node in graph.nodes:
        if node.op == "acc":
            forward.append(trace.record("matrix", value=SAVED[node.value]))
        else:
            forward.append(trace.record(node.op, tuple(forward[a].index for a in node.args), node.value))
    gradients: list[Value | None] = [None] * len(graph.nodes)
    gradients[target] = trace.record("acc")
    for index in reversed(range(len(graph.nodes))):
        node, gradient = graph.nodes[index], gradients[index]
        if not node.args or gradient is None or _constant(gradient) == 0:
            continue
        parts = DERIVATIVES[node.op](gradient, forward[index], *(forward[a] for a in node.args))
        for a, part in zip(node.args, parts):
            if part is not None:
                known = gradients[a]
                gradients[a] = part if known is None else known + part
    return gradients


def _constant(x: Value) -> float | None:
    return float(x.node.value) if x.node.op == "const" else None  # type: ignore[arg-type]


class _Simplified(Trace):
    """A trace that leaves out what multiplies by 0 or 1, adds 0, and works constants out."""

    def record(self, op: str, args: tuple[int, ...] = (), value: str | float | None = None) -> Value:
        operands = [Value(self, a) for a in args]
        simple = _simplify(op, operands, [_constant(x) for x in operands])
        if isinstance(simple, float):
            return self.constant(simple)
        return super().record(op, args, value) if simple is None else simple


def _simplify(op: str, args: list[Value], constants: list[float | None]) -> Value | float | None:
    """An equal value without the operation, or None."""
    if op in _ARITHMETIC and None not in constants and not (op == "div" and constants[1] == 0):
        folded = _ARITHMETIC[op](*constants)
        return folded + 0.0 if abs(folded) <= FP32_MAX else None  # -0.0 becomes 0.0
    if op == "neg" and args[0].node.op == "neg":
        return Value(args[0].trace, args[0].node.args[0])
    if op == "where" and constants[1] is not None and constants[1] == constants[2]:
        return args[1]
    if op not in ("add", "sub", "mul", "div"):
        return None
    (x, y), (cx, cy) = args, constants
    if op == "mul" and 0 in constants or op == "div" and cx == 0:
        return 0.0
    if (op == "mul" and cx == 1) or (op == "add" and cx == 0):
        return y
    if (op in ("mul", "div") and cy == 1) or (op in ("add", "sub") and cy == 0):
        return x
    if op == "mul" and -1 in constants:
        return -(y if cx == -1 else x)
    if op == "sub" and cx == 0:
        return -y
    if op in ("add", "sub") and y.node.op == "neg":
        negated = Value(y.trace, y.node.args[0])
        return x - negated if op == "add" else x + negated
    return None


_ARITHMETIC = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
}


def _sign(x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN too, as torch's derivative of abs has it."""
    return where(x > 0.0, 1.0, where(x < 0.0, -1.0, 0.0))


def _quotient(g: Value, z: Value, x: Value, y: Value) -> tuple[Value | None, ...]:
    share = g / y
    return share, -(share * z)


def _extremum(lost: Callable[[Value, Value], Value], tied: Callable[[Value, Value], Value]) -> Rule:
    """The rule of min and max: the selected operand gets the gradient, equal ones half each, none beside a constant."""

    def rule(g: Value, z: Value, x: Value, y: Value) -> tuple[Value | None, ...]:
        if _constant(y) is not None:
            return where(tied(x, y), 0.0, g), None
        if _constant(x) is not None:
            return None, where(tied(y, x), 0.0, g)
        shared = where(x == y, 0.5 * g, g)
        return where(lost(x, y), 0.0, shared), where(lost(y, x), 0.0, shared)

    return rule


def _none(g: Value, *_: Value) -> tuple[Value | None, ...]:
    """Constant almost everywhere."""
    return ()


# op -> rule(gradient of the result, the result, its operands) -> the operands' gradients
DERIVATIVES: dict[str, Rule] = {
    "add": lambda g, z, x, y: (g, g),
    "sub": lambda g, z, x, y: (g, -g),
    "mul": lambda g, z, x, y: (g * y, g * x),
    "div": _quotient,
    "neg": lambda g, z, x: (-g,),
    "abs": lambda g, z, x: (g * _sign(x),),
    "min": _extremum(lambda x, y: x > y, lambda x, y: x >= y),
    "max": _extremum(lambda x, y: x < y, lambda x, y: x <= y),
    "exp": lambda g, z, x: (g * z,),
    "log": lambda g, z, x: (g / x,),
    "sqrt": lambda g, z, x: (g * (0.5 * rsqrt(x)),),
    "rsqrt": lambda g, z, x: (g * (-0.5 * (z * z * z)),),
    "tanh": lambda g, z, x: (g * (1.0 - z * z),),
    "sigmoid": lambda g, z, x: (g * (z - z * z),),
    "erf": lambda g, z, x: (g * ((2 / math.sqrt(math.pi)) * exp(-(x * x))),),
    "cast": lambda g, z, x: (g,),
    "where": lambda g, z, condition, x, y: (None, where(condition, g, 0.0), where(condition, 0.0, g)),
    **dict.fromkeys(("floor", "round", "random"), _none),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"), _none),
}
