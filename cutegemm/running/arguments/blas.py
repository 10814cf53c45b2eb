# SPDX-License-Identifier: Apache-2.0
"""Arguments of the plain epilogue, D = alpha * a @ b + beta * c. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import InputError, field_error
from cutegemm.running.arguments.named import Signature, Unprepared, number, unread

PLAIN_READS = ("c", "alpha", "beta")
PLAIN_RULE = "the plain epilogue reads c, alpha and beta"
PLAIN, PLAIN_WITH_C = Signature(linear_combination(False)), Signature(linear_combination(True))


def blas_names(graph: Graph, c: Any, alpha: Any, beta: Any) -> dict[str, Any]:
    """`run`'s arguments c, alpha and beta by name, if the epilogue reads them or the caller gave them."""
    given = {name: value for name, value in (("c", c), ("beta", beta)) if value is not None}
    if "alpha" in graph.tensors or "alpha" in graph.numbers:
        return given | {"alpha": alpha}
    return given if type(alpha) is float and alpha == 1.0 else given | {"alpha": alpha}


def blas_number(name: str, value: Any) -> float:
    """alpha or beta of the plain epilogue.

    Raises:
        InputError: it is not a number.
    """
    return number(name, value, "must be a number; an epilogue of your own may take 0-d tensors (epi.Scalar)")


def refused(named: Mapping[str, Any], beta: float | None) -> InputError:
    """The error of a run that passes an argument the plain epilogue does not read, or beta without c."""
    if named:
        return unread(next(iter(named)), PLAIN_READS, ("out", "backend", "workspace", "groups"), PLAIN_RULE)
    return field_error(InputError, "beta", beta, "needs c", 0.0)


def blas_call(blas: tuple[Any, Any, Any], named: Mapping[str, Any]) -> tuple[Signature, dict[str, Any]]:
    """The plain epilogue for a call's c, alpha and beta, and its inputs by name. C is not read if beta is 0.

    Raises:
        InputError: there are other inputs, beta without c, or a value that is not a number.
    """
    c, alpha, beta = blas
    alpha, beta = blas_number("alpha", alpha), None if beta is None else blas_number("beta", beta)
    if named or (c is None and beta):
        raise refused(named, beta)
    if c is None or beta == 0.0:
        return PLAIN, {"alpha": alpha}
    return PLAIN_WITH_C, {"alpha": alpha, "c": c, "beta": 1.0 if beta is None else beta}


def plain_call(
    given: tuple[Any, Any, Any, Any],
    addresses: tuple[int, int, int, int],
    alpha: float,
    beta: float | None,
    key: tuple[Any, ...] | None,
) -> Unprepared:
    """A call whose kind is not cached. Its tensors include c only if c is read.

    Args:
        given, addresses: a, b, c and out, and their addresses.
        alpha, beta: scalars; None as beta means 1.
        key: of the kind in the cache, or None.
    """
    a, b, c, out = given
    if c is not None and beta != 0.0:
        return Unprepared(PLAIN_WITH_C, given, addresses, (alpha, 1.0 if beta is None else beta), key)
    pa, pb, _, pd = addresses
    return Unprepared(PLAIN, (a, b, out), (pa, pb, pd), (alpha,), key, unread=c)


__all__ = [
    "PLAIN",
    "PLAIN_READS",
    "PLAIN_RULE",
    "PLAIN_WITH_C",
    "blas_call",
    "blas_names",
    "blas_number",
    "plain_call",
    "refused",
]
