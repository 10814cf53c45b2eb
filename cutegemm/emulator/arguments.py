# SPDX-License-Identifier: Apache-2.0
"""Arguments of a kernel from outside: arrays, tensors, numbers and tensor maps become parameter bytes and buffers.

No torch is needed: a tensor is anything with `data_ptr()`, `shape`, `stride()` and `element_size()`.
"""

from __future__ import annotations

import numbers
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.emulator.ptx.kernel import Kernel, Param
from cutegemm.emulator.state.memory import Buffer, Fault
from cutegemm.emulator.units import tma
from cutegemm.errors import EmulatorError

SWIZZLES = {None: 0, 0: 0, 32: 1, 64: 2, 128: 3, "none": 0, "32B": 1, "64B": 2, "128B": 3}
FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}
# NumPy and torch names of element types -> types of a tensor map.
KINDS = {
    "uint8": "u8", "int8": "u8", "bool": "u8", "float8_e4m3fn": "u8", "float8_e5m2": "u8", "uint16": "u16",
    "int16": "u16", "float16": "f16", "bfloat16": "bf16", "uint32": "u32", "int32": "u32", "float32": "f32",
    "uint64": "u64", "int64": "u64", "float64": "f64",
}  # fmt: skip
BOX_MOST = 256  # elements of a box along one dimension, PTX ISA 5.5.2


@dataclass(frozen=True)
class View:
    """An array or tensor: address, extents, strides and element size in bytes, and the name of its type."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int
    kind: str
    owner: Any

    @classmethod
    def of(cls, x: Any) -> View | None:
        """The view of a NumPy array or a CPU tensor; None for anything else."""
        if isinstance(x, np.ndarray):
            return cls(x.ctypes.data, x.shape, x.strides, x.itemsize, x.dtype.name, x)
        if not all(hasattr(x, name) for name in ("data_ptr", "shape", "stride", "element_size")):
            return None
        device = getattr(getattr(x, "device", None), "type", "cpu")
        if device != "cpu":
            raise EmulatorError(f"args: a tensor on {device}: the emulator takes CPU tensors; x.cpu()")
        item = x.element_size()
        strides = tuple(s * item for s in x.stride())
        return cls(x.data_ptr(), tuple(x.shape), strides, item, str(x.dtype).rsplit(".", 1)[-1], x)

    def buffer(self, name: str) -> Buffer:
        """The bytes its elements span."""
        if 0 in self.shape:
            return Buffer(self.address, 0, name)
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(s for s in steps if s < 0)
        return Buffer(self.address + low, sum(abs(s) for s in steps) + self.item, name)


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map as an argument: its 128 bytes, and the memory it describes."""

    map: tma.TensorMap
    view: View

    def __bytes__(self) -> bytes:
        return tma.encode(self.map)


