# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts beside every expert computed for every token."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import cutegemm
from cutegemm import GemmSpec
from cutegemm.epilogue.library import swiglu
from cutegemm.errors import InputError
from cutegemm.nn import MoE, convert, experts
from cutegemm.ops import perceptron
from cutegemm.ops.program import decode

BF16 = torch.bfloat16
# what launches nothing
VIEWS = (
    "view",
    "transpose",
    "t",
    "slice",
    "detach",
    "unsqueeze",
    "expand",
    "split",
    "new_empty",
    "empty_like",
)


def dense(moe, x):
    """The mixture in fp64, from all experts' results."""
    flat = x.reshape(-1, x.shape[-1])
    chances = moe.router(flat.to(moe.router.weight.dtype)).float().softmax(-1)
    weights, experts = chances.topk(moe.top_k, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).double()
    gate, up = torch.einsum("th,eih->tei", flat.double(), moe.gate_up_weight.double()).chunk(2, -1)
    every = torch.einsum("tei,ehi->teh", torch.nn.functional.silu(gate) * up, moe.down_weight.double())
    taken = every.gather(1, experts[..., None].expand(-1, -1, x.shape[-1]))
    return (taken * weights[..., None]).sum(1).view(x.shape)


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
def test_a_mixture_is_the_weighted_sum_of_its_experts(recorded):
    """Forward with the activation fused, and with gradients of tokens and all weights."""
    torch.manual_seed(0)
    moe = MoE(32, 48, 5, 2, dtype=torch.bfloat16, fallback="reference")
    x = torch.randn(2, 7, 32).bfloat16().requires_grad_(recorded)
    with torch.set_grad_enabled(recorded):
        found, told = moe(x), dense(moe, x)
    torch.testing.assert_close(found.double(), told, rtol=2e-2, atol=2e-2)
    if recorded:
        above = torch.randn_like(told)
        of = (x, *moe.parameters())
        ours = torch.autograd.grad(found, of, above.to(found.dtype))
        wanted = torch.autograd.grad(told, of, above)
        for y, z in zip(ours, wanted, strict=True):
            assert (y.double() - z.double()).norm() <= 0.03 * z.double().norm()


class Launched(TorchDispatchMode):
    """Counts the operations of torch that launch something."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one."""
        self.count += func._schema.name.split("::")[1] not in VIEWS
        return func(*args, **(kwargs or {}))


def test_the_operations_of_torch_beside_the_launches(monkeypatch):
    """13 without gradients, 14 and 12 with them: 18, 20 and 29 while autograd undid each step of the routing."""

    def grouped(a, b, rows=None, epilogue=None, **_):
        return a.new_empty(len(a if rows is None else rows), b.shape[-1] // (1 if epilogue is None else 2))

    def many(a, b, bounds, inputs, numbers, integers, text, how):
        program, shape = decode(text), (len(bounds) - 1,) * (b.dim() == 2) + (a.shape[0],)
        width = b.shape[-1] // (2 if program.graph.gated else 1)
        widths = (
            () if x.kind == "sum" else (width * (2 if x.name in program.merged else 1),)
            for x in program.results
        )
        return [a.new_empty(*shape, *each) for each in widths]

    monkeypatch.setattr(experts, "grouped_mm", grouped)
    monkeypatch.setattr(perceptron, "many", many)
    monkeypatch.setattr(perceptron, "direct", lambda *_: True)
    moe, x = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference"), torch.randn(7, 32).bfloat16()
    with torch.no_grad(), Launched() as inference:
        moe(x)
    x.requires_grad_()
    with Launched() as forward:
        y = moe(x)
    above = torch.ones_like(y)
    with Launched() as backward:
        y.backward(above)
    assert (inference.count, forward.count, backward.count) == (13, 14, 12)


@pytest.mark.sliced
def test_kernels_compute_what_the_reference_does():
    """Forward and every gradient, bit by bit up to the order of sums, with an expert that nobody takes."""
    torch.manual_seed(0)
    moe = MoE(64, 48, 5, 2, dtype=BF16, fallback="reference")
    with torch.no_grad():
        moe.router.weight[3] = -10
    ours = copy.deepcopy(moe)
    ours.fallback = "emulator"
    x = torch.randn(19, 64).bfloat16().abs()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), moe(x), rtol=1e-2, atol=1e-2)
    found = []
    for each in (ours, moe):
        given = x.clone().requires_grad_()
        found.append(torch.autograd.grad(each(given).square().sum(), (given, *each.parameters())))
    for y, z in zip(*found, strict=True):
        assert (y - z).double().norm() <= 0.01 * z.double().norm()


