# SPDX-License-Identifier: Apache-2.0
"""Shortcuts of calls of groups, on a machine without a GPU: kernels, device and stream are stand-ins that record."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cutegemm
from benchmarks.probes.grouped_kernels import forget
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.errors import InputError
from cutegemm.ops import fallback, serve
from cutegemm.ops.groups import group_call, grouped_op
from cutegemm.ops.groups.group_gradient import PLAIN
from cutegemm.ops.products import program_of
from cutegemm.planning import grouped as planned_groups
from cutegemm.running import grouped_mm as running
from cutegemm.running import run
from cutegemm.running.backends import launcher

SWIGLU = epi.swiglu()
ONE = epi.define(lambda acc: epi.Output(h=epi.relu(acc)))
ROWS = epi.define(lambda acc: epi.Output(d=acc, h=epi.relu(acc)))


@pytest.fixture
def launched(monkeypatch):
    """The addresses and numbers of every launch of calls on CPU tensors, which take the GPU's way."""
    found = []
    for module in (run, running):
        monkeypatch.setattr(module, "backend_for", lambda request, named: "gpu")
        monkeypatch.setattr(module, "device_of", lambda device: H200)
    monkeypatch.setattr(
        launcher, "function_for", lambda config, index: lambda *x: found.append((list(x[0]), list(x[3])))
    )
    monkeypatch.setattr(launcher, "_current_device", lambda: None)
    monkeypatch.setattr(launcher, "_current_stream", lambda index: 77)
    monkeypatch.setattr(launcher.tvm_ffi, "convert", list)
    for module in (serve, fallback):
        monkeypatch.setattr(module, "hopper", lambda device: True)
    forget()
    yield found
    forget()


@pytest.fixture
def shortened(monkeypatch):
    """Whether each call was served by its shortcut."""
    found, own = [], group_call.again

    def again(key, alpha):
        d = own(key, alpha)
        found.append(d is not None)
        return d

    monkeypatch.setattr(cutegemm.ops.groups.grouped, "again", again)
    return found


def operands():
    """A, B, ends and what calls read beside."""
    a, b = torch.randn(20, 64).bfloat16(), torch.randn(3, 48, 64).bfloat16().mT
    more = {"bias": torch.randn(3, 48).bfloat16(), "rows": torch.arange(20), "weight": torch.rand(20)}
    return a, b, torch.tensor([4, 4, 17]), more


