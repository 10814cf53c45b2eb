# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts beside every expert computed for every token."""

import pytest
import torch

from cutegemm.errors import InputError
from cutegemm.nn import MoE


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
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be(name):
    """Refused when it is made."""
    given, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        MoE(**{"hidden": 32, "intermediate": 48, "experts": 4, "top_k": 2} | given)


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
    """Of tokens and all weights, beside fp64."""
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
