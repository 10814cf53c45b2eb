# SPDX-License-Identifier: Apache-2.0
"""Bad arguments under torch.compile: the message has the error's field, value and rule, or it is the error itself."""

import pytest
import torch

import cutegemm
from cutegemm import epilogue as epi
from cutegemm import nn
from cutegemm.errors import GemmError

X, W = torch.randn(4, 8), torch.randn(5, 8)
LAYER, GELU, ENDS = nn.Linear(8, 5), epi.bias_act("gelu"), torch.tensor([1, 2, 4])
TOKENS, EXPERTS = X.bfloat16(), torch.randn(3, 8, 5).bfloat16()
NO_TENSOR = "must be a torch.Tensor"


def on(f, **more):
    """A function of ours with the reference in place of kernels."""
    return lambda *tensors, **out: f(*tensors, fallback="reference", **more, **out)


GROUPED = on(cutegemm.grouped_mm, offs=ENDS)

# raised by our Python, which Dynamo traces: (call, field, value, rule)
TRACED = {
    "bias": (lambda: cutegemm.linear(X, W, 3), "bias", "", NO_TENSOR),
    "keyword": (lambda: cutegemm.linear(X, W, bais=W), "bais", "...", "only a bias is read"),
    "beta": (lambda: cutegemm.matmul(X, W.T, beta=1.0), "beta", "1.0", "needs c"),
    "alpha": (lambda: on(cutegemm.matmul, alpha="3")(X, W.T), "alpha", "3", "must be a number"),
    "alpha of several elements": (lambda: cutegemm.matmul(X, W.T, alpha=W[:, 0]), "alpha", "5", "0-d fp32"),
    "type": (lambda: cutegemm.matmul(X.int(), W.T.int()), "a.dtype", "int32", "must be float16, bfloat16"),
    "layer": (lambda: LAYER(3), "input", "3", NO_TENSOR),
    "ends": (lambda: on(cutegemm.grouped_mm, offs=[1, 2, 4])(TOKENS, EXPERTS), "offs", "list", NO_TENSOR),
    "tail": (lambda: on(cutegemm.grouped_mm, offs=ENDS, tail="no")(TOKENS, EXPERTS), "tail", "no", "one of zero"),
    "out": (lambda: cutegemm.matmul(X, W.T, out=3), "out", "int", NO_TENSOR),
    "fp8": (lambda: cutegemm.linear(X, W, fp8="no"), "fp8", "no", "must be one of row, block"),
    "spec": (lambda: cutegemm.linear(X, W, spec=3), "spec", "3", "must be a GemmSpec"),
}  # fmt: skip
# raised by what Dynamo calls: the op's description of its outputs, and constant functions
CALLED = {
    "shape": (lambda: on(cutegemm.linear)(X, W.T), "weight.shape", "(8, 5)", "weight must be (N, 8)"),
    "wide": (lambda: on(cutegemm.linear)(X.double(), W.double()), "x.dtype", "float64", "must be float16"),
    "out's shape": (lambda: on(cutegemm.matmul, out=torch.ones(4, 4))(X, W.T), "out.shape", "(4, 4)", "must be (4, 5)"),
    "missing": (lambda: on(cutegemm.linear, epilogue=GELU)(X, W), "bias", "missing", "reads it as a row"),
    "fallback": (lambda: cutegemm.linear(X, W, fallback="no"), "fallback", "no", "must be one of torch, error"),
    "groups": (lambda: GROUPED(TOKENS.T, EXPERTS), "b.shape", "(3, 8, 5)", "must have 4 rows"),
    "groups' out": (lambda: GROUPED(TOKENS, EXPERTS, out=TOKENS), "out.shape", "(4, 8)", "must be (4, 5)"),
}  # fmt: skip


def refusal(call, fullgraph):
    """The error of a compiled call."""
    torch._dynamo.reset()
    with pytest.raises(Exception) as e, torch.no_grad():
        torch.compile(call, fullgraph=fullgraph, backend="eager")()
    return e.value


@pytest.mark.parametrize("name", TRACED | CALLED)
def test_one_graph_refuses_with_the_errors_text(name):
    """Under fullgraph=True the error is Dynamo's, and its message has field, value and rule."""
    call, field, value, rule = (TRACED | CALLED)[name]
    text = str(refusal(call, True))
    assert all(part in text for part in (field, value, rule)), text


@pytest.mark.parametrize("name", CALLED)
def test_a_called_function_s_error_is_among_the_causes(name):
    """A program can ask for field and rule also there: the GemmError is in the chain of causes."""
    error = refusal(CALLED[name][0], True)
    chain = [error]
    while (error := error.__cause__ or error.__context__) is not None:
        chain.append(error)
    found = [x for x in chain if isinstance(x, GemmError)]
    assert found and found[0].field == CALLED[name][1]


@pytest.mark.parametrize("name", TRACED)
def test_with_graph_breaks_the_error_is_ours(name):
    """Otherwise Dynamo breaks the graph before the call, which then raises its GemmError; planning is not compiled."""
    call, field, _, rule = TRACED[name]
    counts = torch._dynamo.utils.counters
    counts.clear()
    error = refusal(call, False)
    assert isinstance(error, GemmError) and error.field == field
    assert not any("planning" in str(x) for x in counts["graph_break"])
