# SPDX-License-Identifier: Apache-2.0
"""`linear(..., fp8=...)`: its three GEMMs are those of quantised operands, and a model trains with them."""

import pytest
import torch
from torch.nn import functional as F

import cutegemm
from cutegemm.errors import GemmError

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
KINDS = {"row": ("row", "row"), "block": (("block", 1, 128), ("block", 128, 128))}


def drawn(shape=(3, 50, 300), n=140, dtype=torch.bfloat16):
    """x, weight, bias and a gradient."""
    torch.manual_seed(0)
    k = shape[-1]
    return (
        torch.randn(shape, dtype=dtype),
        torch.randn(n, k, dtype=dtype) * k**-0.5,
        torch.randn(n, dtype=dtype),
        torch.randn(*shape[:-1], n, dtype=dtype),
    )


def gemm(x, w, kinds, types=(E4M3, E4M3), **named):
    """x @ w.T of both, quantised."""
    (a, scale_a), (b, scale_b) = (cutegemm.quantize(t, k, d) for t, k, d in zip((x, w), kinds, types))
    spec = cutegemm.GemmSpec(d_dtype=x.dtype)
    return cutegemm.linear(a, b, spec=spec, scale_a=scale_a, scale_b=scale_b, **named)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("recipe", KINDS)
def test_three_gemms_of_quantised_operands(recipe, dtype):
    """Bit for bit what the same calls by hand give, and near the gradients of 16 bits."""
    x, w, bias, g = drawn(dtype=dtype)
    rows, blocks = KINDS[recipe]
    leaves = [t.clone().requires_grad_() for t in (x, w, bias)]
    y = cutegemm.linear(*leaves, fp8=recipe)
    y.backward(g)
    flat, above = x.view(150, 300), g.view(150, 140)
    assert torch.equal(y.view(150, 140), gemm(flat, w, (rows, blocks), bias=bias)) and y.dtype == dtype
    dx, dw, db = (t.grad for t in leaves)
    assert torch.equal(dx.view(150, 300), gemm(above, w.T, (rows, blocks), (E5M2, E4M3)))
    assert torch.equal(dw, gemm(above.T, flat.T, (rows, rows), (E5M2, E4M3)))
    assert torch.equal(db, above.float().sum(0).to(dtype))
    exact = [t.double().requires_grad_() for t in (x, w, bias)]
    z = F.linear(*exact)
    z.backward(g.double())
    # e4m3 has 4 significant bits, e5m2 3: half of the last is 3 and 6 percent of the smallest of a binade
    for found, wanted, most in zip((y, dx, dw), (z, exact[0].grad, exact[1].grad), (0.04, 0.07, 0.07)):
        assert (found.double() - wanted).norm() < most * wanted.norm()


@pytest.mark.parametrize("recipe", KINDS)
@pytest.mark.parametrize("shape", [(4, 0), (2, 3, 0), (0, 16), (0,)], ids=str)
def test_empty_operands(recipe, shape):
    """Without elements of K, D is the bias; without rows there is none. Gradients are zeros of the operands' shapes."""
    leaves = [torch.randn(s, requires_grad=True) for s in (shape, (7, shape[-1]), (7,))]
    y = cutegemm.linear(*leaves, fp8=recipe)
    assert torch.equal(y, leaves[2].expand(*shape[:-1], 7))
    y.sum().backward()
    assert [x.grad.shape for x in leaves] == [x.shape for x in leaves]


def test_only_the_gradients_that_are_needed():
    """A frozen weight, a frozen input, a bias alone; what the backward pass does not read is not kept."""
    x, w, bias, g = drawn()
    full = [t.clone().requires_grad_() for t in (x, w, bias)]
    cutegemm.linear(*full, fp8="row").backward(g)
    for needs in ((0,), (1,), (2,), (0, 2), (1, 2)):
        leaves = [t.clone().requires_grad_(i in needs) for i, t in enumerate((x, w, bias))]
        y = cutegemm.linear(*leaves, fp8="row")
        kept = y.grad_fn.next_functions[0][0].saved_tensors
        assert [t is not None for t in kept] == [0 in needs, 1 in needs, 1 in needs]
        y.backward(g)
        for i, (t, other) in enumerate(zip(leaves, full)):
            assert (t.grad is None) if i not in needs else torch.equal(t.grad, other.grad)


