# SPDX-License-Identifier: Apache-2.0
"""Sorts a run's arguments by name into the inputs of the epilogue's graph. Imports no torch.

A call's tensors are in the order of a launch's addresses (`epilogue.call_order`): a, b, the epilogue's tensors, its
outputs (stored ones, then reductions; None for one to be allocated), and its scalars that are 0-d tensors.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutegemm import checks
from cutegemm.epilogue import call_order, scales
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, field_error
from cutegemm.running.arguments.call import Request


@dataclass(frozen=True)
class Order:
    """The order of a kind of call's tensors and numbers.

    Attributes:
        passed: the tensors.
        names: of the tensors.
        first_out, end_out: index of the first output, and one past the last.
        numbers: names of the numbers passed by value.
    """

    passed: tuple[call_order.Passed, ...]
    names: tuple[str, ...]
    first_out: int
    end_out: int
    numbers: tuple[str, ...]

    @staticmethod
    def of(graph: Graph, scalars: tuple[str, ...]) -> Order:
        """The order of an epilogue's calls that pass `scalars` as tensors."""
        passed = call_order.tensors(graph, scalars)
        written = [i for i, x in enumerate(passed) if x.role.written]
        return Order(
            passed=passed,
            names=tuple(x.name for x in passed),
            first_out=written[0],
            end_out=written[-1] + 1,
            numbers=tuple(call_order.numbers(graph, scalars)),
        )

    @property
    def outs(self) -> tuple[str, ...]:
        """The outputs' names."""
        return self.names[self.first_out : self.end_out]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the epilogue's tensor inputs, then of its scalars that are tensors."""
        return self.names[2 : self.first_out] + self.names[self.end_out :]

    def named(self, given: Sequence[Any]) -> dict[str, Any]:
        """The tensors of a call by name; None for an output to be allocated."""
        return dict(zip(self.names, given, strict=True))

    def request(self, named: Mapping[str, Any]) -> Request:
        """The request of a call from its tensors by name."""
        return Request(
            named["a"],
            named["b"],
            {name: named[name] for name in self.inputs},
            {name: named[name] for name in self.outs if named[name] is not None},
        )


class Signature:
    """The arguments of runs with one epilogue, computed once.

    Attributes:
        graph: the epilogue.
        reads_alpha: whether it reads an input named alpha.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._kinds = {**graph.tensors, **graph.numbers}
        self.reads_alpha = "alpha" in self._kinds
        self._tensors = tuple(graph.tensors)
        self._numbers = tuple(graph.numbers.items())
        self._outs = tuple(x.name for x in (*graph.stores, *graph.reductions))
        self._nothing = (None,) * len(self._outs)
        self._orders: dict[tuple[str, ...], Order] = {}

    def order(self, scalars: tuple[str, ...]) -> Order:
        """The order of calls that pass `scalars` as tensors."""
        found = self._orders.get(scalars)
        if found is None:
            found = self._orders[scalars] = Order.of(self.graph, scalars)
        return found

    def bind(
        self, a: Any, b: Any, named: Mapping[str, Any], out: Any
    ) -> tuple[tuple[Any, ...], tuple[float, ...], tuple[str, ...]]:
        """The (ordered tensors, numbers passed by value, names of the scalars that are tensors) of a call.

        Raises:
            InputError: a name is missing or unknown, or a number is not one.
        """
        if named.keys() != self._kinds.keys():
            self._check_names(named)
        given = [a, b]
        for name in self._tensors:
            if named[name] is None:
                raise self._missing(name)
            given.append(named[name])
        given += self._nothing if out is None else self._given_outs(out)
        values: list[float] = []
        scalars: list[str] = []
        for name, kind in self._numbers:
            value = named[name]
            if type(value) is float and kind == "scalar":
                values.append(value)
            elif value is None:
                raise self._missing(name)
            elif kind == "scalar" and (hasattr(value, "data_ptr") or hasattr(value, "__dlpack__")):
                scalars.append(name)
                given.append(_whole(name, value) if name in scales.NAMES else value)
            else:
                values.append(passed(kind, name, value))
        return tuple(given), tuple(values), tuple(scalars)

    def _given_outs(self, out: Any) -> list[Any]:
        outs = outputs_given(self.graph, out)
        return [outs.get(name) for name in self._outs]

    def _check_names(self, named: Mapping[str, Any]) -> None:
        for name in named:
            if name not in self._kinds:
                raise unread(name, tuple(self._kinds), _OPTIONS)
        for name in self._kinds:
            if named.get(name) is None:
                raise self._missing(name)

    def _missing(self, name: str) -> InputError:
        kind = self._kinds[name]
        if kind.startswith("blocks"):
            return InputError("missing; the mainloop multiplies by it, one scale per block", field=name)
        if name in scales.NAMES and kind in _SCALES:
            return InputError(f"missing; must be {_SCALES[kind]}", field=name)
        article = "an" if kind == "integer" else "a"
        return InputError(f"missing; the epilogue reads it as {article} {kind}", field=name)


# stands for the value in a message about a keyword
_DOTS = "..."
# kind of a scale in the graph -> what it must be
_SCALES = {
    "scalar": "a number or a 0-d fp32 tensor",
    "col": "M scales, one for each row of A",
    "row": "N scales, one for each column of B",
}
# input of an epilogue -> the argument that it is computed from (`zero_points`)
_GIVEN = {"zero_a": "zero_point_a", "zero_b": "zero_point_b"}
# keywords of a run that are not inputs of an epilogue
_OPTIONS = ("c", "alpha", "beta", "out", "backend", "workspace", "groups")


def unread(name: str, read: Sequence[str], options: Sequence[str], rule: str = "") -> InputError:
    """The error of a call with a keyword that its epilogue does not read.

    Args:
        name: the keyword.
        read: the names that the epilogue reads.
        options: the call's other keywords, one of which may be meant.
        rule: replaces the list of the names that the epilogue reads.
    """
    read = [_GIVEN.get(x, x) for x in read]
    near = checks.near(name, (x for x in (*read, *options) if x != name))
    rule = rule or f"the epilogue reads {', '.join(read) or 'nothing'}"
    return field_error(InputError, name, _DOTS, rule, near)


def _whole(name: str, value: Any) -> Any:
    """`scales.single` of an operand's scale; nested and sparse tensors are refused later."""
    if getattr(value, "is_nested", False) or "sparse" in str(getattr(value, "layout", "")):
        return value
    return scales.single(name, value)


