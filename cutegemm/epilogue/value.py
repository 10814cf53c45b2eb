# SPDX-License-Identifier: Apache-2.0
"""What an epilogue function computes with: values that record every operation into a trace."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cutegemm.epilogue.graph import (
    FP32_MAX,
    INFINITY,
    LEAVES,
    NUMBERS,
    Graph,
    Node,
    Result,
    result_type,
)
from cutegemm.epilogue.hints import UnknownOperation, foreign, instead
from cutegemm.errors import SpecError, field_error


class Trace:
    """The nodes recorded so far; equal nodes are recorded once."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.types: list[str] = []
        self._index: dict[Node, int] = {}

    def record(self, op: str, args: tuple[int, ...] = (), value: str | float | None = None) -> Value:
        """The value of an operation on earlier nodes, or of a leaf.

        Raises:
            SpecError: an operand is of the wrong type.
        """
        node = Node(op, args, value)
        index = self._index.get(node)
        if index is None:
            self.types.append(result_type(op, [self.types[a] for a in args]))
            index = self._index[node] = len(self.nodes)
            self.nodes.append(node)
        return Value(self, index)

    def constant(self, number: Any) -> Value:
        """A Python number as a value; -0.0 is written as -(0.0), for Python calls the two equal.

        Raises:
            SpecError: not a number, NaN, or out of the range of fp32.
        """
        if isinstance(number, bool) or not isinstance(number, numbers.Real):
            rule = "an operand must be a traced value or a Python number"
            raise field_error(SpecError, "epilogue", number, rule)
        try:
            value = float(number)
        except OverflowError:
            # an integer or fraction beyond the range of fp64
            value = math.nan
        if value != value or FP32_MAX < abs(value) < INFINITY:
            raise field_error(
                SpecError, "epilogue", number, "a constant must be in the range of fp32, not NaN"
            )
        if str(value) == "-0.0":
            return -self.record("const", value=0.0)
        return self.record("const", value=value)

    def graph(self, results: list[Result], gated: str | None = None) -> Graph:
        """The recorded nodes that the results need, in canonical order.

        The order is that of first need: depth first, operands from left to right but numbers after the
        tensors they scale. So it depends on the expressions alone, not on when their parts were written.
        """
        order: dict[int, int] = {}
        # not recursive, because a function may have more operations than Python has stack frames
        stack = [x.node for x in reversed(results)]
        while stack:
            index = stack[-1]
            args = sorted(self.nodes[index].args, key=lambda a: self.nodes[a].op in (*NUMBERS, "const"))
            missing = [a for a in args if a not in order]
            if missing:
                # the first operand and all that it needs come first
                stack.append(missing[0])
                continue
            order.setdefault(index, len(order))
            stack.pop()
        renumbered = (
            Node(n.op, tuple(order[a] for a in n.args), n.value) for n in map(self.nodes.__getitem__, order)
        )
        outputs = (replace(x, node=order[x.node]) for x in results)
        return Graph(tuple(renumbered), tuple(outputs), gated)


def apply(op: str, *operands: Any, value: str | None = None) -> Value:
    """Record an operation on values and Python numbers, at least one of them a value.

    Raises:
        SpecError: no operand is a value, one belongs to another epilogue, or one is of the wrong type.
    """
    traces = [x.trace for x in operands if isinstance(x, Value)]
    if not traces:
        raise field_error(SpecError, "epilogue", op, "takes a value of the epilogue being defined")
    trace = traces[0]
    if any(t is not trace for t in traces):
        raise field_error(SpecError, "epilogue", op, "takes values of one epilogue, not of several")
    values = [x if isinstance(x, Value) else trace.constant(x) for x in operands]
    return trace.record(op, tuple(x.index for x in values), value)


