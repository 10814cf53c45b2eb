# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries (NumPy, CuPy, JAX, ...): anything with `__dlpack__`, as tensors of the same memory.

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

# libraries whose arrays never change
_IMMUTABLE = ("jax", "jaxlib")


def is_foreign(x: Any) -> bool:
    """Whether a value is an array of another library."""
    return not isinstance(x, torch.Tensor) and hasattr(x, "__dlpack__")


def tensor(name: str, x: Any) -> Any:
    """An array of another library as a tensor of the same memory; any other value unchanged.

    Raises:
        InputError: torch does not accept its type, strides or device.
    """
    if not is_foreign(x):
        return x
    strides = getattr(x, "strides", None)
    if isinstance(strides, (tuple, list)) and any(n < 0 for n in strides):
        # torch would abort the process
        raise field_error(InputError, f"{name}.strides", strides, "must not be negative: pass a copy")
    try:
        return from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        rule = f"must be an array that torch takes in by DLPack ({error})"
        raise field_error(InputError, name, x, rule) from error


def writable(name: str, x: Any) -> Any:
    """An output that the caller gave, as a tensor.

    Raises:
        InputError: its library's arrays are immutable, or it is read-only, which torch does not check.
    """
    if is_foreign(x) and _library(x) in _IMMUTABLE:
        raise field_error(InputError, name, x, f"arrays of {_library(x)} are not written to; leave it out")
    if is_foreign(x) and getattr(getattr(x, "flags", None), "writeable", True) is False:
        raise field_error(InputError, f"{name}.flags.writeable", False, "must be written to", True)
    return tensor(name, x)


def outputs(out: Any) -> Any:
    """The outputs that the caller gave, one or a mapping, as tensors."""
    if isinstance(out, Mapping):
        return {name: writable(name, x) for name, x in out.items()}
    return writable("out", out)


def run(call: Any, a: Any, b: Any, named: Mapping[str, Any], out: Any, options: Mapping[str, Any]) -> Any:
    """`Gemm.run` (`call`) with arrays as tensors of the same memory; the result is an array of A's library.

    Args:
        call: the run.
        a, b, named: the operands and what the epilogue reads.
        out: the outputs that the caller gave.
        options: the run's other arguments.

    Raises:
        InputError: torch does not accept an array, or A's library cannot import the result.
    """
    # refused before anything is written
    _maker(a)
    tensors = {name: tensor(name, x) for name, x in named.items()}
    found = call(tensor("a", a), tensor("b", b), out=outputs(out), **tensors, **options)
    return returned(found, out, a)


def returned(found: Any, out: Any, like: Any) -> Any:
    """A run's results as arrays of the library of `like`; given outputs are returned as given."""
    given = dict(out) if isinstance(out, Mapping) else {"d": out}
    if not isinstance(found, Outputs):
        return _array(found, like) if given.get("d") is None else given["d"]
    named = {name: given.get(name) for name in vars(found)}
    return Outputs(
        **{name: _array(x, like) if named[name] is None else named[name] for name, x in vars(found).items()}
    )


def _array(x: Any, like: Any) -> Any:
    """A tensor as an array of the library of `like`."""
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
        rule = f"of {_library(like)}, which has no from_dlpack to give the product by: pass a tensor"
        raise field_error(InputError, "a", type(like).__name__, rule)
    return library.from_dlpack


def _library(x: Any) -> str:
    return type(x).__module__.partition(".")[0]


__all__ = ["is_foreign", "outputs", "returned", "run", "tensor", "writable"]
