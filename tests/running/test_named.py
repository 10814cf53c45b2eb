# SPDX-License-Identifier: Apache-2.0
"""The named arguments of a fused run: what is missing, surplus or of the wrong kind is refused in its own words."""

import math

import numpy as np
import pytest
import torch

from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import InputError
from cutegemm.gemm import Gemm, representative
from cutegemm.running import run
from cutegemm.running.arguments.named import Signature, outputs_given


@epi.define
def several(acc, *, bias: epi.Row, gain: epi.Col, residual: epi.Matrix, scale: epi.Scalar, seed: epi.Integer):
    """Every kind of input and three outputs."""
    h = (acc * gain * scale + bias) * epi.where(epi.random(seed, seed) < 2.0, 1.0, acc)
    return epi.Output(d=h + residual, pre=h, amax=epi.Max(abs(h)))


GIVEN = {"bias": torch.ones(7), "gain": torch.ones(6), "residual": torch.ones(6, 7), "scale": 2.0, "seed": 3}
A, B = torch.ones(6, 5), torch.ones(5, 7)
READS = "the epilogue reads {}"
ALL = READS.format(", ".join((*several.tensors, *several.numbers)))


def gemm(graph=several) -> Gemm:
    """A Gemm of an epilogue; nothing is compiled."""
    spec = GemmSpec(epilogue=graph)
    return Gemm(spec, representative(spec))


def bind(named, out=None):
    """A call of `several` in its order."""
    return Signature(several).bind(A, B, named, out)