def number(name: str, value: Any, rule: str = "must be a number or a 0-d fp32 tensor") -> float:
    """Convert a scalar to a float.

    Raises:
        InputError: it is not a real number, or out of range. A bool is refused, too.
    """
    if not isinstance(value, numbers.Real) or (isinstance(value, bool) and name in scales.NAMES):
        raise field_error(InputError, name, value, rule)
    try:
        return float(value)
    except OverflowError:
        raise field_error(InputError, name, value, "must be in the range of a float") from None


def integer(name: str, value: Any) -> int:
    """Convert a signed or unsigned 32-bit integer to the signed one with the same bits.

    Raises:
        InputError: it is none.
    """
    found = int(value) if isinstance(value, numbers.Integral) else None
    if found is None or not -(1 << 31) <= found < 1 << 32:
        raise field_error(InputError, name, value, "must be a 32-bit integer")
    return found - (1 << 32) if found >= 1 << 31 else found


def passed(kind: str, name: str, value: Any) -> float:
    """Convert a scalar or integer of an epilogue to the number that a launch takes by value.

    Raises:
        InputError: it is none.
    """
    return integer(name, value) if kind == "integer" else number(name, value)


def outputs_given(graph: Graph, out: Any) -> dict[str, Any]:
    """The outputs given by the caller, by name; a single tensor is d.

    Raises:
        InputError: the epilogue has no such output.
    """
    if out is None:
        return {}
    outs = dict(out) if isinstance(out, Mapping) else {"d": out}
    names = [x.name for x in graph.outputs]
    for name in outs:
        if name not in names:
            rule = f"the epilogue's outputs are {', '.join(names)}"
            raise field_error(InputError, "out", name, rule, checks.near(str(name), names))
    return {name: tensor for name, tensor in outs.items() if tensor is not None}


@dataclass(frozen=True)
class Unprepared:
    """A call whose kind is not cached.

    Attributes:
        signature: of the epilogue.
        given, addresses, numbers: tensors, addresses and numbers, in the signature's order.
        key: of its kind in the cache; None if it cannot be cached.
        scalars: names of the scalars that are tensors.
        unread: a C that is given but not read.
    """

    signature: Signature
    given: tuple[Any, ...]
    addresses: tuple[int, ...]
    numbers: tuple[float, ...]
    key: tuple[Any, ...] | None
    scalars: tuple[str, ...] = ()
    unread: Any = None


__all__ = ["Order", "Signature", "Unprepared", "integer", "number", "outputs_given", "passed", "unread"]