def train(layer):
    """The losses of a small perceptron that learns a random one, 200 steps of Adam."""
    torch.manual_seed(0)
    widths = (32, 128, 128, 16)
    teacher = [torch.randn(n, k) * k**-0.5 for k, n in zip(widths, widths[1:])]
    weights = [(torch.randn(n, k) * k**-0.5).requires_grad_() for k, n in zip(widths, widths[1:])]
    optimizer = torch.optim.Adam(weights, 3e-3)

    def out(parameters, x, layer):
        for i, w in enumerate(parameters):
            x = layer(x if i == 0 else F.gelu(x), w.bfloat16())
        return x

    losses = []
    for _ in range(200):
        x = torch.randn(128, 32).bfloat16()
        loss = F.mse_loss(out(weights, x, layer).float(), out(teacher, x, F.linear).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def test_a_model_trains_as_in_bf16():
    """200 steps of a small model: the loss falls as torch's bf16 does, and ends within the stated error of it."""
    wanted = train(F.linear)
    for recipe in KINDS:
        losses = train(lambda x, w, recipe=recipe: cutegemm.linear(x, w, fp8=recipe))
        first, last = (x[-20:].mean() / x[0] for x in (wanted, losses))
        assert last < 0.15 and last - first < 0.005
        # all along the way
        smooth = [x.view(10, 20).mean(1) for x in (wanted, losses)]
        assert ((smooth[0] - smooth[1]).abs() / wanted[0]).max() < 0.02


@pytest.mark.sliced
@pytest.mark.parametrize("recipe", KINDS)
def test_it_compiles_with_its_gradient(recipe):
    """fullgraph: the bits of the eager call, forward and backward."""
    torch._dynamo.reset()
    x, w, bias, g = drawn((40, 256), 128)
    mine, theirs = ([t.clone().requires_grad_() for t in (x, w, bias)] for _ in range(2))

    def f(x, w, bias):
        return cutegemm.linear(x, w, bias, fp8=recipe)

    y = torch.compile(f, fullgraph=True, backend="aot_eager")(*mine)
    z = f(*theirs)
    y.backward(g)
    z.backward(g)
    assert torch.equal(y, z)
    for one, other in zip(mine, theirs):
        assert torch.equal(one.grad, other.grad)


def test_autocast_and_nothing():
    """fp32 parameters in a bf16 region; no rows at all."""
    x, w, bias, _ = drawn(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = cutegemm.linear(x, w, bias, fp8="row")
    wanted = cutegemm.linear(x.bfloat16(), w.bfloat16(), bias.bfloat16(), fp8="row")
    assert y.dtype == torch.bfloat16 and torch.equal(y, wanted)
    x, w = torch.empty(0, 300, requires_grad=True), w.requires_grad_()
    cutegemm.linear(x, w, fp8="block").sum().backward()
    assert x.grad.shape == (0, 300) and not w.grad.any()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"fp8": "column"}, "fp8"),
        ({"fp8": True}, "fp8"),
        ({"fp8": "row", "epilogue": cutegemm.epilogue.bias()}, "epilogue"),
        ({"fp8": "row", "spec": cutegemm.GemmSpec()}, "spec"),
        ({"fp8": "row", "scale_a": 1.0}, "scale_a"),
        ({"fp8": "row", "weight": torch.ones(4, 7).bfloat16()}, "weight.shape"),
        ({"fp8": "row", "weight": torch.ones(4, 8)}, "weight.dtype"),
        ({"fp8": "row", "bias": torch.ones(5)}, "bias.shape"),
        ({"fp8": "row", "x": torch.ones(2, 8).double()}, "x.dtype"),
        ({"fp8": "row", "x": 3.0}, "x"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_refused(given, field):
    """Each by its name."""
    good = {"x": torch.ones(2, 8).bfloat16(), "weight": torch.ones(4, 8).bfloat16()}
    with pytest.raises(GemmError) as e:
        cutegemm.linear(**(good | given))
    assert e.value.field == field


def test_a_gradient_of_the_gradient_is_refused():
    """As for 16 bits."""
    x, w, _, _ = drawn((4, 32), 8)
    x.requires_grad_()
    y = cutegemm.linear(x, w, fp8="row")
    with pytest.raises(GemmError, match="double backward"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("recipe", ["row", "block"])
def test_vmap_maps_what_records_no_gradient(recipe):
    """A batch of x or of weights; what differentiates under a transform is refused by the recipe's name."""
    x, w = torch.randn(2, 4, 32), torch.randn(2, 8, 32)
    call = lambda x, w: cutegemm.linear(x, w, torch.ones(8), fp8=recipe)
    for dims in ((0, 0), (0, None), (None, 0)):
        args = [t if dim == 0 else t[0] for t, dim in zip((x, w), dims)]
        wanted = torch.stack([call(*(t[i] if d == 0 else t for t, d in zip(args, dims))) for i in (0, 1)])
        assert torch.equal(torch.vmap(call, dims)(*args), wanted)
    with pytest.raises(GemmError, match=f"fp8='{recipe}': has no gradient under torch.func and vmap"):
        torch.func.grad(lambda x: call(x, w[0]).sum())(x[0])