WRONG = {
    "no row": ({"bias": None}, "bias: missing; the epilogue reads it as a row"),
    "no column": ({"gain": None}, "gain: missing; the epilogue reads it as a col"),
    "no matrix": ({"residual": None}, "residual: missing; the epilogue reads it as a matrix"),
    "no scalar": ({"scale": None}, "scale: missing; the epilogue reads it as a scalar"),
    "no integer": ({"seed": None}, "seed: missing; the epilogue reads it as an integer"),
    "a misspelt name": ({"biass": 1.0}, f"biass='...': {ALL}; nearest legal value: 'bias'"),
    "an unknown name": ({"zzz": 1.0}, f"zzz='...': {ALL}"),
    "c, which is not read": ({"c": torch.ones(6, 7)}, f"c='...': {ALL}"),
    "alpha, which is not read": ({"alpha": 2.0}, f"alpha='...': {ALL}"),
    "beta, which is not read": ({"beta": 0.0}, f"beta='...': {ALL}"),
    "an output": ({"pre": torch.ones(6, 7)}, f"pre='...': {ALL}"),
    "a number for a row": ({"bias": 1.0}, "bias: must be a torch.Tensor, got float"),
    "a list for a row": ({"bias": [1.0] * 7}, "bias: must be a torch.Tensor, got list"),
    "a short row": ({"bias": torch.ones(6)}, "bias.shape=(6,): must be (7,)"),
    "a long column": ({"gain": torch.ones(7)}, "gain.shape=(7,): must be (6,)"),
    "a batched column": ({"gain": torch.ones(2, 6)}, "gain.shape=(2, 6): must be (6,)"),
    "a string for a scalar": ({"scale": "2"}, "scale='2': must be a number or a 0-d fp32 tensor"),
    "a complex scalar": ({"scale": 1j}, "scale=1j: must be a number or a 0-d fp32 tensor"),
    "a double scalar on the device": (
        {"scale": torch.tensor(2.0, dtype=torch.float64)}, "scale.dtype=torch.float64: must be float32"),
    "a fraction for an integer": ({"seed": 3.0}, "seed=3.0: must be a 32-bit integer"),
    "a tensor for an integer": ({"seed": torch.tensor(3)}, "seed=tensor(3): must be a 32-bit integer"),
    "too large": ({"seed": 1 << 32}, "seed=4294967296: must be a 32-bit integer"),
    "too small": ({"seed": -(1 << 31) - 1}, "seed=-2147483649: must be a 32-bit integer"),
    "an unknown output": (
        {"out": {"prex": torch.ones(6, 7)}},
        "out='prex': the epilogue's outputs are d, pre, amax; nearest legal value: 'pre'",
    ),
    "an input as output": (
        {"out": {"bias": torch.ones(7)}}, "out='bias': the epilogue's outputs are d, pre, amax"),
    "a number as output": ({"out": {"pre": 1.0}}, "pre: must be a torch.Tensor, got float"),
    "a number as d": ({"out": 1.0}, "out: must be a torch.Tensor, got float"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_word_for_word(name):
    """A legal call, changed in one place, is refused naming that place; the legal one before and after it runs."""
    changed, message = WRONG[name]
    g = gemm()
    g.run(A, B, **GIVEN)
    with pytest.raises(InputError) as e:
        g.run(A, B, **(GIVEN | changed))
    assert str(e.value) == message
    g.run(A, B, **GIVEN)


def test_every_input_must_be_named():
    """Leaving an input out is the same as passing None."""
    for name, value in GIVEN.items():
        rest = {k: v for k, v in GIVEN.items() if k != name}
        with pytest.raises(InputError, match=f"^{name}: missing"):
            gemm().run(A, B, **rest)
        assert gemm().run(A, B, **rest, **{name: value}).d.shape == (6, 7)


def test_c_is_an_input_like_any_other():
    """An epilogue with a c takes it by position too; alpha and beta are read only if it has them."""
    graph = epi.define(with_c)
    c = torch.randn(6, 7)
    expected = A @ B - 2.0 * c
    for got in (gemm(graph).run(A, B, c, beta=2.0), gemm(graph).run(A, B, c=c, beta=2.0, alpha=1.0)):
        torch.testing.assert_close(got, expected)
    with pytest.raises(InputError, match="^alpha='...': the epilogue reads c, beta$"):
        gemm(graph).run(A, B, c, beta=2.0, alpha=3.0)
    with pytest.raises(InputError, match="^c: missing"):
        gemm(graph).run(A, B, beta=2.0)


def test_an_epilogue_with_alpha_takes_it_or_one():
    """alpha is 1 where the caller says nothing, as in the plain epilogue; beta must be given."""
    graph = linear_combination(with_c=True)
    c = torch.randn(6, 7)
    torch.testing.assert_close(gemm(graph).run(A, B, c, beta=2.0), A @ B + 2.0 * c)
    torch.testing.assert_close(gemm(graph).run(A, B, c, alpha=3.0, beta=2.0), 3.0 * (A @ B) + 2.0 * c)
    with pytest.raises(InputError, match="^beta: missing"):
        gemm(graph).run(A, B, c)


def with_c(acc, *, c: epi.Matrix, beta: epi.Scalar):
    """acc - beta c."""
    return acc - beta * c


def test_the_plain_epilogue_reads_no_other_names():
    """Names beside c, alpha and beta are refused."""
    plain = Gemm(GemmSpec(), representative(GemmSpec()))
    with pytest.raises(InputError) as e:
        plain.run(A, B, bias=torch.ones(7))
    assert str(e.value) == "bias='...': the plain epilogue reads c, alpha and beta"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (0, 0), (7, 7), (-1, -1), ((1 << 31) - 1, (1 << 31) - 1), (1 << 31, -(1 << 31)), ((1 << 32) - 1, -1),
        (-(1 << 31), -(1 << 31)), (True, 1), (np.int64(5), 5), (np.uint32(0xFFFF_FFFF), -1),
    ],
)  # fmt: skip
def test_integers_keep_their_32_bits(given, kept):
    """Signed and unsigned integers of 32 bits arrive as the signed one with the same bits."""
    _, (scale, seed), _ = bind(GIVEN | {"seed": given})
    assert (scale, seed) == (2.0, kept) and type(seed) is int


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2.0), True, math.inf, -math.inf, math.nan])
def test_scalars_are_any_real_number(value):
    """Integers, floats, NumPy's and the special ones."""
    _, numbers, _ = bind(GIVEN | {"scale": value})
    assert numbers[0] == float(value) or math.isnan(value)
    assert all(type(x) in (float, int) for x in numbers)


