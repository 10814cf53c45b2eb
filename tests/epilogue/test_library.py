# SPDX-License-Identifier: Apache-2.0
"""The ready epilogues against torch's own functions, and what two of them compute together."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from cutegemm import epilogue as epi
from cutegemm.epilogue.functions import ACTIVATIONS
from cutegemm.errors import SpecError
from cutegemm.running.numerics import reference

M, N, K = 6, 8, 5
GENERATOR = torch.Generator().manual_seed(0)
A, B, B2 = (
    torch.randn(shape, generator=GENERATOR, dtype=torch.float64) for shape in ((M, K), (K, N), (K, 2 * N))
)
ROW, COL, MATRIX = (torch.randn(shape, generator=GENERATOR, dtype=torch.float64) for shape in (N, M, (M, N)))
ACC = A @ B
TORCH = {
    "relu": F.relu, "leaky_relu": F.leaky_relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "softplus": F.softplus, "mish": F.mish, "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh,
}  # fmt: skip


def run(graph, b=B, **inputs):
    """All outputs in fp64."""
    return reference.evaluate(graph, A, b, inputs, torch.float64)


def test_every_activation_has_a_torch_oracle():
    """So that none goes untested."""
    assert set(TORCH) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_biases_activations_and_residuals(name):
    """torch.nn.functional.linear, an activation, a skip."""
    linear = F.linear(A, B.T, ROW)
    torch.testing.assert_close(run(epi.bias(), bias=ROW), {"d": linear})
    torch.testing.assert_close(run(epi.residual(), residual=MATRIX), {"d": ACC + MATRIX})
    torch.testing.assert_close(run(epi.bias_act(name), bias=ROW), {"d": TORCH[name](linear)})
    assert torch.equal(run(epi.act(name))["d"], run(epi.bias_act(name), bias=torch.zeros_like(ROW))["d"])
    got = run(epi.bias_act_residual(name), bias=ROW, residual=MATRIX)
    torch.testing.assert_close(got, {"d": TORCH[name](linear) + MATRIX})


def test_the_headline_epilogue():
    """gelu(x @ w + bias) + residual is what a user would write."""

    @epi.define
    def own(acc, *, bias: epi.Row, residual: epi.Matrix):
        return epi.gelu(acc + bias) + residual

    assert own == epi.bias_act_residual("gelu") == epi.bias_act_residual()


def test_blas():
    """alpha * A @ B + beta * C."""
    got = run(epi.linear_combination(True), alpha=2.0, beta=-0.5, c=MATRIX)
    torch.testing.assert_close(got, {"d": torch.addmm(MATRIX, A, B, alpha=2.0, beta=-0.5)})
    torch.testing.assert_close(run(epi.linear_combination(False), alpha=2.0), {"d": 2 * ACC})


@pytest.mark.parametrize(("name", "activation"), [("swiglu", "silu"), ("geglu", "gelu"), ("reglu", "relu")])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_gated_linear_units(name, activation, layout):
    """activation(x W) * (x V), with W and V as B's halves or alternating columns."""
    w, v = (B2[:, :N], B2[:, N:]) if layout == "halves" else (B2[:, ::2], B2[:, 1::2])
    expected = TORCH[activation](A @ w) * (A @ v)
    torch.testing.assert_close(run(getattr(epi, name)(layout), B2), {"d": expected})


@pytest.mark.parametrize(
    ("per", "scale_a", "scale_b"),
    [("tensor", 0.5, 3.0), ("row", COL, 3.0), ("column", 0.5, ROW), ("both", COL, ROW)],
)
def test_scales(per, scale_a, scale_b):
    """Dequantised A times dequantised B."""
    a = A * (scale_a[:, None] if per in ("row", "both") else scale_a)
    torch.testing.assert_close(
        run(epi.scaled(per), scale_a=scale_a, scale_b=scale_b), {"d": a @ (B * scale_b)}
    )


@pytest.mark.parametrize("dtype", ["fp8_e4m3", torch.float8_e5m2])
def test_fp8_with_the_largest_magnitude(dtype):
    """D is scaled and stored as fp8; amax is that of what was scaled."""
    got = run(epi.quantize_fp8(dtype), scale=4.0)
    torch.testing.assert_close(got, {"d": ACC * 4, "amax": ACC.abs().max()})
    got = run(epi.bias_quantize_fp8(dtype), scale=4.0, bias=ROW)
    torch.testing.assert_close(got, {"d": (ACC + ROW) * 4, "amax": (ACC + ROW).abs().max()})
    name = "fp8_e4m3" if isinstance(dtype, str) else "fp8_e5m2"
    for graph in (epi.quantize_fp8(dtype), epi.bias_quantize_fp8(dtype)):
        assert [x.dtype for x in graph.outputs] == [name, None]


