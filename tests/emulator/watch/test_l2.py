# SPDX-License-Identifier: Apache-2.0
"""The L2 model against counts worked out by hand, and traffic, roles and waits of whole kernels."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.watch.l2 import L2, LINE_BYTES, WAYS, sectors_of
from tests.support.emulator_launch import aligned, run
from tests.support.emulator_pipeline import compiled, run_pipeline


def region(size: int, base: int = 1 << 20) -> MemoryRegion:
    """A stretch of global memory."""
    return MemoryRegion(np.zeros(size, np.uint8), base, "buffer")


def sectors(r: MemoryRegion, start: int, size: int) -> np.ndarray:
    """Sectors of a run of bytes of a region."""
    return sectors_of(r.base + start, (size,), ())


def test_a_second_read_hits_and_only_missing_sectors_are_fetched():
    """One sector of a line brings in 32 bytes; the rest of the line is fetched when it is asked for."""
    cache, r = L2(), region(4096)
    cache.access(r, sectors(r, 0, 32), False)
    assert (cache.read, cache.fetched) == (1, 1)
    cache.access(r, sectors(r, 0, 128), False)
    assert (cache.read, cache.fetched) == (5, 4)
    cache.access(r, sectors(r, 0, 128), False)
    assert (cache.read, cache.fetched) == (9, 4)


def test_written_sectors_are_not_fetched_and_go_back_when_their_line_leaves():
    """A set holds 16 lines: a 17th drives out the one used longest ago, with what was written of it."""
    cache = L2(size=LINE_BYTES * WAYS)  # one set
    r = region(LINE_BYTES * (WAYS + 2))
    cache.access(r, sectors(r, 0, 64), True)
    assert (cache.written, cache.fetched, cache.dirty) == (2, 0, 2)
    for line in range(1, WAYS):
        cache.access(r, sectors(r, line * LINE_BYTES, 32), False)
    cache.access(r, sectors(r, 32, 32), False)  # line 0 is now the youngest
    cache.access(r, sectors(r, WAYS * LINE_BYTES, 32), False)  # drives out line 1
    assert cache.written_back == 0 and cache.dirty == 2
    for line in range(2, WAYS + 2):
        cache.access(r, sectors(r, line * LINE_BYTES, 32), False)
    assert cache.written_back == 2 and cache.dirty == 0


def test_regions_keep_their_places_whatever_their_addresses():
    """Counts do not depend on where the host put the buffers."""

    def counts(first: int, second: int) -> tuple[int, int]:
        cache = L2(size=LINE_BYTES * WAYS * 64)
        regions = [region(12 * 64 * LINE_BYTES, base) for base in (first, second)]
        for r in regions * 3:
            for i in range(12):  # all in one set, or in two, by the distance of the regions
                cache.access(r, sectors(r, i * 64 * LINE_BYTES, 128), True)
        return cache.written_back, cache.fetched

    assert counts(1 << 20, 2 << 20) == counts(5 << 30, (7 << 20) + 128 * 63)


def test_rows_of_a_box_share_sectors_only_where_they_overlap():
    """Rows of 48 bytes in steps of 96 reach one or two sectors more than their bytes."""
    got = sectors_of(1024, (3, 48), (96,))
    want = sorted({(1024 + 96 * row + byte) // 32 for row in range(3) for byte in range(48)})
    assert got.tolist() == want


def test_a_gemm_that_fits_reads_its_operands_from_dram_once():
    """128 x 128 x 128 in 64-tiles: A and B are read twice through L2, once from DRAM; D is left in L2."""
    counters = run_pipeline(compiled(), (128, 128, 128), meter=True).report.counters
    operands = 2 * 128 * 128 * 2
    assert counters["l2_read_bytes"] == 2 * operands
    assert counters["dram_read_bytes"] == operands
    assert counters["l2_hit_rate"] == 0.5
    assert counters["l2_write_bytes"] == counters["l2_dirty_bytes"] == 128 * 128 * 4
    assert counters["flops_per_l2_byte"] == round(2 * 128**3 / (2 * operands + 128 * 128 * 4), 2)
    assert counters["flops_per_dram_byte"] == round(2 * 128**3 / (operands + 128 * 128 * 4), 2)


def test_a_ragged_tile_reads_what_lies_inside_only():
    """TMA counts the whole box as moved, L2 only the sectors of the tensor that the box reaches."""
    counters = run_pipeline(compiled(), (8, 8, 64), ctas=1, meter=True).report.counters
    assert counters["tma_load_bytes"] == 2 * 8192
    assert counters["l2_read_bytes"] == 2 * 8 * 128


def test_roles_and_their_waits():
    """Warps 0..3 multiply, warp 4 loads; a consumer warp waits once per step on a full stage."""
    options = {"ctas": 1, "meter": True, "warps_per_group": 1, "policy": "lazy"}
    report = run_pipeline(compiled(), (128, 128, 128), **options).report
    roles = {role.name: role for role in report.roles}
    assert roles["wgmma"].warps == [0, 1, 2, 3] and roles["TMA"].warps == [4]
    steps = 4 * 2
    assert roles["wgmma"].waits["mbarrier"] == 4 * steps
    assert roles["wgmma"].waits["wgmma"] == 4 * steps
    assert roles["TMA"].waits["mbarrier"] == steps
    assert roles["wgmma"].blocked["mbarrier"] == 4 * steps  # loads complete when nothing else can move
    assert (
        roles["wgmma"].instructions["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"] == 4 * 4 * steps
    )
    assert sum(role.total for role in report.roles) == sum(report.instructions.values())


@pytest.mark.parametrize("warps_per_group", [None, 1])
def test_instructions_per_warp_do_not_depend_on_grouping(warps_per_group):
    """A branch that only some warps take, and one within a warp, count for the warps that went there."""
    report = run(
        """
 mov.u32 %r0, %tid.x; setp.ge.u32 %p0, %r0, 40; @%p0 bra END; add.u32 %r1, %r0, 1; add.u32 %r1, %r1, 1;
END:
 setp.ge.u32 %p1, %r0, 96; @%p1 bra LAST; mul.lo.u32 %r2, %r0, 3;
LAST:
""",
        [aligned(1, np.uint32)],
        threads=128,
        meter=True,
        warps_per_group=warps_per_group,
    )
    (role,) = report.roles
    assert role.warps == [0, 1, 2, 3]
    assert role.instructions["add.u32"] == 2 * 2 and role.instructions["mul.lo.u32"] == 3


def test_the_distance_between_wgmmas():
    """Four wgmmas in a row are one instruction apart within a step, and a loop's length apart between steps."""
    short = run_pipeline(compiled(), (64, 64, 64), ctas=1, meter=True).report.counters
    long = run_pipeline(compiled(), (64, 64, 256), ctas=1, meter=True).report.counters
    assert 1 <= short["wgmma_issue_gap"] < long["wgmma_issue_gap"]
