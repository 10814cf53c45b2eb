# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights that are added to `main_grad`, as Megatron-LM keeps them: in the GEMM, in fp32."""

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import cutegemm
from cutegemm import epilogue as epi
from cutegemm.errors import InputError

BF16 = torch.bfloat16
OFFS = torch.tensor([4, 4, 9])
FORMS = {
    "rows": ((10, 16), (3, 16, 24), {"offs": OFFS}),
    "columns": ((3, 24, 16), (16, 10), {"offs": OFFS}),
    "along K": ((24, 10), (10, 16), {"cu_seqlens": torch.tensor([1, 4, 4, 9])}),
    "masked": ((3, 10, 16), (3, 16, 24), {"counts": OFFS}),
}


class Seen(TorchDispatchMode):
    """Keeps the names of operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def parameter(*shape, turned=False, **attributes):
    """A weight with a main_grad that holds something, and the weight as it is multiplied."""
    w = torch.nn.Parameter(torch.randn(*shape[:-2], *(shape[-2:][::-1] if turned else shape[-2:])).to(BF16))
    w.main_grad = torch.randn(w.shape)
    for name, value in attributes.items():
        setattr(w, name, value)
    return w, w.mT if turned else w


def check(run, w, b, others):
    """The gradient is added to main_grad, others are as they are without."""
    before = w.main_grad.clone()
    d = run(b, True)
    above = torch.randn_like(d)
    with Seen() as seen:
        d.backward(above)
    ours = [x.grad for x in others]
    assert w.grad is None
    for x in others:
        x.grad = None
    plain = run(b, False)
    torch.testing.assert_close(d, plain)
    plain.backward(above)
    told = w.grad.float()
    torch.testing.assert_close(w.main_grad - before, told, rtol=2e-2, atol=2e-2)
    for x, y in zip(ours, others, strict=True):
        torch.testing.assert_close(x, y.grad)
    return seen.names


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_groups_add_in_the_kernel(form, turned):
    """The gradient of a parameter, or of its transpose, is added by the kernel, in every form of groups."""
    shape, of_b, told = FORMS[form]
    a, (w, b) = torch.randn(shape).to(BF16).requires_grad_(), parameter(*of_b, turned=turned)

    def run(b, added):
        return cutegemm.grouped_mm(a, b, **told, alpha=0.5, accumulate_main_grad=added, fallback="reference")

    names = check(run, w, b, [a])
    assert any(x in ("cutegemm.grouped_mm.out", "cutegemm.gemm.out") for x in names)
    assert not any("add" in x for x in names)


@pytest.mark.parametrize("kind", ["linear", "groups", "transposed", "transposed, with an unused gradient"])
def test_compiled_autograd_adds(kind):
    """A traced backward pass adds to main_grad what one that is not traced adds."""
    torch._dynamo.reset()
    x, unused = torch.randn(10, 16).to(BF16).requires_grad_(), "unused" in kind
    w, b = parameter(3, 16, 24, turned="transposed" in kind)
    if kind == "linear":
        w, b = parameter(24, 16)
    if unused:
        w.grad_added_to_main_grad, w.zero_out_wgrad = False, True
    before, found = w.main_grad.clone(), []

    def run():
        how = {"accumulate_main_grad": True, "fallback": "reference"}
        d = cutegemm.linear(x, b, **how) if kind == "linear" else cutegemm.grouped_mm(x, b, OFFS, **how)
        return d.float().square().sum()

    for traced in (True, False):
        w.main_grad.copy_(before)
        x.grad = w.grad = None
        if traced:
            with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
                run().backward()
        else:
            run().backward()
        found.append((w.main_grad.clone(), x.grad))
        assert w.grad is None or (unused and w.grad_added_to_main_grad and not w.grad.any())
    assert not torch.equal(w.main_grad, before)
    for ours, told in zip(*found):
        torch.testing.assert_close(ours, told, rtol=1e-5, atol=1e-5)


def test_compiled_code_adds_in_a_layer_that_is_not_compiled():
    """`torch.compiler.disable` keeps a layer eager within a compiled model; otherwise the call is refused."""
    torch._dynamo.reset()
    x, (w, b) = torch.randn(10, 16).to(BF16), parameter(3, 16, 24)

    def layer(x):
        return cutegemm.grouped_mm(x, b, OFFS, accumulate_main_grad=True, fallback="reference")

    rule = "needs eager mode, without torch.compile .torch.compiler.disable .*'accumulate_main_grad', True"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=rule):
        torch.compile(layer, backend="eager", fullgraph=True)(x)
    told = (
        w.main_grad + 2 * torch.stack([x[i:j].float().sum(0) for i, j in ((0, 4), (4, 4), (4, 9))])[..., None]
    )
    eager = torch.compiler.disable(layer)
    torch.compile(lambda x: eager(x) * 2, backend="aot_eager")(x).sum().backward()
    torch.testing.assert_close(w.main_grad, told, rtol=1e-2, atol=1e-2)
    assert w.grad is None


def test_an_emulated_kernel_adds():
    """C and D of its launch are main_grad itself."""
    a, (w, b) = torch.randn(10, 16).to(BF16), parameter(3, 16, 24)
    before = w.main_grad.clone()
    d = cutegemm.grouped_mm(a, b, OFFS, accumulate_main_grad=True, fallback="emulator")
    d.backward(above := torch.randn_like(d))
    for group, (first, end) in enumerate(((0, 4), (4, 4), (4, 9))):
        told = before[group] + a[first:end].float().mT @ above[first:end].float()
        torch.testing.assert_close(w.main_grad[group], told, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["epilogue", "scatter and weight", "rows"])
def test_groups_add_whatever_goes_with_them(kind):
    """Through an epilogue with a gradient of its own, and through what torch does before and after."""
    a, (w, b) = torch.randn(10, 16).to(BF16).requires_grad_(), parameter(3, 24, 16, turned=True)
    weight, bias = torch.rand(10).requires_grad_(), torch.randn(3, 16).requires_grad_()
    more, others = {
        "epilogue": ({"epilogue": epi.bias_act("gelu"), "bias": bias}, [a, bias]),
        "scatter and weight": ({"scatter": torch.arange(10).flip(0), "weight": weight}, [a, weight]),
        "rows": ({"rows": torch.arange(10).flip(0)}, [a]),
    }[kind]
    w, b = parameter(3, 16, 16, turned=True)

    def run(b, added):
        return cutegemm.grouped_mm(a, b, OFFS, **more, accumulate_main_grad=added, fallback="reference")

    check(run, w, b, others)


@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_layer_adds(biased):
    """It adds its gradient also if inputs have leading dimensions, with a bias or without."""
    x, bias = torch.randn(2, 5, 16).to(BF16).requires_grad_(), torch.randn(24).to(BF16).requires_grad_()
    w, _ = parameter(24, 16)

    def run(weight, added):
        given = (x, weight, bias) if biased else (x, weight)
        return cutegemm.linear(*given, accumulate_main_grad=added, fallback="reference")

    names = check(run, w, w, [x, bias] if biased else [x])
    assert "cutegemm.gemm.out" in names and not any("add" in x for x in names)


@pytest.mark.parametrize("kind", ["groups", "an epilogue", "a linear layer"])
def test_a_gradient_under_autocast_is_added_to_the_main_grad_of_an_fp32_weight(kind):
    """Autocast multiplies a bf16 copy of the parameter, which has no main_grad of its own."""
    x, w = torch.randn(10, 16).requires_grad_(), torch.nn.Parameter(torch.randn(3, 24, 16))
    weight, biased = w.mT, {"epilogue": epi.bias_act("gelu"), "bias": torch.randn(3, 24)}
    if kind == "a linear layer":
        weight = w = torch.nn.Parameter(torch.randn(24, 16))
    w.main_grad = torch.randn(w.shape)

    def run(weight, added):
        how = {"accumulate_main_grad": added, "fallback": "reference"}
        with torch.autocast("cpu", BF16):
            if kind == "a linear layer":
                return cutegemm.linear(x, weight, **how)
            return cutegemm.grouped_mm(x, weight, OFFS, **(biased if kind == "an epilogue" else {}), **how)

    check(run, w, weight, [x])


def test_a_checkpointed_layer_adds():
    """Checkpoints give each saved tensor once, so the backward pass may read it only once."""
    x = torch.randn(5, 16).to(BF16).requires_grad_()
    w, _ = parameter(24, 16)
    told = w.main_grad + x.detach().float().sum(0)

    def layer(x):
        return cutegemm.linear(x, w, accumulate_main_grad=True, fallback="reference")

    checkpoint(layer, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(w.main_grad, told)
    assert w.grad is None and x.grad is not None


def test_what_hooks_wait_for_is_a_gradient_that_nobody_reads():
    """Where the parameter has grad_added_to_main_grad, which is set; zeros where they are asked for."""
    for turned in (False, True):
        w, b = parameter(3, 16, 24, turned=turned, grad_added_to_main_grad=False, zero_out_wgrad=True)
        ran = []
        w.register_post_accumulate_grad_hook(lambda x, ran=ran: ran.append(x.grad.clone()))
        before = w.main_grad.clone()
        a = torch.randn(10, 16).to(BF16)
        cutegemm.grouped_mm(a, b, OFFS, accumulate_main_grad=True, fallback="reference").sum().backward()
        assert w.grad_added_to_main_grad and not torch.equal(w.main_grad, before)
        assert [x.shape for x in ran] == [w.shape] and not ran[0].any()


def test_without_a_main_grad_there_is_a_gradient():
    """Also of a view that is no transpose, whose gradient autograd adds; and without the option."""
    a = torch.randn(10, 16).to(BF16)
    plain = torch.nn.Parameter(torch.randn(3, 16, 24).to(BF16))
    part, b = parameter(5, 16, 24)
    for w, b in ((plain, plain), (part, part[:3])):
        cutegemm.grouped_mm(a, b, OFFS, accumulate_main_grad=True, fallback="reference").sum().backward()
        assert w.grad is not None
    with torch.no_grad():
        assert not cutegemm.grouped_mm(a, part[:3], OFFS, accumulate_main_grad=True).requires_grad


def test_what_cannot_be():
    """Refused by name."""
    a, (w, b) = torch.randn(10, 16).to(BF16), parameter(3, 16, 24)
    call = lambda b: cutegemm.grouped_mm(a, b, OFFS, accumulate_main_grad=True, fallback="reference")
    with pytest.raises(
        InputError, match="accumulate_main_grad=True: needs eager mode, without torch.compile"
    ):
        torch.func.grad(lambda b: call(b).float().sum())(b)
    with pytest.raises(InputError, match="accumulate_main_grad=True: needs eager mode"):
        torch.compile(call, backend="eager")(b)
    with pytest.raises(InputError, match="accumulate_main_grad=True: needs groups"):
        cutegemm.grouped_mm(a.expand(3, 10, 16), b, accumulate_main_grad=True, fallback="reference")
    with pytest.raises(InputError, match="accumulate_main_grad='yes': must be True or False"):
        cutegemm.grouped_mm(a, b, OFFS, accumulate_main_grad="yes", fallback="reference")
    x, (weight, _) = torch.randn(5, 16).to(BF16), parameter(24, 16)
    for given in ({"epilogue": epi.act("gelu")}, {"fp8": "row"}, {"out": torch.empty(5, 24).to(BF16)}):
        with pytest.raises(
            InputError, match=f"{next(iter(given))}='...': accumulate_main_grad=True supports only a bias"
        ):
            cutegemm.linear(x, weight, **given, accumulate_main_grad=True, fallback="reference")
    good, rule = w.main_grad, "must be a float32 tensor of the weight's shape, .3, 16, 24., on cpu"
    for wrong, told in (
        (good.half(), f"main_grad.dtype=torch.float16: {rule}"),
        (good[:2], f"main_grad.shape=.2, 16, 24.: {rule}"),
        (good.to("meta"), f"main_grad.device=.*meta.*: {rule}"),
        ("none", f"main_grad='none': {rule}"),
        (good.to_sparse(), "main_grad.layout=torch.sparse_coo: must be strided"),
        (good[:1].expand(3, -1, -1), "main_grad.stride.*=.0, 24, 1.: two elements of main_grad share memory"),
    ):
        w.main_grad = wrong
        with pytest.raises(InputError, match=told):
            call(b)
    found = parameter(3, 16, 24)[1]
    d = cutegemm.grouped_mm(a, found, OFFS, accumulate_main_grad=True, fallback="reference")
    with pytest.raises(InputError, match="a call with out= has no gradient"):
        torch.autograd.grad(d, found, torch.ones_like(d).requires_grad_(), create_graph=True)
