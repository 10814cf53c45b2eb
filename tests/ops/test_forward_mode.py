# SPDX-License-Identifier: Apache-2.0
"""Forward-mode differentiation of every function and layer: refused with a GemmError, or right."""

import pytest
import torch
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import cutegemm
from cutegemm import nn
from cutegemm.errors import InputError

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
X, ENDS, ROWS = torch.randn(4, 16), torch.tensor([1, 4]), torch.tensor([0, 1, 1, 3])
TOKENS, ONE = X.to(BF16), {"fallback": "reference"}
VALUES, SCALE = cutegemm.quantize(X, "row", E4M3)
GROUPS = {"offs": ENDS, **ONE}
WEIGHTS = torch.randn(2, 16, 8).to(BF16)


def stored(kind, activations, recorded):
    """A layer stored in 8 bits."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 8)).eval().requires_grad_(recorded)
    nn.convert(model, weights=kind, activations=activations, **ONE)
    return model


# (a function, given whether autograd records a parameter; its argument)
REFUSED = {
    "MLP": (lambda r: nn.MLP(16, 8, **ONE).requires_grad_(r), X),
    "SwiGLU": (lambda r: nn.SwiGLU(16, 8, **ONE).requires_grad_(r), X),
    "Linear": (lambda r: nn.Linear(16, 8, **ONE).requires_grad_(r), X),
    "MoE": (lambda r: nn.MoE(16, 8, 4, 2, dtype=BF16, **ONE).requires_grad_(r), TOKENS),
    "fp8=": (lambda r: lambda x: cutegemm.linear(x, X.clone().requires_grad_(r), fp8="row", **ONE), X),
    "weights in fp8": (lambda r: stored("fp8", None, r), X),
    "both in fp8": (lambda r: stored("fp8", "fp8", r), X),
    "both in int8": (lambda r: stored("int8", "int8", r), X),
    "quantize": (lambda r: lambda x: cutegemm.quantize(x, "row", E4M3), X),
    "quantize, scale": (lambda r: lambda s: cutegemm.quantize(X, "row", E4M3, scale=s), SCALE),
    "scales": (lambda r: lambda s: cutegemm.matmul(VALUES, VALUES.T, scale_a=s, scale_b=s, **ONE), SCALE),
    "groups": (lambda r: lambda x: cutegemm.grouped_mm(x, WEIGHTS.clone().requires_grad_(r), **GROUPS), TOKENS),
    "rows": (lambda r: lambda x: cutegemm.grouped_mm(x, WEIGHTS, rows=ROWS, **GROUPS), TOKENS),
}  # fmt: skip


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name, recorded):
    """Also by layers whose autograd functions torch would name as lacking a jvp."""
    make, x = REFUSED[name]
    f = make(recorded)
    with dual_level(), pytest.raises(InputError, match=r"has a tangent: forward-mode gradients \(jvp\)"):
        f(make_dual(x, torch.ones_like(x)))
    f(x)


def test_weights_of_results_have_tangents():
    """torch multiplies the results of groups by `weight` then, which is linear: the tangent is that of torch."""
    weight = torch.rand(4)
    with dual_level():
        y = cutegemm.grouped_mm(TOKENS, WEIGHTS, weight=make_dual(weight, torch.ones(4)), **GROUPS)
        tangent = unpack_dual(y).tangent
    assert torch.allclose(tangent, cutegemm.grouped_mm(TOKENS, WEIGHTS, **GROUPS), rtol=0.02)
