# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries with `__dlpack__` (NumPy, CuPy, JAX, ...) as tensors that share their memory.

DLPack (dmlc.github.io/dlpack) describes an array's memory. The consumer names the stream that will read it, so neither
a copy nor a wait is needed. Results are returned the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from cutegemm.errors import InputError, field_error
from cutegemm.running.arguments.results import Outputs

# libraries whose arrays are immutable
_IMMUTABLE = ("jax", "jaxlib")


def is_foreign(x: Any) -> bool:
    """Whether a value is an array of another library."""
    return not isinstance(x, torch.Tensor) and hasattr(x, "__dlpack__")


def tensor(name: str, x: Any) -> Any:
    """Convert an array of another library to a tensor that shares its memory. Other values are returned unchanged.

    Raises:
        InputError: torch does not accept its type, strides or device.
    """
    if not is_foreign(x):
        return x
    strides = getattr(x, "strides", None)
    if isinstance(strides, (tuple, list)) and any(n < 0 for n in strides):
        # negative strides make torch abort the process
        raise field_error(InputError, f"{name}.strides", strides, "must not be negative: pass a copy")
    try:
        return from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        rule = f"must be an array that torch can import by DLPack ({error})"
        raise field_error(InputError, name, x, rule) from error


def writable(name: str, x: Any) -> Any:
    """Convert an output given by the caller to a tensor.

    Raises:
        InputError: its library's arrays are immutable, or it is read-only; torch does not check the latter.
    """
    if is_foreign(x) and _library(x) in _IMMUTABLE:
        raise field_error(InputError, name, x, f"arrays of {_library(x)} are immutable; leave it out")
    if is_foreign(x) and getattr(getattr(x, "flags", None), "writeable", True) is False:
        raise field_error(InputError, f"{name}.flags.writeable", False, "an output must be writable", True)
    return tensor(name, x)


def outputs(out: Any) -> Any:
    """Convert the outputs given by the caller, one or a mapping, to tensors."""
    if isinstance(out, Mapping):
        return {name: writable(name, x) for name, x in out.items()}
    return writable("out", out)


def run(call: Any, a: Any, b: Any, named: Mapping[str, Any], out: Any, options: Mapping[str, Any]) -> Any:
    """Call `Gemm.run` with tensors that share the arrays' memory, and return an array of A's library.

    Args:
        call: the bound method `run`.
        a, b, named: the operands and the epilogue's inputs.
        out: the outputs given by the caller.
        options: the run's other arguments.

    Raises:
        InputError: torch does not accept an array, or A's library cannot import the result.
    """
    # raises before anything is written
    _maker(a)
    tensors = {name: tensor(name, x) for name, x in named.items()}
    found = call(tensor("a", a), tensor("b", b), out=outputs(out), **tensors, **options)
    return returned(found, out, a)


def returned(found: Any, out: Any, like: Any) -> Any:
    """Convert a run's results to arrays of the library of `like`; outputs given by the caller are returned as given."""
    given = dict(out) if isinstance(out, Mapping) else {"d": out}
    if not isinstance(found, Outputs):
        return _array(found, like) if given.get("d") is None else given["d"]
    named = {name: given.get(name) for name in vars(found)}
    return Outputs(
        **{name: _array(x, like) if named[name] is None else named[name] for name, x in vars(found).items()}
    )


def _array(x: Any, like: Any) -> Any:
    """Convert a tensor to an array of the library of `like`."""
    make = _maker(like)
    return x if make is None or not isinstance(x, torch.Tensor) else make(x)


def _maker(like: Any) -> Any:
    """The function that converts a tensor to an array of the library of `like`; None for torch.

    Raises:
        InputError: the library has no such function.
    """
    if not is_foreign(like):
        return None
    if hasattr(like, "__array_namespace__"):
        library = like.__array_namespace__()
    else:
        library = sys.modules[_library(like)]
    if not hasattr(library, "from_dlpack"):
        rule = f"{_library(like)} has no from_dlpack to return the result with: pass a tensor"
        raise field_error(InputError, "a", type(like).__name__, rule)
    return library.from_dlpack


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


__all__ = ["is_foreign", "outputs", "returned", "run", "tensor", "writable"]