CALLS = {
    "plain": lambda a, b, ends, more: cutegemm.grouped_mm(a, b, ends, alpha=0.5),
    "starts": lambda a, b, ends, more: cutegemm.grouped_mm(a, b[:2], cu_seqlens=ends, tail="undefined"),
    "bias": lambda a, b, ends, more: cutegemm.grouped_mm(a, b, ends, bias=more["bias"]),
    "rows": lambda a, b, ends, more: cutegemm.grouped_mm(a, b, ends, rows=more["rows"]),
    "weight": lambda a, b, ends, more: cutegemm.grouped_mm(a, b, ends, weight=more["weight"]),
    "all": lambda a, b, ends, more: cutegemm.grouped_mm(a, b, ends, **more),
    "epilogue": lambda a, b, ends, more: cutegemm.grouped_mm(a, b, ends, epilogue=SWIGLU),
    "along K": lambda a, b, ends, more: cutegemm.grouped_mm(a.T, a.clone(), ends),
    "masked": lambda a, b, ends, more: cutegemm.grouped_mm(a.view(3, -1, 64)[:3], b, counts=ends),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_shortened_and_launches_the_same(name, launched, shortened):
    """Its own addresses in the launch's order, and its own alpha, though the tensors are others."""
    call, kept = CALLS[name], []
    for _ in range(3):
        a, b, ends, more = operands()
        if name == "masked":
            a = torch.randn(24, 64).bfloat16()
        d = call(a, b, ends, more)
        places = {x.data_ptr(): i for i, x in enumerate((a, b, ends, d, *more.values()))}
        (addresses, numbers) = launched[-1]
        kept.append(([places.get(x, "copy") for x in addresses], numbers, d.shape, d.dtype, d.stride()))
    assert shortened == [False, True, True] and len(launched) == 3
    assert kept[1] == kept[0] == kept[2] or name == "along K"


@pytest.mark.parametrize("epilogue, names", [(ROWS, ["d", "h"]), (ONE, ["h"])])
def test_a_shortened_call_names_its_outputs(epilogue, names, launched, shortened):
    """As the general way does, also a single output that is not called d."""
    for _ in range(3):
        a, b, ends, _ = operands()
        found = vars(cutegemm.grouped_mm(a, b, ends, epilogue=epilogue))
        assert list(found) == names
        (addresses, _) = launched[-1]
        assert addresses[2 : 2 + len(names)] == [x.data_ptr() for x in found.values()]
    assert shortened == [False, True, True]


def test_a_call_of_another_kind_goes_its_own_way(launched, shortened):
    """Other strides, types or alignments of the same shapes, a gradient, a mode, what is no tensor."""
    a, b, ends, more = operands()

    def call(*given, **named):
        before = len(shortened)
        d = cutegemm.grouped_mm(*given, **named)
        assert d is not None
        return shortened[before]

    call(a, b, ends)
    assert call(a, b, ends)
    shifted = torch.empty(20 * 64 + 1).bfloat16()[1:].view(20, 64)
    for x, y, z in (
        (a.T.contiguous().T, b, ends), (a, b.contiguous(), ends), (a, b, ends.int()), (shifted, b, ends),
        (a.half(), b.half(), ends),
    ):  # fmt: skip
        assert not call(x, y, z)
    # the kinds of one key take turns for a while
    call(a, b, ends)
    assert call(a, b, ends)
    # the launch reads a copy in fp32
    weight = more["weight"].bfloat16()
    assert not any([call(a, b, ends, weight=weight) for _ in range(3)])
    launches = len(launched)
    with Counted() as mode:
        assert not call(a, b, ends)
    assert mode.names == ["cutegemm::grouped_mm"]
    assert cutegemm.grouped_mm(a, b.detach().requires_grad_(), ends).requires_grad
    assert len(launched) == launches + 2
    for given, field in (((a.tolist(), b, ends), "a"), ((a, None, ends), "b")):
        with pytest.raises(InputError, match=f"^{field}"):
            cutegemm.grouped_mm(*given)


class Counted(TorchDispatchMode):
    """The ops of a region."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run one."""
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_groups_of_two_launches_take_both(launched, shortened, monkeypatch):
    """Also by a shortcut."""
    monkeypatch.setattr(planned_groups, "IDLE", math.inf)
    a, b = torch.randn(2056, 128).bfloat16(), torch.randn(32, 520, 128).bfloat16().mT
    for _ in range(3):
        launched.clear()
        cutegemm.grouped_mm(a, b, torch.full((32,), 2056))
        assert len(launched) == 2
    assert shortened == [False, True, True]


@pytest.fixture
def prepared(monkeypatch):
    """How often a call of the op went the general way."""
    found, own = [], grouped_op.remember

    def remember(*args):
        found.append(args[1])
        own(*args)

    monkeypatch.setattr(grouped_op, "remember", remember)
    return found


def stepped(a, b, ends, epilogue=None):
    """The gradients of a call, as training has them."""
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    d = cutegemm.grouped_mm(a, b, ends, epilogue=epilogue)
    return torch.autograd.grad(d, (a, b), torch.ones_like(d))


def test_gradients_are_shortened_and_launch_the_same(launched, prepared):
    """The forward pass through autograd, and both backward GEMMs, in the launch's order with new outputs."""
    kept = []
    for _ in range(3):
        a, b, ends, _ = operands()
        launched.clear()
        da, db = stepped(a, b, ends)
        places = {x.data_ptr(): i for i, x in enumerate((a, b, ends, da, db))}
        kept.append([([places.get(x, "D") for x in addresses], numbers) for addresses, numbers in launched])
        assert len(launched) == 3 and da.shape == a.shape and db.shape == b.shape
    assert kept[0] == kept[1] == kept[2] and len(prepared) == 3
    # of another kind, and again: the gradient of A reads none of it
    for _ in range(2):
        stepped(a.T.contiguous().T, b, ends)
    stepped(a, b, ends)
    assert len(prepared) == 5


def test_a_call_of_the_op_with_several_outputs_is_shortened(launched, prepared):
    """In the order of the program, each of its own memory."""
    text = program_of(ROWS, None, "matrix", {}, None).text
    for _ in range(3):
        a, b, ends, _ = operands()
        launched.clear()
        found = torch.ops.cutegemm.grouped_mm.many(a, b, ends, [], [], [], text, "rows:offs:zero")
        (addresses, _), *_ = launched
        assert [x.shape for x in found] == [(20, 48), (20, 48)]
        assert [addresses.index(x.data_ptr()) for x in found] == [2, 3]
    assert len(prepared) == 1


def test_calls_that_a_shortcut_cannot_tell_go_the_general_way(launched, prepared):
    """A tensor that is passed twice, and two numbers."""
    op, ends, square = (
        torch.ops.cutegemm.grouped_mm,
        torch.tensor([4, 0, 60]),
        torch.randn(3, 64, 64).bfloat16(),
    )
    plain = program_of(PLAIN[False, False], None, "matrix", {}, None)
    added = program_of(PLAIN[True, False], None, "matrix", {"c": square}, None)
    for _ in range(3):
        op.default(square, square, ends, [], [1.0], [], plain.text, "masked:counts:zero")
        op.default(
            square, square.clone(), ends, [square.clone()], [1.0, 1.0], [], added.text, "masked:counts:zero"
        )
    assert len(prepared) == 6 == len(launched)