class Value:
    """A number or truth value for every element (m, n) of batch l, while an epilogue is being defined.

    Operators: + - * /, unary - and abs() on numbers; < <= > >= == != between numbers give truth values;
    & | ~ combine truth values. Either side may be a Python number.
    """

    __slots__ = ("trace", "index")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, index: int) -> None:
        self.trace, self.index = trace, index

    @property
    def node(self) -> Node:
        """The node recorded for this value."""
        return self.trace.nodes[self.index]

    @property
    def type(self) -> str:
        """ "number", "truth" or "integer"."""
        return self.trace.types[self.index]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise foreign(f"torch.{getattr(function, '__name__', function)}", "torch")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # an operator with a NumPy number on its left comes here as the ufunc of its name
        if method == "__call__" and not options and ufunc.__name__ in _UFUNCS:
            left, right = (
                x.item() if not isinstance(x, Value) and getattr(x, "shape", None) == () else x
                for x in inputs
            )
            op = _UFUNCS[ufunc.__name__]
            if isinstance(left, Value) or op not in _REFLECTED:
                return apply(op, left, right)
            return apply(_REFLECTED[op], right, left)
        raise foreign(f"np.{ufunc.__name__}", "NumPy")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise foreign(f"np.{function.__name__}", "NumPy")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise field_error(UnknownOperation, "epilogue", f".{name}", "a value has no methods", instead(name))

    def __repr__(self) -> str:
        node = self.node
        if node.op in LEAVES:
            return f"<{node.op}>" if node.value is None else f"<{node.op} {node.value}>"
        return f"<{self.type} {node.op}>"

    def __add__(self, other: Value | float) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: Value | float) -> Value:
        return apply("add", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return apply("sub", self, other)

    def __rsub__(self, other: Value | float) -> Value:
        return apply("sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return apply("mul", self, other)

    def __rmul__(self, other: Value | float) -> Value:
        return apply("mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return apply("div", self, other)

    def __rtruediv__(self, other: Value | float) -> Value:
        return apply("div", other, self)

    def __and__(self, other: Value) -> Value:
        return apply("and", self, other)

    def __rand__(self, other: Value) -> Value:
        return apply("and", other, self)

    def __or__(self, other: Value) -> Value:
        return apply("or", self, other)

    def __ror__(self, other: Value) -> Value:
        return apply("or", other, self)

    def __lt__(self, other: Value | float) -> Value:
        return apply("lt", self, other)

    def __le__(self, other: Value | float) -> Value:
        return apply("le", self, other)

    def __gt__(self, other: Value | float) -> Value:
        return apply("gt", self, other)

    def __ge__(self, other: Value | float) -> Value:
        return apply("ge", self, other)

    def __eq__(self, other: Value | float) -> Value:  # type: ignore[override]
        return apply("eq", self, other)

    def __ne__(self, other: Value | float) -> Value:  # type: ignore[override]
        return apply("ne", self, other)

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __invert__(self) -> Value:
        return apply("not", self)


def _refusal(what: str, instead: str) -> Callable[..., Any]:
    def method(self: Value, *_: Any) -> Any:
        raise field_error(SpecError, "epilogue", self, f"{what}; {instead}")

    return method


_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "less": "lt", "less_equal": "le",
    "greater": "gt", "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
}  # fmt: skip
# a comparison with a number on its left, as Python turns it round
_REFLECTED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_NO_NUMBER = (
    "a value is known only when the kernel runs, so it is no Python number",
    "keep to operations of epi",
)
_REFUSED = {
    "bool": (
        "Python cannot decide on a value that is known only when the kernel runs",
        "choose per element with epi.where(condition, x, y), combine conditions with & | ~",
    ),
    **dict.fromkeys(("float", "int", "complex", "index", "round", "floor", "ceil", "trunc"), _NO_NUMBER),
    **dict.fromkeys(
        ("iter", "len", "getitem"), ("a value is one element, not a sequence", "index the tensor")
    ),
    **dict.fromkeys(("pow", "rpow"), ("unknown operation **", "use epi.square, epi.sqrt or products")),
    **dict.fromkeys(("mod", "rmod"), ("unknown operation %", "use x - y * epi.floor(x / y)")),
    **dict.fromkeys(("floordiv", "rfloordiv"), ("unknown operation //", "use epi.floor(x / y)")),
    **dict.fromkeys(("matmul", "rmatmul"), ("unknown operation @", "an epilogue works element by element")),
}
for _name, _why in _REFUSED.items():
    setattr(Value, f"__{_name}__", _refusal(*_why))
