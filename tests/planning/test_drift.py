# SPDX-License-Identifier: Apache-2.0
"""Which CTAs take their tiles from a counter where the spec leaves the scheduler open."""

import dataclasses

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import H100, H200
from cutegemm.planning.planner import plan

LARGE = (8192, 8192, 8192)
ALONE = {"tile": Tile(128, 128, 64), "cluster": (1, 1)}
REASON = "CTAs take tiles from a counter: without a cluster they would drift apart, and L2 does not hold all matrices"
BLOCKS = ALONE | {"tile": Tile(128, 128, 128), "scale_a": ("block", 1, 128), "scale_b": ("block", 128, 128)}


def takes_numbers(fields, shape, device=H200, **more):
    """Whether the planned kernel is dynamic."""
    spec = GemmSpec(**fields)
    named = {"epilogue": spec.epilogue, "d_dtype": "bf16"} if "scale_a" in fields else {}
    return plan(spec, problem(*shape, majors="kk", **named, **more), device).config.dynamic


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_ctas_without_a_cluster_take_many_tiles_of_large_operands_from_a_counter(schedule):
    """A given scheduler stays, and so do CTAs that wait for others of their cluster."""
    fields = ALONE | {"schedule": schedule}
    assert takes_numbers(fields, LARGE)
    assert takes_numbers(fields | {"batch_invariant": True}, LARGE)
    assert takes_numbers(fields | {"tile": Tile(128, 96, 128)}, LARGE, dtype="fp8", d_dtype="bf16")
    assert not takes_numbers(fields | {"scheduler": "persistent"}, LARGE)
    assert not takes_numbers(fields | {"cluster": (2, 1)}, LARGE)
    assert not takes_numbers(fields | {"cluster": (1, 2)}, LARGE)


def test_batches_come_from_a_counter_and_large_outputs_where_device_memory_needs_it():
    """L2 holds each GEMM of a batch, or A and B, but not all that is read and written."""
    assert takes_numbers(ALONE, (1024, 1024, 4096), batch=64)
    assert not takes_numbers(ALONE, (8192, 8192, 128))
    assert takes_numbers(ALONE, (8192, 8192, 128), H100)


@pytest.mark.parametrize(
    ("fields", "shape", "more"),
    [
        # L2 holds all matrices
        (ALONE, (2048, 2048, 2048), {}),
        (ALONE, (128, 128, 512), {"batch": 128}),
        # less than four waves
        (ALONE, (1024, 8192, 16384), {}),
        # the first tile's operands are loaded before it could take a number
        (ALONE | {"constant": ("b",)}, LARGE, {}),
        # threads load, or no thread only loads
        (ALONE | {"a_load": "gather"}, LARGE, {}),
        (ALONE | {"schedule": "multistage"}, LARGE, {}),
        (BLOCKS, LARGE, {"dtype": "fp8"}),
        (ALONE | {"split_k": 2}, LARGE, {}),
    ],
)
def test_others_have_lists(fields, shape, more):
    """Where a counter would not help, or cannot."""
    assert not takes_numbers(fields, shape, **more)


@pytest.mark.parametrize("swap", [False, True])
def test_the_plan_says_why_tiles_come_from_a_counter(swap):
    """Only where nobody asked for it."""
    given = ({}, {"scheduler": "dynamic"}, {"scheduler": "persistent"})
    plans = [plan(GemmSpec(**ALONE, swap=swap, **x), problem(*LARGE)) for x in given]
    assert [x.reasons.count(REASON) for x in plans] == [1, 0, 0]


def test_the_rule_is_about_the_gpu():
    """With a larger L2, or more SMs for the same tiles, CTAs need no counter."""
    assert takes_numbers(ALONE, LARGE)
    assert not takes_numbers(ALONE, LARGE, dataclasses.replace(H200, l2_bytes=1 << 30))
    assert not takes_numbers(ALONE, LARGE, dataclasses.replace(H200, sms=2048))
