# SPDX-License-Identifier: Apache-2.0
"""Products of groups and mixtures of experts of DTensors, in one of several processes (`two_processes`)."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from cutegemm.errors import InputError
from tests.support.torch_ops import error

R, P = Replicate(), Partial()
BF16 = torch.bfloat16


@epi.define
def activated(acc, *, bias: epi.Row, scale: epi.Col):
    """An epilogue that no partial sum may pass."""
    return epi.silu(acc + bias) * scale


def seeded(*shapes):
    """Operands that are the same in all processes."""
    torch.manual_seed(0)
    return [(torch.randn(x) * 0.5).to(BF16) for x in shapes]


def whole(x):
    """A tensor of all processes."""
    return x.full_tensor() if isinstance(x, DTensor) else x


# name -> (A, B, ends by name, other tensors by name, other arguments)
def calls():
    """A call of every form."""
    a, b, bias, each, c, dy = seeded((20, 24), (3, 24, 16), (16,), (3, 16), (20, 16), (20, 16))
    batches, scale = seeded((4, 5, 24), (20,))
    offs, starts = torch.tensor([4, 4, 17]), torch.tensor([2, 6, 6, 18])
    many = seeded((4, 24, 16))[0]
    rows, places = torch.arange(22).mul(7) % 23, torch.arange(22) % 5
    weight = seeded((22,))[0].float()
    more = torch.tensor([4, 9, 21])
    return {
        "rows": (a, b, {"offs": offs}, {}, {"alpha": 0.5}),
        "starts": (a, b, {"cu_seqlens": starts}, {"bias": bias, "c": c}, {"beta": 0.5}),
        "bias of each": (a, b, {"offs": offs}, {"bias": each}, {}),
        "activated": (a, b, {"offs": offs}, {"bias": each, "scale": scale}, {"epilogue": activated}),
        "gated": (a, b, {"offs": offs}, {}, {"epilogue": epi.swiglu()}),
        "routed": (a, b, {"offs": more}, {"rows": rows, "scatter": places, "weight": weight}, {}),
        "columns": (b.mT.contiguous(), a.mT, {"offs": offs}, {}, {"alpha": 0.5}),
        "depth": (a.mT, dy, {"offs": offs}, {}, {}),
        "masked": (batches, many, {"counts": torch.tensor([5, 0, 3, 2])}, {}, {}),
    }


# (form or name, placements of A and B) -> that of D, where it is told
PLACEMENTS = [
    ("rows", R, R, R),
    ("rows", R, Shard(2), Shard(1)),
    ("rows", Shard(1), R, P),
    ("rows", R, Shard(1), P),
    ("rows", R, Shard(0), P),
    ("rows", Shard(0), Shard(0), P),
    ("rows", Shard(0), R, R),
    ("starts", R, Shard(0), P),
    ("starts", R, Shard(1), P),
    ("starts", R, Shard(2), Shard(1)),
    ("bias of each", R, Shard(0), P),
    ("bias of each", R, Shard(2), Shard(1)),
    ("activated", R, Shard(0), P),
    ("activated", R, Shard(1), R),
    ("activated", R, Shard(2), Shard(1)),
    ("gated", R, Shard(0), P),
    ("gated", R, Shard(2), R),
    ("routed", R, Shard(0), P),
    ("routed", R, Shard(2), Shard(1)),
    ("routed", Shard(1), Shard(1), P),
    ("columns", Shard(0), R, P),
    ("columns", Shard(1), R, Shard(0)),
    ("columns", Shard(2), Shard(0), P),
    ("columns", R, Shard(1), R),
    ("depth", R, Shard(1), Shard(2)),
    ("depth", Shard(0), R, Shard(1)),
    ("depth", Shard(1), Shard(0), R),
    ("masked", Shard(0), Shard(0), Shard(0)),
    ("masked", R, Shard(2), Shard(2)),
]


def groups(mesh):
    """Every form, cut in every way: values, gradients, and where the result lies."""

    def run(a, b, ends, others, numbers, how):
        leaves = {x: how(x, y) for x, y in {"a": a, "b": b, **others}.items()}
        leaves = {x: y.requires_grad_(y.is_floating_point()) for x, y in leaves.items()}
        given = leaves | {x: how(x, y) for x, y in ends.items()} | numbers
        y = cutegemm.grouped_mm(given.pop("a"), given.pop("b"), **given, fallback="reference")
        whole(y).float().square().sum().backward()
        return y, {x: whole(y.grad) for x, y in leaves.items() if y.requires_grad}

    every = calls()
    for name, of_a, of_b, of_d in PLACEMENTS:
        call = every[name]
        wanted, gradients = run(*call, lambda _, x: x.clone())
        place = {"a": of_a, "b": of_b}
        found, ours = run(*call, lambda x, y, place=place: distribute_tensor(y, mesh, [place.get(x, R)]))
        what = name, of_a, of_b
        assert found.placements == (of_d,), (*what, found.placements)
        assert error(whole(found).detach(), wanted.detach()) <= 1e-2, what
        for x, y in ours.items():
            assert error(y, gradients[x]) <= 1e-2, (*what, x)


def refusals(mesh):
    """Tensors of one process beside DTensors, an output that is given, and a gradient added to `main_grad`."""
    a, b, ends, _, _ = calls()["rows"]
    plain, by_group = a, distribute_tensor(b, mesh, [Shard(0)])
    owned = torch.nn.Parameter(by_group)
    owned.main_grad = torch.zeros(by_group.to_local().shape)
    a, b, ends, more = (distribute_tensor(x, mesh, [R]) for x in (a, b, ends["offs"], torch.arange(4)))
    for call, why in (
        (lambda: cutegemm.grouped_mm(a.full_tensor(), b, ends), "a=.*must be a DTensor"),
        (lambda: cutegemm.grouped_mm(a, b, ends.full_tensor()), "offs=.*must be a DTensor"),
        (lambda: cutegemm.grouped_mm(a, b, ends, out=torch.empty(20, 16)), "out=.*must be"),
        (lambda: cutegemm.grouped_mm(a, b.full_tensor(), ends), "a=.*must be an ordinary tensor"),
        (lambda: cutegemm.grouped_mm(plain, b.full_tensor(), ends), "offs=.*must be an ordinary tensor"),
        (lambda: cutegemm.grouped_mm(a, by_group, more), r"offs\.shape=\(4,\): must be \(3,\)"),
        (lambda: cutegemm.grouped_mm(a, by_group, ends, tail="gone"), "tail='gone': must be one of zero"),
        (
            lambda: cutegemm.grouped_mm(a, owned, ends, accumulate_main_grad=True),
            "subclasses such as DTensor",
        ),
    ):
        with pytest.raises(InputError, match=why):
            call()


def compiled(mesh):
    """One graph, with a gradient."""
    a, b, ends, _, _ = calls()["rows"]
    leaves = [distribute_tensor(x, mesh, [p]).requires_grad_() for x, p in ((a, R), (b, Shard(0)))]
    run = torch.compile(
        lambda *x: cutegemm.grouped_mm(*x, fallback="reference"), fullgraph=True, backend="aot_eager"
    )
    y = run(*leaves, distribute_tensor(ends["offs"], mesh, [R]))
    y.full_tensor().sum().backward()
    assert y.placements == (P,) and leaves[1].grad.placements == (Shard(0),)


def mixtures(mesh):
    """nn.MoE with its experts' weights cut by expert, and fully sharded: outputs and all gradients."""

    def made():
        torch.manual_seed(0)
        return nn.MoE(24, 16, 5, 2, dtype=BF16, fallback="reference")

    def cut(name, module, mesh):
        for which, p in module.named_parameters(recurse=False):
            placed = Shard(0) if p.dim() == 3 else R
            module.register_parameter(which, torch.nn.Parameter(distribute_tensor(p, mesh, [placed])))

    (x,) = seeded((2, 7, 24))
    for parallel in (True, False):
        ours, theirs = made(), made()
        if parallel:
            distribute_module(ours, mesh, cut)
        else:
            fully_shard(ours, mesh=mesh)
        results = []
        for module in (ours, theirs):
            given = x.clone()
            if parallel and module is ours:
                given = distribute_tensor(given, mesh, [R])
            y = module(given.requires_grad_())
            if module is ours:
                assert not parallel or y.placements[0].is_partial()
            whole(y).float().square().sum().backward()
            results.append([whole(t) for t in (y, given.grad, *(p.grad for p in module.parameters()))])
        for i, (y, z) in enumerate(zip(*results, strict=True)):
            assert error(y.detach(), z.detach()) <= 2e-2, (parallel, i)
