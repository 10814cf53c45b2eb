# SPDX-License-Identifier: Apache-2.0
"""Which element types the tensors of a call may have: one rule for specs, problems, plans and runs.

It depends on what a tensor is to the epilogue (`call_order.Role.types`) and on the type of the sums: int32 for int8 and
uint8 operands, fp32 for all others.
"""

from __future__ import annotations

from cutegemm.arch.instructions import partners
from cutegemm.dtypes import DType
from cutegemm.epilogue import scales
from cutegemm.epilogue.call_order import ROLES
from cutegemm.epilogue.graph import Graph, linear_combination

_OPERANDS = tuple(x for x in DType if partners(x))
_FLOATS = tuple(x for x in DType if not x.whole)
_EVERY = tuple(DType)
_PLAIN = linear_combination(True)
_WHOLE_OF_WHOLE = "integers are legal beside int8 and uint8 operands alone"
# role's types -> with sums in fp32, with sums in int32, and the rule about what only the latter have
_LEGAL: dict[str, tuple[tuple[DType, ...], tuple[DType, ...], str]] = {
    "operands": (_OPERANDS, _OPERANDS, ""),
    "matrix": (_FLOATS, _FLOATS, ""),
    "vector": (_FLOATS, _EVERY, _WHOLE_OF_WHOLE),
    "stored": (
        tuple(x for x in DType if x is not DType.INT32),
        _EVERY,
        "int32 holds sums of int8 and uint8 operands alone",
    ),
    "factors": (tuple(x for x in _OPERANDS if x.bits > 8),) * 2 + ("",),
    "scales": ((DType.FP32, DType.UINT8),) * 2 + ("",),
    "fp32": ((DType.FP32,),) * 2 + ("",),
}


def legal(types: str, whole: bool) -> tuple[DType, ...]:
    """The element types that a tensor may have.

    Args:
        types: of its role.
        whole: whether the operands are integers.
    """
    without, among, _ = _LEGAL[types]
    return among if whole else without


def of(name: str, types: str) -> str:
    """A role's types, of a tensor of this name: an operand's scales of rows are numbers of 16 or 32 bits."""
    return "factors" if name in scales.NAMES and types == "vector" else types


def fault(graph: Graph | None, name: str, dtype: DType, whole: bool) -> tuple[str, DType] | None:
    """The rule that a type breaks and the nearest legal one; None if it breaks none.

    Args:
        graph: the epilogue; None is the plain one.
        name: of one of its inputs, or of what it stores.
        dtype: the tensor's.
        whole: whether the operands are integers.
    """
    types = of(name, ROLES[(_PLAIN if graph is None else graph).tensors.get(name, "store")].types)
    found = legal(types, whole)
    if dtype in found:
        return None
    *most, last = (x.value for x in found)
    listed = f"{', '.join(most)} or {last}" if most else last
    why = f"{_LEGAL[types][2]}; " if dtype in _LEGAL[types][1] else ""
    near = DType.FP32 if dtype.bits == 32 else DType.BF16
    return f"{why}must be {listed}", near if near in found else found[0]


def sums_fault(dtype: DType, whole: bool | None) -> tuple[str, DType] | None:
    """As `fault`, of the type of the sums; `whole` is None where the operands are unspecified."""
    found = {DType.INT32: True, DType.FP32: False}.get(dtype)
    if found is not None and whole in (None, found):
        return None
    return "sums are fp32, of int8 and uint8 operands int32", DType.INT32 if whole else DType.FP32
