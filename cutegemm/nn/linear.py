# SPDX-License-Identifier: Apache-2.0
"""`Linear`: torch.nn.Linear on cutegemm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cutegemm import checks
from cutegemm.checks import keywords
from cutegemm.errors import InputError, field_error
from cutegemm.nn.tracing import Proxy, leaf
from cutegemm.ops.entry_points import linear
from cutegemm.ops.fallback import FALLBACKS, constant, torch_linear
from cutegemm.spec import GemmSpec

# Types with kernels. A layer of another type, perhaps cast after conversion, runs on torch.
TYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_FEATURES = (1 << 31) - 1
# Kernels load weights before earlier launches have ended.
CONSTANT = GemmSpec(constant=("b",))
PROMISE = (
    "constant_weights promises that no kernel in flight writes the weights, as an optimizer's step does: "
    "call eval() on the model, or leave it out"
)


class Linear(torch.nn.Linear):
    """torch.nn.Linear, computed by `cutegemm.linear`: the same parameters, the same state dict.

    Args:
        in_features, out_features, bias, device, dtype: as for torch.nn.Linear.
        fallback: the behaviour without a Hopper GPU, as for `cutegemm.matmul`.
        constant_weights: a promise for inference that no in-flight kernel writes the weights when this layer launches.
            They are then loaded before the previous kernel has ended. Refused in training.

    Raises:
        InputError: an argument has another type, or a layer with constant weights is called in training.
    """

    # class attributes, so that a converted torch.nn.Linear has them too
    fallback: str = "torch"
    constant_weights: bool = False

    @keywords()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        fallback: str = "torch",
        constant_weights: bool = False,
    ) -> None:
        check_layer(fallback, constant_weights, bias, in_features=in_features, out_features=out_features)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.fallback, self.constant_weights = fallback, constant_weights

    def forward(self, input: Tensor) -> Tensor:
        """input @ weight.T + bias, for any leading dimensions."""
        if isinstance(input, Proxy):
            return leaf(self, input)
        return self.product(input, self.weight, self.bias)

    def product(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """input @ weight.T + bias with this layer's settings, for its weight or some rows of it."""
        if unserved(self, input, weight):
            return torch_linear(input, weight, bias)
        found: Tensor = linear(input, weight, bias, spec=self.spec_for(weight), fallback=self.fallback)
        return found

    def spec_for(self, weight: Tensor) -> GemmSpec | None:
        """The spec of a call; None for the default.

        Raises:
            InputError: the weights are promised to be constant, and the layer is in training.
        """
        return promised(self, weight) if self.constant_weights else None

    def __prepare_scriptable__(self) -> Any:
        """Called by torch.jit.script.

        Raises:
            InputError: always.
        """
        rule = "does not support torch.jit.script: script before you convert, or use torch.compile or torch.export"
        raise field_error(InputError, "module", type(self).__name__, rule)

    def extra_repr(self) -> str:
        """The arguments in its repr."""
        return super().extra_repr() + (", constant_weights=True" if self.constant_weights else "")


def unserved(module: Any, input: Tensor, weight: Tensor) -> bool:
    """Whether torch computes a layer: its weight has an unsupported type or a class that overrides matmul, the input is
    nested, or one of both is sparse.

    Raises:
        InputError: the input is not a tensor.
    """
    check_input(input)
    kind = type(weight)
    plain = kind is torch.nn.Parameter or kind is Tensor or not multiplies(kind)
    dense = input.layout is torch.strided and weight.layout is torch.strided
    if weight.dtype in TYPES and plain and dense and not input.is_nested:
        return False
    found: bool = module.fallback == "torch"
    return found


def check_layer(
    fallback: object, constant_weights: object = False, bias: object = True, **widths: object
) -> None:
    """Refuse illegal arguments of a layer.

    Args:
        fallback, constant_weights, bias: as for `Linear`; a missing bias may be None, as for torch.nn.Linear.
        widths: the layer's widths by name.

    Raises:
        InputError: naming the argument.
    """
    for name, value in widths.items():
        checks.integer(InputError, name, value, 0, MOST_FEATURES)
    if not isinstance(bias, (bool, int)) and bias is not None:
        raise field_error(InputError, "bias", bias, "must be True or False")
    checks.truth(InputError, "constant_weights", constant_weights)
    checks.choice(InputError, "fallback", fallback, FALLBACKS)


def check_input(input: object) -> None:
    """Refuse a layer's input that is not a tensor.

    Raises:
        InputError: it is not.
    """
    if not isinstance(input, Tensor):
        raise field_error(InputError, "input", input, "must be a torch.Tensor")


@constant
def multiplies(kind: type) -> bool:
    """Whether a tensor class overrides matmul in a way that our op does not support, as quantized and sparse weights
    do.

    Among torch's classes these are sparse matrices; others, such as DTensor, decompose every op. Among classes of other
    libraries these are the ones that override torch's functions or ops.
    """
    if _torchs(kind):
        return kind.__module__.startswith("torch.sparse")
    disabled = torch._C._disabled_torch_function_impl
    found = [vars(x) for x in kind.__mro__ if not _torchs(x)]
    return any(
        x.get("__torch_function__") not in (None, disabled) or "__torch_dispatch__" in x for x in found
    )


def _torchs(kind: type) -> bool:
    """Whether a class is torch's own."""
    return kind.__module__.partition(".")[0] == "torch"


def promised(module: torch.nn.Module, weight: Tensor) -> GemmSpec | None:
    """The spec of a layer with constant weights; None if kernels cannot use that.

    Raises:
        InputError: the layer is in training.
    """
    if module.training:
        raise field_error(InputError, "training", True, PROMISE, False)
    return CONSTANT if weight.dtype in (torch.float16, torch.bfloat16) else None


__all__ = [
    "CONSTANT",
    "PROMISE",
    "TYPES",
    "Linear",
    "check_input",
    "check_layer",
    "multiplies",
    "promised",
    "unserved",
]
