# SPDX-License-Identifier: Apache-2.0
"""What bounds a stage follows from its counters, and the committed counters are those of the sources."""

import json

import pytest

import handwritten
from handwritten.ladder import bounds, emulated

COUNTS = {"warp_instructions": 400, "shared_load_wavefronts": 300, "wgmma_flops": 1}


def test_two_depths_give_the_count_of_any_problem(tmp_path):
    """A count is linear in K and in the number of tiles, so that two depths tell a third."""
    path = tmp_path / "counters.json"
    rows = [
        {"stage": "x", "dtype": "bf16", "shape": [64, 64, k], "counts": {"warp_instructions": 8 + 4 * k}}
        for k in (128, 32)
    ]
    bounds.write(path, rows, "none")
    found = bounds.scaled(bounds.counted(path)["x", "bf16"], (128, 256, 1024))
    assert found == {"warp_instructions": 2 * 4 * (8 + 4 * 1024)}


def test_a_second_run_replaces_its_rows(tmp_path):
    """Rows of the same stage and shape are the newer ones; others stay."""
    path, row = (
        tmp_path / "counters.json",
        {"stage": "x", "dtype": "bf16", "shape": [64, 64, 64], "counts": {}},
    )
    bounds.write(path, [row, row | {"stage": "y"}], "one")
    bounds.write(path, [row | {"counts": {"wgmma": 1}}], "two")
    document = json.loads(path.read_text())
    assert [x["counts"] for x in document["rows"]] == [{"wgmma": 1}, {}] and document["commit"] == "two"


def test_the_busiest_unit_bounds():
    """The unit that needs most clocks; instructions are issued four in a clock, wavefronts one."""
    found = bounds.clocks(COUNTS, 64, 64, 64, "bf16")
    assert found["instruction issue"] == pytest.approx(100 / bounds.SMS)
    assert max(found, key=found.get) == "shared memory"


@pytest.mark.parametrize("share, says", [(0.9, "unit"), (0.3, "latency")])
def test_a_unit_that_is_mostly_idle_bounds_nothing(share, says):
    """Below half of the time it is latency, and the busiest unit is named with its share."""
    stage, shape = "18_producer_consumer", (4096, 4096, 4096)
    unit = bounds.bound(stage, "bf16", shape, None)
    counts = bounds.scaled(bounds.counted()[stage, "bf16"], shape)
    us = bounds.clocks(counts, *shape, "bf16")[unit] / bounds.CLOCK / share * 1e6
    expected = f"{unit} {share:.0%}" if says == "unit" else f"latency ({unit} {share:.0%})"
    assert bounds.bound(stage, "bf16", shape, us) == expected


def test_every_stage_has_counters_and_tensor_cores_bound_the_fast_ones():
    """No stage is left out; the stages near cuBLAS are bounded by the tensor cores, not by memory."""
    for stage in handwritten.stages():
        assert bounds.bound(stage.key, stage.dtypes[0], (4096, 4096, 4096), None)
    for key in ("18_producer_consumer", "19_staged_epilogue", "20_persistent_cluster"):
        assert bounds.bound(key, "bf16", (4096, 4096, 4096), None) == "tensor cores"


@pytest.mark.sliced
@pytest.mark.parametrize("number", [6, 12])
def test_the_committed_counters_are_those_of_the_sources(number):
    """The smaller of the two depths, emulated again, moves the committed bytes; instructions are the compiler's."""
    stage = handwritten.stage(number)
    shapes = bounds.counted()[stage.key, stage.dtypes[0]]
    shape = min(shapes, key=lambda x: x[2])
    counts = emulated.emulate(stage, stage.dtypes[0], shape).row(shape)["counts"]
    moved = {name: value for name, value in shapes[shape].items() if name.endswith(("sectors", "bytes"))}
    assert moved and {name: counts.get(name) for name in moved} == moved