class Specs(TorchDispatchMode):
    """Keeps `batch_invariant` of the GEMMs that are called."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Call one; its program is the argument that is a text of braces."""
        texts = [x for x in args if isinstance(x, str) and x.startswith("{")]
        self.found += [decode(x).spec.batch_invariant is True for x in texts]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("invariant", [False, True])
def test_every_gemm_of_a_result_is_batch_invariant(invariant, recorded):
    """The router's and both of the experts; without the option only two are ours, and none is."""
    moe = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference", batch_invariant=invariant)
    with torch.set_grad_enabled(recorded), Specs() as seen:
        moe(torch.randn(7, 32).bfloat16())
    assert seen.found == ([True] * 3 if invariant else [False] * 2)


@pytest.mark.sliced
@pytest.mark.parametrize("recorded", [False, True], ids=["inference", "training"])
def test_a_tokens_bits_do_not_depend_on_the_batch(recorded):
    """Alone, first among few and last among many; the router's logits are those of a GEMM without splits of K."""
    torch.manual_seed(0)
    moe = MoE(3072, 8, 5, 2, dtype=BF16, fallback="emulator", batch_invariant=True)
    x, large = torch.randn(21, 1024).bfloat16().repeat(1, 3), torch.randn(5, 1024) * 2.0**26
    with torch.no_grad():
        # large terms cancel, so the sum depends on the order of additions
        moe.router.weight.copy_(torch.cat([large, -large, torch.randn(5, 1024)], 1))
    unsplit = cutegemm.linear(
        x[7:8], moe.router.weight.detach(), spec=GemmSpec(split_k=1), fallback="emulator"
    )
    with torch.set_grad_enabled(recorded):
        told = moe(x[7:8])[0]
        assert told.any()
        for batch, token in ((x[7:12], 0), (x[7:].flip(0), -1)):
            assert torch.equal(moe(batch)[token], told)
            assert torch.equal(moe.router(batch)[token], unsplit[0])


def test_a_batch_invariant_mixture_compiles_and_keeps_its_state_dict():
    """One graph with the bits of eager mode; keys and values are those of a mixture without the option."""
    plain = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference")
    moe = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference", batch_invariant=True)
    moe.load_state_dict(plain.state_dict())
    x = torch.randn(7, 32).bfloat16()
    compiled = torch.compile(moe, fullgraph=True, dynamic=True, backend="aot_eager")
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            assert torch.equal(compiled(x), moe(x))
    torch.testing.assert_close(moe(x), plain(x), rtol=1e-2, atol=1e-2)
    done = convert(torch.nn.Sequential(moe), fallback="reference")
    assert not done.left and type(moe.router).__name__ == "_Router"


def test_torch_multiplies_a_batch_invariant_routers_sparse_weight():
    """As that of every other layer: the router differs from `nn.Linear` in its spec alone."""
    moe = MoE(32, 48, 5, 2, dtype=torch.float32, batch_invariant=True)
    x, weight = torch.randn(7, 32), moe.router.weight.detach()
    moe.router.weight = torch.nn.Parameter(weight.to_sparse(), requires_grad=False)
    torch.testing.assert_close(moe.router(x), x @ weight.T)


def test_one_compilation_serves_every_number_of_tokens():
    """Forward and backward in one graph, as in eager mode."""
    torch.manual_seed(0)
    moe = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference")
    counted = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(moe, fullgraph=True, dynamic=True, backend=counted)
    for tokens in (19, 7):
        x = torch.randn(tokens, 32).bfloat16()
        found = []
        for each in (compiled, moe):
            given = x.clone().requires_grad_()
            y = each(given)
            found.append((y, *torch.autograd.grad(y.square().sum(), (given, *moe.parameters()))))
        for y, z in zip(*found, strict=True):
            assert torch.equal(y, z)
    assert counted.frame_count == 1


def test_a_gradient_of_a_gradient_is_refused():
    """It would be wrong; the first one is not."""
    moe = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference")
    x = torch.randn(7, 32).bfloat16().requires_grad_()
    (found,) = torch.autograd.grad(moe(x).sum(), x, create_graph=True)
    with pytest.raises(InputError, match="double backward"):
        found.sum().backward()


def test_gradients_by_torchs_transforms():
    """torch.func.grad gives what autograd does, to another order of roundings."""
    torch.manual_seed(0)
    moe = MoE(32, 48, 5, 2, dtype=BF16, fallback="reference")
    x = torch.randn(7, 32).bfloat16()
    found = torch.func.grad(lambda y: moe(y).float().square().sum())(x)
    (told,) = torch.autograd.grad(moe(x.requires_grad_()).float().square().sum(), x)
    assert (found - told).double().norm() <= 0.02 * told.double().norm()