def test_tensor_scalars_leave_the_numbers():
    """A scalar given as a tensor is an input that lies on the device; the other numbers keep the graph's order."""
    scale = torch.tensor(2.0)
    given, numbers, scalars = bind(GIVEN | {"scale": scale})
    assert given[-1] is scale and numbers == (3,) and scalars == ("scale",)
    assert len(given) == len(Signature(several).order(scalars).names)
    torch.testing.assert_close(gemm().run(A, B, **(GIVEN | {"scale": scale})).d, gemm().run(A, B, **GIVEN).d)


def test_tensors_come_in_the_graphs_order():
    """Whatever the order of the call."""
    backwards = dict(reversed(GIVEN.items()))
    given, numbers, scalars = bind(backwards)
    order = Signature(several).order(scalars)
    assert order.names[2:5] == tuple(several.tensors) and order.outs == ("d", "pre", "amax")
    assert all(given[order.names.index(name)] is GIVEN[name] for name in several.tensors)
    assert numbers == bind(GIVEN)[1]


def test_outputs_given():
    """Nothing, a tensor for d, or a mapping, in which None is the same as absence."""
    x = torch.ones(6, 7)
    assert outputs_given(several, None) == {}
    assert outputs_given(several, x)["d"] is x
    found = outputs_given(several, {"pre": x, "d": None})
    assert list(found) == ["pre"] and found["pre"] is x
    only = epi.define(lambda acc: epi.Output(y=acc))
    with pytest.raises(InputError) as e:
        outputs_given(only, x)
    assert str(e.value) == "out='d': the epilogue's outputs are y"


def test_a_kind_of_fused_call_is_prepared_once(monkeypatch):
    """Other addresses and numbers share a preparation; another kind of tensor does not."""
    g, kept, original = gemm(), [], run.prepare
    monkeypatch.setattr(run, "prepare", lambda *call: kept.append(call) or original(*call))
    for i in range(3):
        got = g.run(A.clone(), B.clone(), **(GIVEN | {"scale": float(i), "seed": i}))
        torch.testing.assert_close(got.pre, 5.0 * torch.full((6, 7), float(i)) + 1.0)
    assert len(kept) == 1
    g.run(A, B, **(GIVEN | {"scale": torch.tensor(1.0)}))
    g.run(A, B, **GIVEN, out={"pre": torch.empty(6, 7)})
    g.run(A, B, **(GIVEN | {"bias": torch.ones(14)[::2]}))
    g.run(A, B, **(GIVEN | {"residual": torch.ones(43)[1:].view(6, 7)}))  # off the 16-byte grid
    assert len(kept) == 5


def test_overlaps_are_seen_on_every_fused_call_of_a_known_kind():
    """A call like an accepted one before it, but whose output lies over an input that tiles still read, is refused."""
    g, memory = gemm(), torch.ones(400)
    inputs = GIVEN | {"residual": memory[:42].view(6, 7)}
    fine = memory[100:142].view(6, 7)
    g.run(A, B, **inputs, out={"pre": fine})
    over = memory[16:58].view(6, 7)
    with pytest.raises(InputError, match="^pre: overlaps residual in memory; it may only be residual itself"):
        g.run(A, B, **inputs, out={"pre": over})
    assert bool((memory[:100] == 1).all())
    itself = inputs["residual"]
    assert g.run(A, B, **inputs, out={"pre": itself}).pre is itself
    torch.testing.assert_close(itself, torch.full((6, 7), 11.0))
