# SPDX-License-Identifier: Apache-2.0
"""Printed profiles hold the numbers of the report."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator import Result, compare, profile
from cutegemm.emulator.launching.tables import kind_of
from cutegemm.emulator.watch.findings import Finding
from tests.support.emulator_launch import aligned, run
from tests.support.emulator_pipeline import compiled, run_pipeline

STRIDED = """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mad.wide.u32 %rd1, %r0, {stride}, %rd0;
 ld.global.f32 %f0, [%rd1]; fma.rn.f32 %f1, %f0, %f0, %f0; st.global.f32 [%rd1], %f1;
"""


KINDS = {
    "fma.rn.f32": "fma.f32",
    "ld.shared.v4.b32": "ld.shared",
    "st.b16": "st",
    "add.s32": "add",
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16": "wgmma.mma_async",
    "cvt.rn.bf16x2.f32": "cvt.f32",
    "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group": "cp.async.bulk.tensor",
}


@pytest.mark.parametrize("op, kind", KINDS.items())
def test_opcodes_fall_into_kinds(op, kind):
    """Types matter for floating point only, spaces for memory only."""
    assert kind_of(op) == kind


def test_a_profile_names_the_line_that_costs_most():
    """A load that spreads over 32 sectors is listed with its PTX line, a coalesced one is not."""
    spread = run(STRIDED.format(stride=32), [aligned(512, np.float32)], meter=True)
    text = profile(spread)
    assert "costliest memory accesses" in text and "ld.global.f32 %f0, [%rd1]" in text
    assert "fma.f32" in text and "global load sectors" in text
    dense = run(STRIDED.format(stride=4), [aligned(512, np.float32)], meter=True)
    assert "costliest" not in profile(dense)
    side_by_side = profile(spread, dense)
    assert side_by_side == compare(spread, dense)
    assert "first: costliest memory accesses" in side_by_side and "second: costliest" not in side_by_side
    row = next(line for line in side_by_side.splitlines() if "global load sectors" in line)
    assert [x.strip() for x in row.split("│")[2:5]] == ["32", "4", "0.12"]


def test_a_profile_tells_the_roles_apart():
    """Each role has its warps, its instructions and its waits."""
    report = run_pipeline(compiled(), (64, 64, 128), meter=True).report
    text = profile(report)
    multiply = next(role for role in report.roles if role.name == "wgmma")
    assert sum(executed.total() for executed in multiply.per_warp.values()) == multiply.total
    products = next(line for line in text.splitlines() if "wgmma.mma_async" in line)
    assert [x.strip() for x in products.split("│")[2:5]] == ["32", "32", "0"]
    row = next(line for line in text.splitlines() if line.startswith("│ wgmma ") and "0, 1, 2, 3" in line)
    assert "mbarrier 8 (" in row.replace("  ", " ")
    assert "l2 hit rate" in text and "flops per dram byte" in text


def test_a_result_prints_as_a_page():
    """Findings, what was not exercised and the counters, in lines of 80 columns; its repr is one of them."""
    made = Result([run(STRIDED.format(stride=32), [aligned(512, np.float32)], meter=True, races=True)] * 2)
    finding = Finding("race", "word " * 50, (1, 2))
    made.reports[0].findings = [finding] * 12
    made.counters = {"global_load_sectors": 64.0, "nothing": 0.0}
    lines = str(made).splitlines()
    assert repr(made) == "<Result: 2 launches, 24 findings>" and lines[0] == "2 launches, 24 findings"
    assert max(map(len, lines)) <= 80 and len(lines) < 80
    assert sum(x.startswith("race") for x in lines) == 10 and "and 14 more: `.findings`" in lines
    assert lines[-1].split() == ["global", "load", "sectors", "64.0"]
