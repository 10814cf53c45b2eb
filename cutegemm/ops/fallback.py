# SPDX-License-Identifier: Apache-2.0
"""Who serves a call: kernels on a Hopper GPU, and what the caller chose elsewhere; and torch's own functions."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from cutegemm.errors import HardwareError, InputError, SpecError, field_error
from cutegemm.ops.serve import hopper

# "torch": torch's own functions, or its form of the epilogue, with one note; "error": refuse; "reference", "emulator":
# the op, served by that backend of `Gemm.run`.
FALLBACKS = ("torch", "error", "reference", "emulator")

# what an autocast region's type must be for its products to be ours
HALF = (torch.float16, torch.bfloat16)

_noted: set[str] = set()

F = TypeVar("F", bound=Callable[..., Any])


def constant(function: F) -> F:
    """Mark a function whose result is a constant to torch.compile, for the same arguments.

    As `torch.compiler.assume_constant_result` does, which imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def address(x: object) -> int:
    """How an object travels to a function that is a `constant`: torch 2.11 hands over numbers and text alone.

    torch.compile guards the code by the object's identity, and holds it while it traces.
    """
    return 0 if x is None else id(x)


def found_at(address: int) -> Any:
    """The object that lives at an `address`."""
    return ctypes.cast(address, ctypes.py_object).value if address else None


@constant
def server(device: torch.device, fallback: str, door: str) -> str:
    """Who serves a call on a device: "gpu", or the fallback.

    Raises:
        InputError: `fallback` is none of `FALLBACKS`.
        HardwareError: there is no Hopper GPU and the fallback is "error".
    """
    if not isinstance(fallback, str) or fallback not in FALLBACKS:
        rule = f"must be one of {', '.join(FALLBACKS)}"
        raise field_error(InputError, "fallback", fallback, rule, "torch")
    if hopper(device):
        return "gpu"
    if fallback == "error":
        raise HardwareError(
            f"{door}: device '{device}' is not a Hopper GPU (compute capability 9.0)", field="fallback"
        )
    if fallback == "torch" and device.type != "meta" and door not in _noted:
        _noted.add(door)
        warnings.warn(
            f"{door}: no Hopper GPU for device '{device}'; using torch; fallback='error' refuses (shown once)",
            stacklevel=4,
        )
    return fallback


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type of an autocast region, as it is for a device; None outside, and of devices that have no such regions."""
    kind = device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def autocast_to(dtype: torch.dtype, x: Tensor) -> Tensor:
    """An operand as autocast hands it over: what is floating in its type, but fp64 and fp8, which it leaves alone."""
    cast = x.is_floating_point() and 1 < x.dtype.itemsize < 8
    return x.to(dtype) if cast else x


@constant
def refuse_atomic() -> None:
    """What torch's functions do under `torch.use_deterministic_algorithms` whose results vary from run to run.

    Raises:
        SpecError: always, or under `warn_only` never: then it is a warning.
    """
    rule = "adds parts as they come, which torch.use_deterministic_algorithms(True) rules out"
    refusal = field_error(SpecError, "split_reduction", "atomic", rule, "auto")
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise refusal
    warnings.warn(str(refusal), stacklevel=4)


def torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's own linear layer."""
    return torch.nn.functional.linear(x, weight, bias)


def torch_matmul(
    a: Tensor, b: Tensor, c: Tensor | None, alpha: Any, beta: Any, out: Tensor | None = None
) -> Tensor:
    """The plain product by torch's own functions, with torch's own gradient; of tensors that agree.

    Only a product without C or alpha goes into `out`.
    """
    read = isinstance(alpha, Tensor) or isinstance(beta, Tensor)
    if c is None and not read and alpha == 1.0:
        return torch.matmul(a, b, out=out)
    if c is None:
        return torch.matmul(a, b).mul(alpha)
    if read:
        # functions that take numbers would wait for the tensor, and have no gradient of it
        return torch.matmul(a, b).mul(alpha).add(c * beta)
    if a.dim() == 2 and b.dim() == 2 and c.dim() == 2:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    if a.dim() == 3 and b.dim() == 3 and a.shape[0] == b.shape[0]:
        return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)
    found = torch.matmul(a, b).mul(alpha)
    return found + beta * c if beta else found


__all__ = [
    "FALLBACKS",
    "HALF",
    "address",
    "autocast_to",
    "autocast_type",
    "constant",
    "found_at",
    "refuse_atomic",
    "server",
    "torch_linear",
    "torch_matmul",
]
