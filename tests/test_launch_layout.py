# SPDX-License-Identifier: Apache-2.0
"""Launch layouts: packing and unpacking are inverse, a sample is a legal launch, and names say what goes where."""

import subprocess
import sys

import pytest
from hypothesis import given

from cutegemm import DType, GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.config import FinishConfig, QuantizeConfig, RelayoutConfig, RowSumConfig
from cutegemm.errors import PlanError
from cutegemm.launch_layout import FLOAT32, INT32, INT64, layout_of
from cutegemm.planning.planner import plan
from cutegemm.plans.kernel_plan import launch_arguments
from cutegemm.running.arguments.named import Signature
from tests.support.strategies import fused_problems


@epi.define(gated="halves")
def GATED(gate, up, *, c: epi.Matrix, bias: epi.Row, x: epi.Scalar, seed: epi.Integer, y: epi.Scalar):  # noqa: N802
    """Every kind of field: matrices, a vector, numbers by value and by address, reductions finished and not."""
    h = gate * up * x + bias * y + epi.random(seed, seed)
    return epi.Output(d=h + c, pre=h, rows=epi.Sum(h, axis=1), top=epi.Max(h, partial=True))


OF = problem(100, 72, 40, batch=3, epilogue=GATED, device_scalars=("y",))
PLAN = plan(GemmSpec(tile=Tile(64, 64, 64), epilogue=GATED, b_load="relayout"), OF)
CONFIGS = [
    PLAN.config,
    plan(GemmSpec(), problem(64, 64, 64)).config,
    plan(GemmSpec(schedule="simt"), problem(64, 64, 64, c_dtype="bf16")).config,
    RelayoutConfig(dtype=DType.BF16, units=("col", "none")),
    FinishConfig(kind="sum", across=True),
    QuantizeConfig(source=DType.BF16, dtype=DType.INT8, kind="row"),
    RowSumConfig(dtype=DType.BF16, terms=2),
]
NAMES = ("a", "b", "bias", "c", "d", "pre", "rows", "top", "y")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda x: x.family)
def test_unpacking_a_sample_gives_it_back(config):
    """Every number has a name and a type, and packing what was unpacked gives the same flat tuples."""
    layout = layout_of(config)
    sample = layout.sample(4096)
    assert layout.pack(layout.unpack(sample)) == sample
    for group, flat in zip(layout.groups, sample, strict=True):
        assert flat and len(group.kinds) == len(flat) and len(set(group.names)) == len(group.names)
        assert all(
            type(x) is (float if kind == FLOAT32 else int) for x, kind in zip(flat, group.kinds, strict=True)
        )
    assert set(sample[0]) == {4096} and set(layout.groups[0].kinds) == {INT64}


def test_a_gemms_fields():
    """Groups and names, in the order in which drivers take them."""
    layout = layout_of(PLAN.config)
    found = {group.name: group.names for group in layout.groups}
    assert found == {
        "addresses": NAMES,
        "shape": ("m", "n", "k", "l", "a.l", "b.l", "bias.l", "c.l"),
        "strides": ("a", "b", "bias", "c", "d", "pre", "b.gate"),
        "numbers": ("x", "seed"),
        "schedule": ("group", "clusters", "partials.m", "partials.n", "partials.all"),
    }
    assert layout["numbers"].kinds == (FLOAT32, INT32)


def test_a_calls_tensors_are_the_first_addresses_of_its_launch():
    """A call's addresses go to the kernel as they are: both orders come from one function of the epilogue."""
    order = Signature(GATED).order(("y",))
    assert layout_of(PLAN.config)["addresses"].names[: len(order.names)] == order.names == NAMES
    assert order.outs == ("d", "pre", "rows", "top")
    assert layout_of(PLAN.config)["numbers"].names == order.numbers


def test_what_a_launch_is_told():
    """Extents are the output's, b is n x k and one half, and what lies in workspace is found there."""
    addresses = {name: (i + 1) << 20 for i, name in enumerate(NAMES)}
    copies, multiply, finish = launch_arguments(PLAN, addresses, 1 << 30, {"x": 2.0, "seed": 7}, 99)
    named = {}
    for (config, args), step in zip((copies, multiply, finish), PLAN.steps, strict=True):
        assert config == step.config and args[-1] == 99
        named[id(step)] = layout_of(config).unpack(args[:-1])
    halves = named[id(PLAN.steps[0])]
    half = 36 * 2  # bytes: 36 columns of bf16
    sources = [halves["addresses"][f"source.{i}"] for i in range(2)]
    assert sources == [addresses["b"], addresses["b"] + half]
    assert halves["shape"] == {
        f"{x}.{i}": n for i in range(2) for x, n in (("rows", 40), ("cols", 36), ("batch", 3))
    }
    assert halves["strides"]["source.0"] == halves["strides"]["source.1"] == (72, 1, 2880)
    told = named[id(PLAN.multiply)]
    assert told["addresses"] == addresses | {
        "b": halves["addresses"]["target.0"], "rows": (1 << 30) + PLAN.partials[0],
    }  # fmt: skip
    assert halves["addresses"]["target.1"] == told["addresses"]["b"] + 2 * told["strides"]["b.gate"]
    assert [told["shape"][x] for x in ("m", "n", "k", "l", "c.l", "bias.l")] == [100, 36, 40, 3, 3, 1]
    row, col, batch = halves["strides"]["target.0"]
    assert told["strides"]["b"] == (col, row, batch)
    assert told["numbers"] == {"x": 2.0, "seed": 7}
    assert told["schedule"]["clusters"] == PLAN.clusters and told["schedule"]["partials.n"] == PLAN.parts[1]
    ends = named[id(PLAN.steps[2])]
    assert ends["addresses"] == {"partials": told["addresses"]["rows"], "results": addresses["rows"]}
    assert ends["extent"] == {"parts": PLAN.parts[1], "results": 300}


@given(fused_problems())
def test_every_plan_fills_its_launches(drawn):
    """Whatever the epilogue, a launch has all its fields, and each fits its type."""
    graph, of = drawn
    try:
        chosen = plan(GemmSpec(epilogue=graph), of)
    except PlanError:
        return
    if chosen.config is None:
        return
    addresses = {name: 1 << 20 for name in layout_of(chosen.config)["addresses"].names}
    numbers = dict.fromkeys(chosen.config.host_numbers, 1)
    for config, (*groups, _stream) in launch_arguments(chosen, addresses, 1 << 30, numbers, 0):
        for group, flat in zip(layout_of(config).groups, groups, strict=True):
            assert len(flat) == len(group.kinds) == sum(x.width for x in group.fields)
            bounds = {INT32: 1 << 31, INT64: 1 << 63}
            assert all(
                kind == FLOAT32 or -bounds[kind] <= x < bounds[kind] for x, kind in zip(flat, group.kinds)
            )


def test_the_layout_needs_neither_torch_nor_the_dsl():
    """Kernels, planner and run path share it, so it depends on none of their libraries."""
    code = (
        "import sys; import cutegemm.launch_layout; print({'torch', 'cutlass', 'tvm_ffi'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
