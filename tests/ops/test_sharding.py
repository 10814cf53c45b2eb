# SPDX-License-Identifier: Apache-2.0
"""Rules for DTensor: which axes may be cut, and sharded layers in two processes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cutegemm import epilogue as epi
from cutegemm.ops.products import made
from cutegemm.ops.program import PLAIN, PLAIN_WITH_C
from cutegemm.ops.transforms.sharding import cuts, homogeneous
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]


def of(graph, form, *shapes):
    """The cuts of a call, without the uncut one."""
    first, *rest = cuts(made(graph, None, form, (), None), shapes)
    assert set(first[0]) == set(first[1]) == {None}
    return rest


def test_a_linear_layer_is_cut_along_rows_columns_and_k():
    """Rows and columns stay cut in D; along K the bias is a partial sum, and so is D."""
    assert of(epi.bias(), "linear", (2, 4, 12), (8, 12), (8,)) == [
        ([0], [0, None, None]),
        ([1], [1, None, None]),
        (["sum"], [2, 1, "sum"]),
        ([2], [None, 0, 0]),
    ]


def test_its_gradients_are_cut_alike():
    """The gradient of x is cut by the weight's columns, that of the weight is partial sums over rows."""
    assert of(PLAIN, "input", (4, 8), (8, 12)) == [([0], [0, None]), (["sum"], [1, 0]), ([1], [None, 1])]
    assert of(PLAIN, "weight", (2, 4, 8), (2, 4, 12)) == [
        (["sum"], [0, 0]),
        (["sum"], [1, 1]),
        ([0], [2, None]),
        ([1], [None, 2]),
    ]


def test_batches_are_cut_where_they_are():
    """An operand that serves every batch stays whole."""
    assert of(PLAIN_WITH_C, "matrix", (3, 9, 12), (1, 12, 7), (9, 7)) == [
        ([0], [0, None, None]),
        ([1], [1, None, 0]),
        (["sum"], [2, 1, "sum"]),
        ([2], [None, 2, 1]),
    ]


def test_what_an_epilogue_cannot_have_cut_stays_whole():
    """K under an activation, a gated pair's columns, dropout, a logsumexp along its own axis; sums become partial."""
    shapes = ((4, 12), (8, 12))
    assert of(epi.bias_act(), "linear", *shapes, (8,)) == [([0], [0, None, None]), ([1], [None, 0, 0])]
    assert of(epi.swiglu(), "linear", *shapes) == [([0], [0, None])]
    dropped = epi.dropout_residual()
    assert of(dropped, "linear", *shapes, (8,), (4, 8)) == []
    rows = epi.define(lambda acc: epi.Output(d=acc, lse=epi.LogSumExp(acc, axis=1), amax=epi.AbsMax(acc)))
    assert of(rows, "linear", *shapes) == [([0, 0, "max"], [0, None])]


@pytest.mark.parametrize(
    ("graph", "linear"),
    [(PLAIN_WITH_C, True), (epi.bias(), True), (epi.residual(), True), (epi.bias_act("relu"), False)],
)
def test_partial_sums_add_up_where_the_formula_is_linear(graph, linear):
    """Sums of the accumulator and tensors, each times a number."""
    assert homogeneous(graph) is linear
    assert not homogeneous(epi.define(lambda acc: acc + 1.0))


@pytest.mark.sliced
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("backend", ["gloo", pytest.param("nccl", marks=pytest.mark.gpu)])
def test_sharded_layers_in_two_processes(backend, tmp_path):
    """Tensor, sequence and fully sharded parallelism: outputs and gradients of the whole layers."""
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    command = [sys.executable, "-m", "tests.support.two_processes"]
    started = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store"), backend],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=PATIENCE)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
