# SPDX-License-Identifier: Apache-2.0
"""Zero points of integer operands. The epilogue subtracts terms computed from the operands' sums along K.

    (A - za)(B - zb) = A B - za (sums of B's columns - K zb) - zb (sums of A's rows)

`epilogue.scaling.shifted` builds the graph; its integers are exact modulo 2**32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cutegemm import checks
from cutegemm.epilogue.scales import ROW, TENSOR
from cutegemm.errors import InputError, field_error
from cutegemm.running.arguments.describe import check_tensor

NAMES = ("zero_point_a", "zero_point_b")
SUMS = ("sums_a", "sums_b")
OPERANDS = (torch.int8, torch.uint8)
_TYPES = (torch.int8, torch.uint8, torch.int32)
_LEAST, _MOST = -(2**31), 2**31 - 1


def read(kinds: tuple[str, str], a: Any, b: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the zero points among a call's inputs by the inputs that the epilogue reads.

    Args:
        kinds: of the zero points of A and B: "tensor", "row", or "" for none.
        a, b: (..., M, K) and (..., K, N), int8 or uint8.
        named: the call's inputs: "zero_point_a" and "zero_point_b", each a number or tensor of integers; perhaps
            "sums_a" and "sums_b", the sums along K that the other operand's zero point needs, (..., M) and (..., N) in
            int32. A sum that is not given costs a pass over the operand.

    Raises:
        InputError: an operand is of another type, a zero point or a sum is missing or of another type or shape, or the
            call gives what is made of them.
    """
    found = dict(named)
    for name, made, kind, x in zip(NAMES, ("zero_a", "zero_b"), kinds, (a, b)):
        if kind == TENSOR and made in found:
            raise field_error(InputError, made, "...", f"is made of {name}, which the call gives", name)
        if kind and x.dtype not in OPERANDS:
            rule = f"{name[-1]} is {x.dtype}; only int8 and uint8 operands have zero points"
            raise field_error(InputError, name, found.get(name), rule)
    sums = {
        "a": _sums("sums_a", found, a, -1) if kinds[1] else None,
        "b": _sums("sums_b", found, b, -2) if kinds[0] else None,
    }
    rows, columns = (*a.shape[:-1],), (*b.shape[:-2], b.shape[-1])
    point_a = _point("zero_point_a", kinds[0], found, a, rows)
    point_b = _point("zero_point_b", kinds[1], found, b, columns)
    if kinds[0]:
        beyond = sums["b"] if point_b is None else sums["b"] - a.shape[-1] * point_b
        found |= (
            {"zero_a": point_a * beyond}
            if kinds[0] == TENSOR
            else {"zero_point_a": point_a, "sums_b": beyond}
        )
    if kinds[1]:
        given = {"zero_point_b": point_b, "sums_a": sums["a"]}
        found |= {"zero_b": point_b * sums["a"]} if kinds[1] == TENSOR else given
    return found


def check_operands(a: Any, b: Any) -> None:
    """Check operands that may be summed along K.

    Raises:
        InputError: one is not a strided tensor, or its type has no zero points.
    """
    for name, x in (("a", a), ("b", b)):
        check_tensor(name, x, (2, 3), OPERANDS)


def kind_of(value: Any) -> str:
    """The kind of a zero point, by its shape: one for all elements, or one per row."""
    return ROW if isinstance(value, torch.Tensor) and value.dim() else TENSOR


def _sums(name: str, found: dict[str, Any], x: Any, axis: int) -> Any:
    """The sums of an operand along K, in int32."""
    given = found.pop(name, None)
    if given is None:
        return x.sum(axis, dtype=torch.int32)
    wanted = (*x.shape[:-1],) if axis == -1 else (*x.shape[:-2], x.shape[-1])
    return _checked(name, given, x, (torch.int32,), (wanted,))


def _point(name: str, kind: str, found: dict[str, Any], x: Any, shape: tuple[int, ...]) -> Any:
    """A zero point as an int or an int32 tensor; None if the operand has none."""
    if not kind:
        return None
    value = found.pop(name, None)
    if value is None:
        raise InputError("missing; the spec declares it", field=name)
    if kind == ROW:
        return _checked(name, value, x, _TYPES, (shape, shape[-1:])).to(torch.int32)
    if isinstance(value, torch.Tensor):
        return _checked(name, value, x, _TYPES, ((), (1,))).to(torch.int32)
    return checks.integer(InputError, name, value, _LEAST, _MOST)


def _checked(name: str, value: Any, x: Any, types: Any, shapes: Any) -> Any:
    """Check that a value is a tensor of one of these types and shapes on an operand's device."""
    if not isinstance(value, torch.Tensor):
        raise InputError(f"must be a torch.Tensor, got {type(value).__name__}", field=name)
    if value.is_nested or value.layout is not torch.strided:
        raise field_error(InputError, name, value, "must be a strided tensor of one shape")
    if value.dtype not in types:
        listed = " or ".join(str(t).removeprefix("torch.") for t in types)
        raise field_error(InputError, f"{name}.dtype", value.dtype, f"must be {listed}")
    if tuple(value.shape) not in shapes:
        raise field_error(InputError, f"{name}.shape", tuple(value.shape), f"must be {shapes[0]}")
    if value.device != x.device:
        raise field_error(
            InputError, f"{name}.device", str(value.device), f"must be the operand's, {x.device}"
        )
    return value


__all__ = ["NAMES", "SUMS", "check_operands", "kind_of", "read"]
