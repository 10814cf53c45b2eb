# SPDX-License-Identifier: Apache-2.0
"""Forward mode, and torch.func under torch.compile, of every function and layer: right, or refused by name."""

import pytest
import torch
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from cutegemm.errors import InputError

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
X, ENDS, ROWS = torch.randn(4, 16), torch.tensor([1, 4]), torch.tensor([0, 1, 1, 3])
TOKENS, ONE = X.to(BF16), {"fallback": "reference"}
VALUES, SCALE = cutegemm.quantize(X, "row", E4M3)
GROUPS = {"offs": ENDS, **ONE}
WEIGHTS, BIAS, GELU = torch.randn(2, 16, 8).to(BF16), torch.randn(8).to(BF16), epi.bias_act("gelu")


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


NAMED = {
    "x": (lambda x: cutegemm.linear(x, X, **ONE), X),
    "weight": (lambda x: cutegemm.linear(X, x, **ONE), X),
    "bias": (lambda x: cutegemm.linear(X, X, x, **ONE), X[0]),
    "c": (lambda x: cutegemm.matmul(X, X, c=x, beta=1.0, **ONE), X),
    "scale_b": (lambda s: cutegemm.matmul(VALUES, VALUES.T, scale_a=SCALE, scale_b=s, **ONE), SCALE),
    "b": (lambda x: cutegemm.grouped_mm(TOKENS, x, **GROUPS), WEIGHTS),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_error_names_the_argument(name):
    """By the name that the caller wrote, not by the op's position."""
    f, x = NAMED[name]
    with dual_level(), pytest.raises(InputError) as e:
        f(make_dual(x, torch.ones_like(x)))
    assert e.value.field == name


VMAPPED = {
    "quantize": lambda x: cutegemm.quantize(x, "row", E4M3).scale,
    "fp8=": lambda x: cutegemm.linear(x, X, fp8="row", **ONE),
    "both in fp8": stored("fp8", "fp8", False),
}


@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_within_a_dual_level(name):
    """A tangent under vmap is refused by name; a tensor without one is mapped as elsewhere."""
    f, x = torch.func.vmap(VMAPPED[name]), torch.stack((X, X + 1))
    plain = f(x)
    with pytest.raises(InputError, match=r"has a tangent: forward-mode gradients \(jvp\)"):
        torch.func.jvp(f, (x,), (x,))
    with dual_level():
        assert torch.equal(f(x), plain)


def test_weights_of_results_have_tangents():
    """torch multiplies the results of groups by `weight` then, which is linear: the tangent is that of torch."""
    weight = torch.rand(4)
    with dual_level():
        y = cutegemm.grouped_mm(TOKENS, WEIGHTS, weight=make_dual(weight, torch.ones(4)), **GROUPS)
        tangent = unpack_dual(y).tangent
    assert torch.allclose(tangent, cutegemm.grouped_mm(TOKENS, WEIGHTS, **GROUPS), rtol=0.02)


# what torch.compile traces: (a function, its argument); `quantize` is an op of its own there
COMPILED = {
    "product": (lambda x: cutegemm.linear(x, X, **ONE), X),
    "groups": (lambda x: cutegemm.grouped_mm(x, WEIGHTS, **GROUPS), TOKENS),
    "fp8=": (lambda x: cutegemm.linear(x, X, fp8="row", **ONE), X),
    "both in fp8": (stored("fp8", "fp8", False), X),
}


@pytest.mark.parametrize("how", ["jvp", "dual"])
@pytest.mark.parametrize("name", COMPILED)
def test_it_is_refused_under_torch_compile(name, how):
    """When the graph is traced; a compiled call would return values without tangents."""
    f, x = COMPILED[name]

    def dual(x):
        with dual_level():
            return unpack_dual(f(make_dual(x, torch.ones_like(x)))).tangent

    run = dual if how == "dual" else lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="has a tangent"):
        torch.compile(run, fullgraph=True, backend="eager")(x)


W32 = torch.randn(8, 16)
# reverse mode of torch.func under torch.compile, where Dynamo takes the argument for a constant
REVERSE = {
    "groups": (lambda x: cutegemm.grouped_mm(x, WEIGHTS, **GROUPS), TOKENS),
    "groups, epilogue": (lambda x: cutegemm.grouped_mm(x, WEIGHTS, epilogue=GELU, bias=BIAS, **GROUPS), TOKENS),
    "groups, bias": (lambda b: cutegemm.grouped_mm(TOKENS, WEIGHTS, epilogue=GELU, bias=b, **GROUPS), BIAS),
}  # fmt: skip
UNDIFFERENTIABLE = {
    "input in 8 bits": (stored("fp8", "fp8", False), X, "has no gradient in 8 bits under torch.func"),
    "weight of fp8=": (lambda w: cutegemm.linear(X, w, fp8="row", **ONE), W32, "has no gradient under torch.func"),
    "quantize": (lambda x: cutegemm.quantize(x, "row", E4M3)[1], X, "there is no backward pass"),
    "scale": (lambda s: cutegemm.matmul(VALUES, VALUES.T, scale_a=s, scale_b=s, **ONE), SCALE, "have no gradient"),
}  # fmt: skip


def gradient(f):
    """The gradient of the sum of squares, by torch.func."""
    return torch.func.grad(lambda x: f(x).float().square().sum())


@pytest.mark.parametrize("name", REVERSE)
def test_compiled_gradients_of_torch_func_are_the_eager_ones(name):
    """Also of an epilogue, whose gradient takes two launches."""
    f, x = REVERSE[name]
    torch._dynamo.reset()
    assert torch.equal(torch.compile(gradient(f), fullgraph=True, backend="aot_eager")(x), gradient(f)(x))


@pytest.mark.parametrize("name", UNDIFFERENTIABLE)
def test_what_has_no_gradient_is_refused_when_compiled_too(name):
    """A compiled call gave the gradient of the scales alone, or zero."""
    f, x, message = UNDIFFERENTIABLE[name]
    with pytest.raises(InputError, match=message):
        gradient(f)(x)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=message):
        torch.compile(gradient(f), fullgraph=True, backend="eager")(x)
