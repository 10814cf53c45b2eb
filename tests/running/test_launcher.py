# SPDX-License-Identifier: Apache-2.0
"""What a call on a GPU hands to its kernels, on a machine without one: functions and streams are stand-ins."""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile
from cutegemm import epilogue as epi
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.plans.kernel_plan import launch_arguments
from cutegemm.running import run
from cutegemm.running.arguments.named import Signature
from cutegemm.running.backends import launcher
from tests.support.torch_ops import survivors

STREAM = 77


@epi.define
def summed(acc):
    """Whose sums need a second launch."""
    return epi.Output(d=acc, rows=epi.Sum(acc, axis=1))


def stored_twice(acc, *, bias: epi.Row):
    """Two outputs of one launch."""
    return epi.Output(d=acc + bias, pre=epi.Store(acc))


SMALL = Tile(64, 64, 64)
CASES = {
    "one launch": (GemmSpec(swap=False, tile=SMALL), {}),
    "factors swapped": (GemmSpec(swap=True, tile=SMALL), {}),
    "two outputs": (GemmSpec(swap=False, epilogue=epi.define(stored_twice)), {"bias": (64,)}),
    "two outputs, swapped": (
        GemmSpec(swap=True, tile=SMALL, epilogue=epi.define(stored_twice)),
        {"bias": (64,)},
    ),
    "with a finish": (GemmSpec(swap=False, epilogue=summed), {}),
    "splits added by a launch": (
        GemmSpec(swap=False, tile=SMALL, split_k=2, split_reduction="launch"),
        {},
    ),
    "with two copies": (GemmSpec(a_load="relayout", b_load="relayout", swap=False), {}),
    "with a copy": (GemmSpec(a_load="relayout", swap=False), {}),
}


@pytest.fixture
def launched(monkeypatch):
    """The arguments of every launch; the current device is another one until it is entered."""
    found, current = [], [1]

    class Entered:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            self.before, current[0] = current[0], self.index

        def __exit__(self, *_):
            current[0] = self.before

    monkeypatch.setattr(
        launcher, "function_for", lambda config, index: lambda *args: found.append((config, args))
    )
    monkeypatch.setattr(launcher, "_current_device", lambda: current[0])
    monkeypatch.setattr(launcher, "_current_stream", lambda index: STREAM)
    monkeypatch.setattr(launcher.torch.cuda, "device", Entered)
    monkeypatch.setattr(launcher.tvm_ffi, "convert", tuple)
    return found


def prepared(name):
    """(launcher of a case, its order, tensors with None for outputs, and numbers), without memory of its own."""
    spec, extents = CASES[name]
    a, b = torch.zeros(64, 128, dtype=torch.bfloat16), torch.zeros(128, 64, dtype=torch.bfloat16)
    graph = spec.epilogue if isinstance(spec.epilogue, Graph) else linear_combination(False)
    signature = Signature(graph)
    named = {x: torch.zeros(shape, dtype=torch.bfloat16) for x, shape in extents.items()}
    named |= dict.fromkeys(graph.numbers, 1.0)
    given, numbers, scalars = signature.bind(a, b, named, None)
    order = signature.order(scalars)
    kind = run.prepare(spec, graph, order, given, "reference").kind
    made = launcher.Launcher(kind, order.request(order.named(given)))
    made.index = 0
    return made, order, given, numbers


@pytest.mark.parametrize("name", CASES)
def test_a_call_hands_over_what_the_plan_says(name, launched):
    """Every launch gets the arguments of `launch_arguments`, whichever way it takes: a's and b's places included."""
    made, order, given, numbers = prepared(name)
    kind = made.kind
    shapes = kind.shapes
    given = tuple(
        shapes.allocate(next(x for x in shapes.wanted if x.name == label)) if x is None else x
        for label, x in zip(order.names, given, strict=True)
    )
    places = tuple(x.data_ptr() for x in given)
    workspace = torch.zeros(max(made.need, 16), dtype=torch.uint8) if made.need else None
    made(given, places, numbers, workspace)
    expected = launch_arguments(
        kind.plan,
        dict(zip(order.names, places, strict=True)),
        0 if workspace is None else workspace.data_ptr(),
        dict(zip(order.numbers, numbers, strict=True)),
        STREAM,
    )
    assert [(config, tuple(args)) for config, args in launched] == list(expected)
    assert kind.plan.swapped is ("swapped" in name)


@pytest.mark.parametrize("name", CASES)
def test_a_launcher_keeps_no_tensor(name, launched):
    """Neither of the call that it was made for nor of later ones: operands, outputs, workspace."""
    made = []

    def calls():
        found, _, given, numbers = prepared(name)
        for _ in range(2):
            found(given, tuple(-1 if x is None else x.data_ptr() for x in given), numbers, None)
        made.append(found)

    assert survivors(calls) == []
    assert made and launched