def test_rms_norm_across_two_products():
    """Statistics in the first product's epilogue, normalisation in that of the next: torch's rms_norm between."""
    first = run(epi.rms_partial(), residual=MATRIX)
    x = ACC + MATRIX
    torch.testing.assert_close(first, {"d": x, "squares": (x * x).sum(1)})
    weight, w = ROW, torch.randn(N, 3, generator=GENERATOR, dtype=torch.float64)
    inputs = {"squares": first["squares"], "inverse_n": 1 / N, "eps": 0.25}
    got = reference.evaluate(epi.rms_apply(), first["d"], weight[:, None] * w, inputs, torch.float64)
    torch.testing.assert_close(got["d"], F.rms_norm(x, (N,), weight, 0.25) @ w)


def test_softmax_in_two_passes():
    """exp(D - lse), or the product again with the log-sum-exp known."""
    first = run(epi.softmax_partials(), scale=0.25)
    expected = torch.softmax(ACC * 0.25, 1)
    torch.testing.assert_close((first["d"] - first["lse"][:, None]).exp(), expected)
    second = run(epi.softmax_apply(), scale=0.25, lse=first["lse"])
    torch.testing.assert_close(second["d"], expected)


def test_cross_entropy():
    """The log-sum-exp minus the target's logit is torch's loss, the logits stored or not."""
    target = torch.arange(M) % N
    for stored in (False, True):
        got = run(epi.cross_entropy_partials(stored))
        loss = got["lse"] - ACC.gather(1, target[:, None])[:, 0]
        torch.testing.assert_close(loss, F.cross_entropy(ACC, target, reduction="none"))
        assert set(got) == ({"d", "lse"} if stored else {"lse"})
    torch.testing.assert_close(got["d"], ACC)


def test_maxima():
    """The largest element of each row, and of each column."""
    torch.testing.assert_close(run(epi.row_max()), {"d": ACC, "row_max": ACC.amax(1)})
    torch.testing.assert_close(run(epi.col_max()), {"d": ACC, "col_max": ACC.amax(0)})


def test_dropout_and_residual():
    """Kept elements scaled by 1 / (1 - p), dropped ones leave the residual."""
    got = run(epi.dropout_residual(0.5), bias=ROW, residual=MATRIX, seed=1, offset=0)["d"] - MATRIX
    kept = got.abs() > 1e-12
    assert kept.any() and not kept.all()
    torch.testing.assert_close(got[kept], 2 * (ACC + ROW)[kept])


def test_partial_results_are_asked_for_where_their_name_says_so():
    """The others are finished."""
    partial = {
        name: [x.name for x in getattr(epi, name)().outputs if x.partial]
        for name in set(epi.library.__all__) - {"linear_combination"}
    }
    found = {name: x for name, x in partial.items() if x}
    assert found == {
        "rms_partial": ["squares"],
        "softmax_partials": ["lse"],
        "cross_entropy_partials": ["lse"],
    }


def test_the_same_words_give_the_same_graph():
    """Written inside a call, an epilogue is traced once; other numbers, types and words are told apart."""
    assert epi.bias_act("relu") is epi.bias_act("relu") is not epi.bias_act("gelu")
    assert epi.cross_entropy_partials(store_logits=True) is epi.cross_entropy_partials(store_logits=True)
    assert epi.quantize_fp8("fp8_e5m2") is epi.quantize_fp8("fp8_e5m2") != epi.quantize_fp8()
    with pytest.raises(SpecError):
        epi.dropout_residual(False)
    assert epi.dropout_residual(0.0) is epi.dropout_residual(0.0)
    with pytest.raises(SpecError):
        epi.dropout_residual(False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: epi.bias_act("gelo"),
            "activation='gelo': must be one of relu, leaky_relu, gelu, gelu_tanh, silu, softplus, mish, hardswish, "
            "sigmoid, tanh; nearest legal value: 'gelu'",
        ),
        (lambda: epi.swiglu("thirds"), "layout='thirds': must be one of halves, interleaved"),
        (lambda: epi.scaled("block"), "per='block': must be one of tensor, row, column, both"),
        (lambda: epi.dropout_residual(1.0), "dropout.p=1.0: must be a Python number in [0, 1)"),
    ],
)
def test_wrong_choices_are_refused(call, message):
    """With the choices there are."""
    with pytest.raises(SpecError) as e:
        call()
    assert str(e.value) == message
