# SPDX-License-Identifier: Apache-2.0
"""Selects what runs a call: kernels on a Hopper GPU, else the caller's fallback. Also has torch's own functions."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from cutegemm.errors import HardwareError, InputError, SpecError, field_error
from cutegemm.ops.serve import hopper

# "torch": torch's own functions, or the epilogue in torch ops, with one warning; "error": refuse; "reference",
# "emulator": the op on that backend of `Gemm.run`.
FALLBACKS = ("torch", "error", "reference", "emulator")

# autocast types for which our kernels run
HALF = (torch.float16, torch.bfloat16)

_noted: set[str] = set()

F = TypeVar("F", bound=Callable[..., Any])


def constant(function: F) -> F:
    """Mark a function as constant for torch.compile: equal arguments give equal results.

    Equals `torch.compiler.assume_constant_result`, but does not import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant
def untouched() -> bool:
    """Whether a function calls ops that torch's transforms know: its program is exported, or a transform is active."""
    return torch.compiler.is_exporting() or torch._C._are_functorch_transforms_active()


def address(x: object) -> int:
    """An object as an argument for a `constant` function; torch 2.11 passes only numbers and strings to those.

    torch.compile guards the code by the object's identity, and holds it while it traces.
    """
    return 0 if x is None else id(x)


def found_at(address: int) -> Any:
    """The object at an `address`.

    Raises:
        SpecError: torch.compile traces its making, so there is none yet.
    """
    found = ctypes.cast(address, ctypes.py_object).value if address else None
    if type(found).__module__.startswith("torch._dynamo"):
        raise SpecError("under torch.compile, create a GemmSpec or an epilogue outside the compiled function")
    return found


@constant
def server(device: torch.device, fallback: str, entry: str) -> str:
    """What runs a call on a device: "gpu", or the fallback.

    Raises:
        InputError: `fallback` is not one of `FALLBACKS`.
        HardwareError: there is no Hopper GPU and the fallback is "error".
    """
    if not isinstance(fallback, str) or fallback not in FALLBACKS:
        rule = f"must be one of {', '.join(FALLBACKS)}"
        raise field_error(InputError, "fallback", fallback, rule, "torch")
    if hopper(device):
        return "gpu"
    if fallback == "error":
        raise HardwareError(
            f"{entry}: device '{device}' is not a Hopper GPU (compute capability 9.0)", field="fallback"
        )
    if fallback == "torch" and device.type != "meta" and entry not in _noted:
        _noted.add(entry)
        warnings.warn(
            f"{entry}: no Hopper GPU for device '{device}'; using torch; fallback='error' refuses (shown once)",
            stacklevel=4,
        )
    return fallback


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The autocast type of a device; None outside autocast, and for devices without autocast."""
    kind = device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def autocast_to(dtype: torch.dtype, x: Tensor) -> Tensor:
    """An operand cast as by autocast: floating-point types become `dtype`, except fp64 and fp8, which stay."""
    cast = x.is_floating_point() and 1 < x.dtype.itemsize < 8
    return x.to(dtype) if cast else x


@constant
def refuse_atomic() -> None:
    """Refuse split_reduction="atomic" under `torch.use_deterministic_algorithms`, as torch's functions do.

    Raises:
        SpecError: always, except under `warn_only`, which warns.
    """
    rule = "adds splits in arrival order, which torch.use_deterministic_algorithms(True) does not allow"
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
    """The plain GEMM by torch's functions, with torch's gradient, for checked tensors.

    `out` is only supported without C and alpha.
    """
    read = isinstance(alpha, Tensor) or isinstance(beta, Tensor)
    if c is None and not read and alpha == 1.0:
        return torch.matmul(a, b, out=out)
    if c is None:
        return torch.matmul(a, b).mul(alpha)
    if read:
        # functions that take numbers would wait for the tensor, and give it no gradient
        found = torch.matmul(a, b)
        return found.mul(alpha).add(c * beta).to(found.dtype)
    if a.dim() == 2 and b.dim() == 2 and c.dim() == 2:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    if a.dim() == 3 and b.dim() == 3 and a.shape[0] == b.shape[0]:
        return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)
    found = torch.matmul(a, b).mul(alpha)
    # autocast does not cast C
    return (found + beta * c).to(found.dtype) if beta else found


__all__ = [
    "FALLBACKS",
    "HALF",
    "address",
    "autocast_to",
    "autocast_type",
    "constant",
    "untouched",
    "found_at",
    "refuse_atomic",
    "server",
    "torch_linear",
    "torch_matmul",
]
