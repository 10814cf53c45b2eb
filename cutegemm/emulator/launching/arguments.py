# SPDX-License-Identifier: Apache-2.0
"""Converts the arguments of a kernel (arrays, tensors, numbers, tensor maps) to parameter bytes and buffers."""

from __future__ import annotations

import numbers
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.checks import among, integers
from cutegemm.emulator.ptx.kernel import Kernel, Param
from cutegemm.emulator.state import tensors
from cutegemm.emulator.state.memory import Buffer, Fault, View
from cutegemm.errors import EmulatorError, check, field_error

SWIZZLES = {None: 0, 0: 0, 32: 1, 64: 2, 128: 3, "none": 0, "32B": 1, "64B": 2, "128B": 3}
FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
# NumPy and torch names of element types -> types of a tensor map.
KINDS = {
    "uint8": "u8", "int8": "u8", "bool": "u8", "float8_e4m3fn": "u8", "float8_e5m2": "u8", "uint16": "u16",
    "int16": "u16", "float16": "f16", "bfloat16": "bf16", "uint32": "u32", "int32": "u32", "float32": "f32",
    "uint64": "u64", "int64": "u64", "float64": "f64",
}  # fmt: skip
PLAIN = "biufcV"  # kinds of NumPy scalars that are passed as their bytes
BOX_MOST = 256  # elements of a box along one dimension, PTX ISA 5.5.2


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map as an argument: its 128 bytes, and the memory it describes."""

    map: tensors.TensorMap
    view: View

    def __bytes__(self) -> bytes:
        return tensors.encode(self.map)


def tensor_map(
    array: Any, box: Sequence[int], *, swizzle: int | str | None = None, dtype: str | None = None
) -> TensorMapArgument:
    """A tensor map (CUtensorMap) of an array or CPU tensor, to pass as an argument.

        emulator.tensor_map(a, (64, 64), swizzle=128)       # for an (M, K) array: boxes of 64 rows and 64 columns

    Args:
        array: up to five dimensions; the last one is contiguous, base and other strides are multiples of 16 bytes.
        box: extents of the box in elements, up to 256 each, in the order of the array's dimensions (innermost last).
        swizzle: bytes of the swizzle pattern, 32, 64 or 128 (or "128B"), or None.
        dtype: type of the elements, such as "bf16", for types that the array lacks.

    Raises:
        EmulatorError: TMA does not support this box or layout (PTX ISA 9.0, 5.5).
    """
    view = View.needed("array", array)
    if not among(swizzle, tuple(SWIZZLES)):
        raise field_error(EmulatorError, "swizzle", swizzle, "one of None, 32, 64, 128")
    if not isinstance(dtype, (str, type(None))):
        raise field_error(EmulatorError, "dtype", dtype, "must be the name of a type, such as 'bf16'")
    extents = integers(box)
    if extents is None:
        raise field_error(EmulatorError, "box", box, "must be a tuple of whole numbers")
    kind = _element(view, dtype)
    _check_layout(view)
    rank = len(view.shape)
    if len(extents) != rank:
        rule = f"one extent for each of the array's {rank} dimensions"
        raise field_error(EmulatorError, "box", extents, rule)
    near = tuple(min(max(b, 1), BOX_MOST) for b in extents)
    if near != extents:
        rule = f"each extent from 1 to {BOX_MOST} elements"
        raise field_error(EmulatorError, "box", extents, rule, near)
    dims, strides = tuple(view.shape[::-1]), tuple(view.strides[-2::-1])
    packed = tensors.TensorMap(view.address, kind, dims, strides, extents[::-1], SWIZZLES[swizzle])
    try:
        tensors.decode(tensors.encode(packed))
    except Fault as e:
        rule = f"{e} (the box is given in the order of the array's dimensions)"
        raise field_error(EmulatorError, "box", extents, rule) from e
    return TensorMapArgument(packed, view)


def _element(view: View, dtype: str | None) -> str:
    """The type of an array's elements in a tensor map: `dtype`, or that of the array."""
    kind = dtype or KINDS.get(view.kind)
    sizes = tensors.ITEM_BYTES
    if kind is None:
        rule = f"elements of type {view.kind}: choose dtype= from {', '.join(sizes)}"
        raise field_error(EmulatorError, "array", view.owner, rule)
    if kind not in sizes:
        raise field_error(EmulatorError, "dtype", dtype, f"one of {', '.join(sizes)}")
    if sizes[kind] != view.item:
        rule = f"{sizes[kind]} bytes, the array's elements have {view.item}"
        raise field_error(EmulatorError, "dtype", kind, rule)
    return kind


