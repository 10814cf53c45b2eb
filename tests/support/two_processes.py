# SPDX-License-Identifier: Apache-2.0
"""One of several processes that compare sharded layers with whole ones: python -m ... RANK WORLD FILE BACKEND.

BACKEND is "gloo" on the CPU, or "nccl" with a GPU for each process.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from tests.support import two_processes_groups

GELU = epi.bias_act("gelu")


class Block(torch.nn.Module):
    """A norm and two layers."""

    def __init__(self, layer, **options):
        super().__init__()
        self.norm = torch.nn.LayerNorm(12)
        self.up, self.down = layer(12, 16, **options), layer(16, 12, **options)

    def forward(self, x):
        """One after the other."""
        return self.down(torch.relu(self.up(self.norm(x))))


class Gated(torch.nn.Module):
    """A gated perceptron."""

    def __init__(self):
        super().__init__()
        self.act_fn = torch.nn.SiLU()
        self.gate_proj, self.up_proj = (torch.nn.Linear(12, 16, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(16, 12, bias=False)

    def forward(self, x):
        """Down of silu(gate) times up."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Pair(torch.nn.Module):
    """Two layers of one tensor, and a gated perceptron."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.mlp = torch.nn.Linear(12, 8), torch.nn.Linear(12, 4), Gated()

    def forward(self, x):
        """One after the other."""
        return self.mlp(torch.cat((self.q(x), self.k(x)), -1))


def whole(x):
    """A tensor of all processes."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def seeded(make):
    """A module whose weights are the same in all processes."""
    torch.manual_seed(0)
    return make()


def compare(name, ours, theirs, x, local=None):
    """The output and all gradients of two modules."""
    y, z = theirs(x), ours(x if local is None else local)
    y.square().sum().backward()
    z.square().sum().backward()
    assert torch.allclose(whole(z), y, atol=1e-5), name
    for (which, p), q in zip(theirs.named_parameters(), ours.parameters()):
        assert torch.allclose(whole(q.grad), p.grad, atol=1e-5), (name, which)


