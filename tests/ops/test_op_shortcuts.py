# SPDX-License-Identifier: Apache-2.0
"""Shortcuts of op calls, as compiled code makes them, of perceptrons and of training steps."""

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, nn
from cutegemm import epilogue as epi
from cutegemm.ops import entry_points, program, register, shortcuts
from tests.support.launched import BF16, launches, r

launched = pytest.fixture(launches)
GELU = epi.bias_act("gelu")
RESIDUAL = epi.bias_act_residual("relu")
OPS = {
    "linear": (lambda x, w: cutegemm.linear(x, w), ((2, 48, 64), (32, 64))),
    "matmul": (lambda a, b: cutegemm.matmul(a, b, alpha=2.0), ((48, 64), (64, 32))),
    "bias": (lambda x, w, bias: cutegemm.linear(x, w, bias), ((2, 48, 64), (32, 64), (32,))),
    "epilogue": (lambda x, w, bias: cutegemm.linear(x, w, bias, epilogue=GELU), ((48, 64), (32, 64), (32,))),
    "matrix": (
        lambda x, w, bias, c: cutegemm.linear(x, w, bias, epilogue=RESIDUAL, residual=c),
        ((2, 48, 64), (32, 64), (32,), (2, 48, 32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_a_later_call_of_the_op_launches_what_the_first_did(name, launched, monkeypatch):
    """As compiled code calls it, recorded by autograd or not: the same launch, and neither `serve` nor `Gemm.run`."""
    f, shapes = OPS[name]
    tensors = [r(*shape) for shape in shapes]
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        # the first call, while torch compiles, has other dispatch keys
        compiled(*tensors)
        first = compiled(*tensors)
        others = [torch.stack([x, x], -1)[..., 0] for x in tensors]  # every second element
        compiled(*others)
        count = len(launched)
        for module in (shortcuts, register):
            monkeypatch.setattr(module, "serve", None)
        monkeypatch.setattr(cutegemm.Gemm, "run", None)
        # the dispatcher calls one implementation only
        monkeypatch.setattr(register, "redispatched", None)
        later = compiled(*tensors)
    assert (later.shape, later.stride(), later.dtype) == (first.shape, first.stride(), first.dtype)
    assert len(launched) == count + 1 and launched[1][1:] == launched[-1][1:]
    differ = {(x, y) for x, y in zip(launched[1][0], launched[-1][0]) if x != y}
    assert differ == {(first.data_ptr(), later.data_ptr())}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_a_perceptrons_later_step_launches_what_the_first_did(lead, bias, launched, monkeypatch):
    """Also the launch that stores two matrices, and those that sum the bias's gradient."""
    mlp = nn.MLP(64, 32, 48, bias=bias).to(BF16)
    x, g = r(*lead, 16, 64).requires_grad_(), r(*lead, 16, 48)

    def step():
        y = mlp(x)
        return y, *torch.autograd.grad(y, [x, *mlp.parameters()], g)

    known = step()
    count = len(launched)
    for module in (shortcuts, register):
        monkeypatch.setattr(module, "serve", None)
    monkeypatch.setattr(cutegemm.Gemm, "run", None)
    again = step()
    assert [(t.shape, t.stride(), t.dtype) for t in again] == [(t.shape, t.stride(), t.dtype) for t in known]
    assert len(launched) == 2 * count and count == 6 + bias
    for one, other in zip(launched[:count], launched[count:], strict=True):
        assert one[1:] == other[1:] and len(one[0]) == len(other[0])


@epi.define
def several(acc):
    """Sums before stored matrices, which are the first in a launch."""
    return epi.Output(rows=epi.Sum(acc, axis=1), d=acc, twice=acc * 2, columns=epi.Max(acc, axis=0))


@pytest.mark.parametrize("lead", [(), (2,)])
def test_outputs_come_in_the_epilogues_order(lead, launched):
    """Each is where the kernels of the long way have written it, with its extents and type."""
    x, w, text = r(*lead, 24, 64), r(32, 64), program.Program(GemmSpec(), several.finished(), "linear").text
    with torch.no_grad():
        known, again = ([*torch.ops.cutegemm.gemm.many(x, w, [], [], [], text)] for _ in range(2))
    assert [(t.shape, t.stride(), t.dtype) for t in again] == [(t.shape, t.stride(), t.dtype) for t in known]
    assert [t.shape for t in known] == [(*lead, 24), (*lead, 24, 32), (*lead, 24, 32), (32,)]

    def places(found, launches):
        return [[[x == t.data_ptr() for x in y[0]] for y in launches] for t in found]

    count = len(launched) // 2
    assert places(known, launched[:count]) == places(again, launched[count:])
    assert all(any(any(y) for y in x) for x in places(again, launched[count:]))


def test_an_op_without_its_number_is_refused_behind_a_shortcut(launched):
    """As before there was one: nothing is launched with a factor of 1."""
    a, b, op, text = r(48, 64), r(64, 32), torch.ops.cutegemm.gemm.default, entry_points._PLAIN.text
    with torch.no_grad():
        for _ in range(2):
            op(a, b, [], [2.0], [], text)
        with pytest.raises(IndexError):
            op(a, b, [], [], [], text)
    assert len(launched) == 2


def test_a_later_compiled_step_launches_what_the_first_did(launched, monkeypatch):
    """Forward and backward of a compiled layer."""
    tensors = [r(2, 48, 64).requires_grad_(), r(32, 64).requires_grad_(), r(32).requires_grad_()]
    compiled, g = torch.compile(cutegemm.linear, backend="aot_eager", fullgraph=True), r(2, 48, 32)
    for i in range(3):
        if i == 2:
            for module in (shortcuts, register):
                monkeypatch.setattr(module, "serve", None)
            monkeypatch.setattr(cutegemm.Gemm, "run", None)
        torch.autograd.grad(compiled(*tensors), tensors, g)
    assert len(launched) == 9
    for one, other in zip(launched[3:6], launched[6:], strict=True):
        assert one[1:] == other[1:] and sum(x != y for x, y in zip(one[0], other[0])) <= 1


STEPS = {
    "layer": lambda: torch.nn.Linear(64, 64, bias=False),
    "layer with a bias": lambda: torch.nn.Linear(64, 64),
    "gated perceptron": lambda: nn.SwiGLU(64, 64),
    "perceptron": lambda: nn.MLP(64, 64, 64),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_later_training_step_describes_nothing(name, launched, monkeypatch):
    """Forward and backward of a known layer make no spec and no text of a program: that took longer than launching."""
    layer = STEPS[name]().to(BF16)
    if type(layer) is torch.nn.Linear:
        layer.__class__ = nn.Linear
    x = r(48, 64).requires_grad_()

    def step():
        layer(x).backward(torch.ones(48, 64, dtype=BF16))

    step()
    first = len(launched)
    made = []
    monkeypatch.setattr(GemmSpec, "__post_init__", lambda self: made.append(self))
    monkeypatch.setattr(program.json, "dumps", lambda *args, **more: made.append(args))
    step()
    assert made == [] and len(launched) == 2 * first and layer.training