def _check_layout(view: View) -> None:
    """Refuse an array that TMA cannot address."""

    def need(legal: bool, rule: str) -> None:
        check(legal, EmulatorError, rule, field="array", value=view.owner)

    most, align = tensors.GLOBAL_STRIDE_MOST, tensors.GLOBAL_ALIGN
    need(1 <= len(view.shape) <= 5, "one to five dimensions")
    need(
        all(1 <= n <= tensors.GLOBAL_EXTENT_MOST for n in view.shape),
        f"each extent from 1 to {tensors.GLOBAL_EXTENT_MOST}",
    )
    need(
        view.strides[-1] == view.item,
        f"strides {view.strides} bytes, elements of {view.item}: the last dimension must be contiguous; "
        "pass array.T of a column-major matrix",
    )
    wrong = [s for s in (view.address, *view.strides[:-1]) if s % align]
    need(not wrong, f"address and strides {wrong} bytes are not multiples of {align}")
    need(all(0 <= s < most for s in view.strides), f"strides {view.strides} bytes: from 0 to below {most}")


def pack(kernel: Kernel, args: Sequence[Any]) -> tuple[list[bytes], list[Buffer]]:
    """Parameter bytes and buffers of a kernel's arguments.

    A NumPy array or CPU tensor is passed by its pointer, a number in the parameter's type, None as a null pointer.
    Bytes, and objects that hold bytes such as ctypes structures, are passed as they are.

    Raises:
        EmulatorError: too many or too few arguments, or one that does not fit its parameter.
    """
    if len(args) != len(kernel.params):
        rule = f"{kernel.name[:60]} has {len(kernel.params)} parameters, not {len(args)}"
        raise field_error(EmulatorError, "args", tuple(type(x).__name__ for x in args), rule)
    params, buffers = [], []
    for i, (param, value) in enumerate(zip(kernel.params, args, strict=True)):
        name = f"args[{i}]"
        is_map = isinstance(value, TensorMapArgument)
        view = value.view if is_map else View.of(name, value)
        data = _number(name, param, value) if is_map or view is None else view.address.to_bytes(8, "little")
        if view is not None:
            buffers.append(view.buffer(name))
        if len(data) != param.size:
            rule = f"{type(value).__name__} has {len(data)} bytes, {param.name[-24:]} has {param.size}"
            raise field_error(EmulatorError, name, value, rule)
        params.append(data)
    return params, buffers


def _number(name: str, param: Param, value: Any) -> bytes:
    """The bytes of an argument that is not an array: a number, None or an object with bytes."""
    if value is None:
        return bytes(param.size)
    if isinstance(value, np.generic) and value.dtype.kind in PLAIN and value.dtype.itemsize == param.size:
        return value.tobytes()
    whole = (int(value),) if isinstance(value, bool) else integers((value,))
    if whole is not None and param.kind not in FLOATS:
        bits = 8 * param.size
        near = min(max(whole[0], -(1 << bits - 1)), (1 << bits) - 1)
        if near != whole[0]:
            rule = f"does not fit the {param.size} bytes of {param.name[-24:]}"
            raise field_error(EmulatorError, name, whole[0], rule, near)
        return (near % (1 << bits)).to_bytes(param.size, "little")
    if whole is not None or isinstance(value, numbers.Real):
        form = FLOATS.get(param.kind) or {2: "<e", 4: "<f", 8: "<d"}.get(param.size)
        if form is None or param.kind[0] in "su":
            raise field_error(EmulatorError, name, value, f"{param.name[-24:]} is of type {param.kind}")
        try:
            return struct.pack(form, float(value if whole is None else whole[0]))
        except (OverflowError, ValueError, TypeError) as e:
            rule = f"does not fit {param.name[-24:]} of type {param.kind}"
            raise field_error(EmulatorError, name, value, rule) from e
    try:
        if isinstance(value, str):
            raise TypeError("text")
        # bytes(value) of an iterable might not end
        return bytes(value if hasattr(type(value), "__bytes__") else memoryview(value))
    except Exception as e:
        rule = "must be an array, a CPU tensor, a number, a tensor map, bytes or None"
        raise field_error(EmulatorError, name, value, rule) from e
