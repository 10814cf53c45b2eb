# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors of the host: where their elements lie. No torch is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.emulator.state.memory import Buffer
from cutegemm.errors import EmulatorError, field_error


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
    def of(cls, field: str, x: Any) -> View | None:
        """The view of a NumPy array or a CPU tensor; None for anything else.

        Raises:
            EmulatorError: about `field`: an array of Python objects; a tensor that is not dense or not on the CPU.
        """
        if isinstance(x, np.ndarray):
            if x.dtype.hasobject:
                raise field_error(
                    EmulatorError, field, x, "an array of Python objects has no bytes for a kernel"
                )
            return cls(x.ctypes.data, x.shape, x.strides, x.itemsize, x.dtype.name, x)
        try:
            if not all(hasattr(x, name) for name in ("data_ptr", "shape", "stride", "element_size")):
                return None
            device = getattr(getattr(x, "device", None), "type", "cpu")
            if device != "cpu":
                raise field_error(EmulatorError, field, x, f"on {device}: the emulator takes CPU tensors")
            item = int(x.element_size())
            strides = tuple(int(s) * item for s in x.stride())
            shape, kind = tuple(int(n) for n in x.shape), str(x.dtype).rsplit(".", 1)[-1]
            return cls(int(x.data_ptr()), shape, strides, item, kind, x)
        except EmulatorError:
            raise
        except Exception as e:
            # nested, sparse and lazy tensors raise errors of their own for shape, strides or pointer
            raise field_error(EmulatorError, field, x, f"must be dense ({type(e).__name__})") from e

    @classmethod
    def needed(cls, field: str, x: Any) -> View:
        """The view of what must be a NumPy array or a CPU tensor.

        Raises:
            EmulatorError: about `field`, if it is neither.
        """
        view = cls.of(field, x)
        if view is None:
            raise field_error(EmulatorError, field, x, "must be a NumPy array or a CPU tensor")
        return view

    def buffer(self, name: str) -> Buffer:
        """The bytes its elements span."""
        if 0 in self.shape:
            return Buffer(self.address, 0, name)
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(s for s in steps if s < 0)
        return Buffer(self.address + low, sum(abs(s) for s in steps) + self.item, name)