def test_weights_have_gradients_as_they_lie():
    """As the parameters do, so that autograd copies nothing; rows of no group are zero, a frozen weight has none."""
    up, down = torch.randn(3, 96, 32).bfloat16().requires_grad_(), torch.randn(3, 32, 48).bfloat16()
    x, bounds = torch.randn(9, 32).bfloat16(), torch.tensor([1, 4, 4, 8])
    y = perceptron.grouped_perceptron(x, up, swiglu(), down, bounds, "reference")
    assert not y[[0, 8]].any()
    y.sum().backward()
    assert up.grad.is_contiguous() and up.grad[0].any() and not up.grad[1].any() and down.grad is None


def test_a_shared_expert_is_added():
    """Beside the routed ones, for every token."""
    torch.manual_seed(0)
    shared = torch.nn.Linear(32, 32, dtype=torch.bfloat16)
    moe = MoE(32, 48, 5, 2, shared=shared, dtype=torch.bfloat16, fallback="reference")
    x = torch.randn(7, 32).bfloat16()
    with torch.no_grad():
        both, moe.shared = moe(x), None
        torch.testing.assert_close(both, moe(x) + shared(x))


def test_no_tokens_give_no_rows():
    """A batch without tokens has the shape of any other, with gradients too."""
    moe = MoE(32, 48, 5, 2, dtype=torch.bfloat16, fallback="reference")
    for x in (torch.empty(0, 32), torch.empty(2, 0, 32)):
        x = x.bfloat16().requires_grad_()
        moe(x).sum().backward()
        assert x.grad.shape == moe(x).shape == x.shape


REFUSED = {
    "more experts than there are": ({"top_k": 5}, "top_k=5: must be from 1 to 4; nearest legal value: 4"),
    "text": ({"top_k": "2"}, "top_k='2': must be an integer from 1 to 4"),
    "no width": ({"hidden": 0}, "hidden=0: must be from 1"),
    "no width of an expert": ({"intermediate": 0}, "intermediate=0: must be from 1"),
    "experts in text": ({"experts": "4"}, "experts='4': must be an integer"),
    "another fallback": ({"fallback": "x"}, "fallback='x': must be one of torch, error, reference, emulator"),
    "a shared number": ({"shared": 3}, "shared=3: must be a torch.nn.Module or None"),
    "a word": ({"normalise": "no"}, "normalise='no': must be True or False"),
    "a number": ({"batch_invariant": 1}, "batch_invariant=1: must be True or False"),
    "integers": ({"dtype": torch.int8}, "dtype=torch.int8: must be a floating-point torch.dtype"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be(name):
    """Refused when it is made."""
    given, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        MoE(**{"hidden": 32, "intermediate": 48, "experts": 4, "top_k": 2} | given)


def test_types_of_a_call():
    """Those of the weights, which are 16-bit; under autocast any floating-point type."""
    moe, x = MoE(32, 48, 4, 2, fallback="reference"), torch.randn(3, 32)
    with pytest.raises(InputError, match=r"gate_up_weight\.dtype=torch\.float32: groups multiply float16"):
        moe(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert moe(x).dtype == torch.float32
        with pytest.raises(InputError, match=r"x\.dtype=torch\.int64: must be that of the weights"):
            moe(x.long())
    with pytest.raises(InputError, match=r"x\.dtype=torch\.float32: must be that of the weights"):
        moe.bfloat16()(x)


@pytest.mark.gpu
def test_a_mixture_is_captured_in_a_graph():
    """Nothing waits for the device: one capture, replayed with other tokens."""
    torch.manual_seed(0)
    moe = MoE(512, 768, 16, 4, dtype=torch.bfloat16, device="cuda", fallback="error")
    x = torch.randn(33, 512, device="cuda").bfloat16()
    with torch.no_grad():
        moe(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = moe(x)
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
            torch.testing.assert_close(found.double(), dense(moe, x), rtol=3e-2, atol=3e-2)


@pytest.mark.gpu
def test_gradients_of_a_mixture_on_the_gpu():
    """The gradients of the tokens and of all weights are near those in fp64."""
    torch.manual_seed(0)
    moe = MoE(256, 384, 8, 2, dtype=torch.bfloat16, device="cuda", fallback="error")
    x = torch.randn(100, 256, device="cuda").bfloat16().requires_grad_()
    found, told = moe(x), dense(moe, x)
    above = torch.randn_like(told)
    of = (x, *moe.parameters())
    for y, z in zip(
        torch.autograd.grad(found, of, above.to(found.dtype)),
        torch.autograd.grad(told, of, above),
        strict=True,
    ):
        assert (y.double() - z.double()).norm() <= 0.03 * z.double().norm()
