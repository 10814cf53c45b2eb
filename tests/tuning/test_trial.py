# SPDX-License-Identifier: Apache-2.0
"""Proving a candidate some rows at a time: the verdict is that of the whole, for every kind of input."""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.planning.planner import plan
from cutegemm.request.requirements import requested
from cutegemm.running.run import prepare
from cutegemm.tuning import trial
from cutegemm.tuning.random_operands import operands

GRAPHS = {
    "plain": None,
    "row and matrix": epi.bias_act_residual(),
    "column": epi.scaled("row"),
    "gated": epi.swiglu(),
}


class Faulty:
    """A prepared kind of call whose D is off in one element of its last row but one."""

    def __init__(self, prepared):
        self.prepared, self.kind = prepared, prepared.kind

    def __call__(self, *args):
        out = self.prepared(*args)
        out[..., -2, 3] += 1
        return out


def proved(graph, of, wrong=lambda prepared: prepared):
    """The complaint about torch's product, and how many parts it was proved in."""
    spec = GemmSpec() if graph is None else GemmSpec(epilogue=graph)
    asked, _ = requested(spec, of, H200)
    x = operands(of, asked.epilogue, "cpu")
    prepared = prepare(spec, asked.epilogue, x.order, x.given, "reference", lambda s, p, d: plan(s, p, H200))
    oracle = trial.Oracle(asked.epilogue, x)
    said = oracle.complaint(wrong(prepared))
    return said, [len(parts) for parts in oracle._bounds.values()]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("batch", [1, 3])
def test_rows_are_proved_as_the_whole_is(name, batch, monkeypatch):
    """In parts of seven rows what is right passes, and an element that is off is found, by its row."""
    graph = GRAPHS[name]
    of = problem(100, 48, 32, batch=batch, epilogue=graph)
    assert proved(graph, of) == (None, [1])
    width = 24 if name == "gated" else 48
    monkeypatch.setattr(trial, "SLAB", 7 * width * batch)
    assert proved(graph, of) == (None, [15])
    said, _ = proved(graph, of, Faulty)
    assert said.startswith("d from row 98: ") and "elements are off" in said


def test_scalars_on_the_device_are_fp32_whatever_torchs_default_type():
    """As every kernel reads them."""
    graph = epi.scaled("tensor")
    of = problem(8, 8, 8, epilogue=graph, device_scalars=tuple(graph.numbers))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        x = operands(of, graph, "cpu")
    finally:
        torch.set_default_dtype(before)
    assert graph.numbers and all(
        x.order.named(x.given)[name].dtype == torch.float32 for name in graph.numbers
    )


def test_what_reduces_is_proved_whole(monkeypatch):
    """A reduction over rows, and random numbers by place, are worked out at once however large D is."""
    monkeypatch.setattr(trial, "SLAB", 1)
    for graph in (epi.dropout_residual(), epi.col_max()):
        said, parts = proved(graph, problem(40, 48, 32, epilogue=graph))
        assert (said, parts) == (None, [1])


class Unsteady(Faulty):
    """The same of what has no axis: off by one bit on every second run, or by much on all."""

    def __init__(self, prepared, much):
        super().__init__(prepared)
        self.much, self.runs = much, 0

    def __call__(self, *args):
        out, self.runs = self.prepared(*args), self.runs + 1
        if self.much:
            out.amax.mul_(2)
        elif self.runs % 2:
            out.amax.view(torch.int32).bitwise_xor_(1)
        return out


def test_a_result_without_axes_is_proved():
    """The greatest magnitude beside fp8 results passes where it is right, and is found where it is not, or unsteady."""
    graph = epi.quantize_fp8()
    of = problem(40, 48, 32, epilogue=graph)
    assert proved(graph, of)[0] is None
    assert proved(graph, of, lambda x: Unsteady(x, much=True))[0].startswith("amax: ")
    assert proved(graph, of, lambda x: Unsteady(x, much=False))[0] == "amax: 1 bytes differ on a second run"