def layers(mesh, rank):
    """nn.Linear under tensor, sequence and fully sharded parallelism; nn.MLP under tensor parallelism."""
    x = seeded(lambda: torch.randn(2, 4, 12))
    plain = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    sequence = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    for name, plan, local in (("tensor", plain, x), ("sequence", sequence, x.chunk(2, 1)[rank])):
        ours = seeded(lambda: Block(nn.Linear, fallback="reference"))
        parallelize_module(ours, mesh, plan)
        compare(name, ours, seeded(lambda: Block(torch.nn.Linear)), x, local)
    ours = seeded(lambda: Block(torch.nn.Linear))
    nn.convert(ours, fallback="reference")
    for part in (ours.up, ours.down, ours):
        fully_shard(part, mesh=mesh)
    compare("fully sharded", ours, seeded(lambda: Block(torch.nn.Linear)), x)
    ours = seeded(lambda: nn.MLP(12, 16, fallback="reference"))
    parallelize_module(ours, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compare("perceptron", ours, seeded(lambda: nn.MLP(12, 16, fallback="reference")), x)


def states(mesh):
    """Several parameters as one, fully sharded: outputs, and state dicts as torch's layers have them."""
    x, theirs = seeded(lambda: torch.randn(4, 12)), seeded(Pair)
    expected = {key: t.clone() for key, t in theirs.state_dict().items()}
    ours = seeded(Pair)
    nn.convert(ours, fallback="reference", joined=[("q", "k")], swiglu=[Gated])
    fully_shard(ours, mesh=mesh)

    def zeroed():
        with torch.no_grad():
            [p.zero_() for p in ours.parameters()]

    def equal():
        assert torch.allclose(whole(ours(x)), theirs(x), atol=1e-5)
        found = get_model_state_dict(ours, options=StateDictOptions(full_state_dict=True))
        assert list(found) == list(expected)
        assert all(torch.equal(found[key], expected[key]) for key in expected)

    equal()
    kept = {key: t.clone() for key, t in ours.state_dict().items()}
    zeroed()
    # all but one part, which stays, after a forward that has left the parameters whole
    part = {key: t for key, t in kept.items() if key != "k.weight"}
    ours(x)
    assert ours.load_state_dict(part, strict=False).missing_keys == ["k.weight"]
    assert not whole(ours.state_dict()["k.weight"]).any()
    ours.load_state_dict(kept)
    equal()
    zeroed()
    set_model_state_dict(ours, dict(expected), options=StateDictOptions(full_state_dict=True))
    equal()


def eight_bits(mesh, k):
    """8-bit layers fully sharded: the same bits, and x's gradient. Rows with padding are made contiguous first."""
    x = seeded(lambda: torch.randn(4, k).bfloat16())
    ours = seeded(lambda: torch.nn.Sequential(torch.nn.Linear(k, 48), torch.nn.Linear(48, k)))
    ours = ours.bfloat16().eval()
    nn.convert(ours, weights="fp8", activations="fp8", fallback="reference")

    def run():
        given = x.clone().requires_grad_()
        y = ours(given)
        return y, torch.autograd.grad(y.float().square().sum(), given)[0]

    expected = run()
    # torch refuses parameters that are not contiguous (docs/fp8.md)
    assert ours[0].weight.is_contiguous() is (k % 16 == 0)
    for layer in ours.modules():
        if isinstance(layer, nn.QuantizedLinear):
            layer.weight.data = layer.weight.data.contiguous()
    for part in (*ours, ours):
        fully_shard(part, mesh=mesh)
    for found, told in zip(run(), expected, strict=True):
        assert torch.equal(found, told), k


def compiled(mesh):
    """The first call of all is a compiled one: the rules are there."""
    x, w = seeded(lambda: [torch.randn(s) for s in ((4, 12), (8, 12))])
    run = torch.compile(
        lambda x, w: cutegemm.linear(x, w, fallback="reference"), fullgraph=True, backend="aot_eager"
    )
    found = run(distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(w, mesh, [Replicate()]))
    assert found.placements == (Shard(0),) and torch.allclose(whole(found), F.linear(x, w), atol=1e-5)


def placements(mesh):
    """A fused layer whose tensors are cut in every way: values, gradients, and where the result lies."""
    x, w, b = seeded(lambda: [torch.randn(s) for s in ((2, 4, 12), (8, 12), (8,))])

    def run(f, tensors):
        leaves = [t.detach().requires_grad_() for t in tensors]
        y = f(*leaves)
        y.square().sum().backward()
        return y, [t.grad for t in leaves]

    def fused(*args):
        return cutegemm.linear(*args, epilogue=GELU, fallback="reference")

    def linear(*args):
        return cutegemm.linear(*args, fallback="reference")

    y, gradients = run(lambda *args: F.gelu(F.linear(*args)), (x, w, b))
    r = Replicate()
    for given, result in (
        ((r, r, r), r),
        ((Shard(0), r, r), Shard(0)),
        ((Shard(1), r, r), Shard(1)),
        ((r, Shard(0), Shard(0)), Shard(2)),
        ((Shard(2), Shard(1), r), None),
    ):
        z, found = run(fused, [distribute_tensor(t, mesh, [p]) for t, p in zip((x, w, b), given)])
        assert result is None or z.placements == (result,), (given, z.placements)
        assert torch.allclose(whole(z), y, atol=1e-5), given
        for p, q in zip(gradients, found):
            assert torch.allclose(whole(q), p, atol=1e-4), given
    # the same tensors under an epilogue that lets K be cut: another decision
    cut = [distribute_tensor(t, mesh, [p]) for t, p in zip((x, w, b), (Shard(2), Shard(1), r))]
    with torch.no_grad():
        assert not fused(*cut).placements[0].is_partial() and linear(*cut).placements[0].is_partial()
    z, _ = run(linear, [distribute_tensor(t, mesh, [p]) for t, p in zip((x, w, b), (Shard(2), Shard(1), r))])
    assert z.placements[0].is_partial()
    assert torch.allclose(whole(z), F.linear(x, w, b), atol=1e-5)


def main():
    """Everything, in one of the processes."""
    rank, world, path, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
        torch.set_default_device(f"cuda:{rank}")
    dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=world)
    mesh = init_device_mesh(device, (world,))
    compiled(mesh)
    layers(mesh, rank)
    states(mesh)
    eight_bits(mesh, 64)
    eight_bits(mesh, 60)
    placements(mesh)
    for check in ("groups", "refusals", "compiled", "mixtures"):
        getattr(two_processes_groups, check)(mesh)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