def tensor_map(
    array: Any, box: Sequence[int], *, swizzle: int | str | None = None, dtype: str | None = None
) -> TensorMapArgument:
    """A tensor map (CUtensorMap) of an array or CPU tensor, to be passed as an argument.

        emulator.tensor_map(a, (64, 64), swizzle=128)       # of an (M, K) array: boxes of 64 rows and 64 columns

    Args:
        array: up to five dimensions, the last one contiguous; base and other strides are multiples of 16 bytes.
        box: elements of the box, in the order of the array's dimensions (the innermost last), each up to 256.
        swizzle: bytes of the swizzle pattern, 32, 64 or 128 (or "128B"), or None.
        dtype: type of the elements, such as "bf16", where the array cannot say it.

    Raises:
        EmulatorError: a box or layout that TMA refuses (PTX ISA 9.0, 5.5).
    """
    view = View.of(array)
    if view is None:
        raise EmulatorError(f"array={type(array).__name__}: a NumPy array or a CPU tensor")
    if not isinstance(swizzle, (str, int, type(None))) or swizzle not in SWIZZLES:
        raise EmulatorError(f"swizzle={swizzle!r}: one of None, 32, 64, 128")
    if not isinstance(dtype, (str, type(None))):
        raise EmulatorError("must be the name of a type, such as 'bf16'", field="dtype", value=dtype)
    listed = isinstance(box, (tuple, list))
    if not listed or not all(isinstance(b, numbers.Integral) and not isinstance(b, bool) for b in box):
        raise EmulatorError("must be a tuple of whole numbers", field="box", value=box)
    box = tuple(int(b) for b in box)
    kind = dtype or KINDS.get(view.kind)
    if kind is None or kind not in {name for name, _ in tma.TYPES.values()}:
        raise EmulatorError(
            f"dtype={dtype or view.kind!r}: one of {', '.join(n for n, _ in tma.TYPES.values())}"
        )
    rank = len(view.shape)
    if not 1 <= rank <= 5 or len(box) != rank:
        raise EmulatorError(
            f"box={tuple(box)!r}: one extent for each of the array's {rank} dimensions (1 to 5)"
        )
    if view.strides[-1] != view.item:
        raise EmulatorError(
            f"array: strides {view.strides} bytes, elements of {view.item}: the last dimension must be contiguous; "
            "pass array.T of a column-major matrix"
        )
    wrong = [s for s in (view.address, *view.strides[:-1]) if s % tma.GLOBAL_ALIGN]
    if wrong:
        raise EmulatorError(
            f"array: address and strides {wrong} bytes are no multiples of {tma.GLOBAL_ALIGN}"
        )
    if not all(1 <= b <= BOX_MOST for b in box):
        raise EmulatorError(f"box={tuple(box)!r}: each extent from 1 to {BOX_MOST} elements")
    made = tma.TensorMap(
        view.address,
        kind,
        view.item,
        tuple(view.shape[::-1]),
        tuple(view.strides[-2::-1]),
        tuple(box)[::-1],
        (1,) * rank,
        SWIZZLES[swizzle],
        0,
        False,
    )
    try:
        tma.decode(tma.encode(made))
    except Fault as e:
        raise EmulatorError(
            f"box={tuple(box)!r}: {e} (the box is given in the order of the array's dimensions)"
        ) from e
    return TensorMapArgument(made, view)


def pack(kernel: Kernel, args: Sequence[Any]) -> tuple[list[bytes], list[Buffer]]:
    """Parameter bytes and buffers of a kernel's arguments.

    A NumPy array or CPU tensor is passed by its pointer, a number as the parameter's type says, bytes (and what
    `bytes(...)` takes, such as ctypes structures) as they are, None as a null pointer.

    Raises:
        EmulatorError: too many or too few arguments, or one that its parameter cannot hold.
    """
    if len(args) != len(kernel.params):
        raise EmulatorError(f"args=<{len(args)} values>: {kernel.name[:60]} takes {len(kernel.params)}")
    params, buffers = [], []
    for i, (param, value) in enumerate(zip(kernel.params, args, strict=True)):
        name = f"args[{i}]"
        made = value.map if isinstance(value, TensorMapArgument) else None
        view = value.view if isinstance(value, TensorMapArgument) else View.of(value)
        if view is not None:
            buffers.append(view.buffer(name))
        if made is not None:
            data = bytes(value)
        elif view is not None:
            data = view.address.to_bytes(8, "little")
        else:
            data = _number(name, param, value)
        if len(data) != param.size:
            raise EmulatorError(
                f"{name}: {type(value).__name__} gives {len(data)} bytes, {param.name[-24:]} takes {param.size}"
            )
        params.append(data)
    return params, buffers


def _number(name: str, param: Param, value: Any) -> bytes:
    if value is None:
        return bytes(param.size)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, np.generic) and value.dtype.itemsize == param.size:
        return value.tobytes()
    if isinstance(value, numbers.Integral) and param.kind not in FLOATS:
        size = 8 * param.size
        if not -(1 << size - 1) <= int(value) < 1 << size:
            raise EmulatorError(f"{name}={value}: does not fit the {param.size} bytes of {param.name[-24:]}")
        return (int(value) % (1 << size)).to_bytes(param.size, "little")
    if isinstance(value, numbers.Real):
        form = FLOATS.get(param.kind) or {2: "<e", 4: "<f", 8: "<d"}.get(param.size)
        if form is None or param.kind[0] in "su":
            raise EmulatorError(f"{name}={value!r}: {param.name[-24:]} is of type {param.kind}")
        return struct.pack(form, float(value))
    try:
        return bytes(value)
    except TypeError:
        raise EmulatorError(
            f"{name}={type(value).__name__}: an array, a CPU tensor, a number, a tensor map, bytes or None"
        ) from None
