# SPDX-License-Identifier: Apache-2.0
"""What `explain` shows is what runs: registers, shared memory, boxes and grid of the compiled kernel, and the bytes,
conflicts and waits that the emulator counts, on five problems of each family."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.arch.records import H200
from cutegemm.cli.facts import occupancy
from cutegemm.cli.facts.explained import explained
from cutegemm.cli.facts.raster import raster_of, tile_of
from cutegemm.cli.facts.roofline import peak_tflops
from cutegemm.cli.inputs import Case
from cutegemm.compiling import kernel_cache
from cutegemm.gemm import Gemm
from cutegemm.tuning.random_operands import operands
from tests.support.tensor_map import decode

SMALL = Tile(128, 64, 64)
# name -> (spec, problem); the kernels are those of other tests where they can be
PROBLEMS = {
    "cooperative": (GemmSpec(tile=SMALL), problem(256, 128, 128)),
    "cooperative, clusters": (GemmSpec(tile=Tile(128, 128, 64), cluster=(2, 1)), problem(512, 256, 128)),
    "cooperative, in turn": (
        GemmSpec(tile=Tile(64, 56, 64), cluster=(4, 1)),
        problem(256, 56, 256, majors="kk"),
    ),
    "cooperative, edges": (GemmSpec(tile=SMALL), problem(200, 112, 96)),
    "pingpong": (GemmSpec(tile=SMALL, schedule="pingpong"), problem(256, 256, 192)),
    "pingpong, edges": (GemmSpec(tile=SMALL, schedule="pingpong"), problem(200, 112, 96)),
    "pingpong, batch": (GemmSpec(tile=SMALL, schedule="pingpong"), problem(128, 64, 64, batch=3)),
    "pingpong, deep": (GemmSpec(tile=SMALL, schedule="pingpong"), problem(128, 128, 704)),
    "pingpong, one column": (GemmSpec(tile=SMALL, schedule="pingpong"), problem(384, 64, 128)),
    "swapped": (GemmSpec(tile=Tile(16, 64, 64), swap=True), problem(16, 256, 128)),
    "split K": (
        GemmSpec(tile=Tile(128, 64, 32), split_k=2, split_reduction="cluster"),
        problem(128, 128, 256),
    ),
    "multistage": (GemmSpec(tile=SMALL, schedule="multistage"), problem(256, 128, 128)),
    "multistage, one stage": (
        GemmSpec(tile=SMALL, schedule="multistage", stages=1, scheduler="per_tile"),
        problem(256, 128, 192, majors="mk"),
    ),
    "multistage, edges": (GemmSpec(tile=SMALL, schedule="multistage"), problem(200, 112, 96)),
    "multistage, batch": (GemmSpec(tile=SMALL, schedule="multistage"), problem(128, 64, 64, batch=3)),
    "multistage, deep": (GemmSpec(tile=SMALL, schedule="multistage"), problem(128, 64, 704)),
    "simt": (GemmSpec(), problem(64, 64, 64, dtype="fp32")),
    "simt, more tiles": (GemmSpec(), problem(72, 96, 40, dtype="fp32")),
    "simt, odd": (GemmSpec(), problem(65, 67, 33, dtype="fp32")),
    "simt, batch": (GemmSpec(), problem(64, 64, 64, dtype="fp32", batch=2)),
    "simt, bf16": (GemmSpec(schedule="simt"), problem(65, 67, 33)),
}
TENSOR = [name for name in PROBLEMS if not name.startswith("simt")]


@functools.cache
def shown(name):
    """(plan, what is shown of it) once its kernel is compiled, and the GEMM's launch."""
    spec, of = PROBLEMS[name]
    case = Case(spec, of, H200, "a test")
    plan, _ = explained(case)
    kernel_cache.artifact(plan.config)
    launches = [x for x in Gemm(spec, of).launches(of) if x.block[0] == plan.config.threads]
    return (*explained(case), launches[plan.steps.index(plan.multiply) if len(launches) > 1 else 0])


@functools.cache
def emulated(name):
    """The emulator's report of the GEMM's launch."""
    spec, of = PROBLEMS[name]
    plan, _, _ = shown(name)
    first = operands(of, plan.config.epilogue, "cpu")
    named = dict(zip(first.order.names, first.given, strict=True))
    run = emulator.run(
        Gemm(spec, of), named["a"], named["b"], alpha=0.5, options=emulator.Options(meter=True)
    )
    return run.reports[plan.steps.index(plan.multiply)]


@pytest.mark.sliced
@pytest.mark.parametrize("name", PROBLEMS)
def test_resources_are_the_compiled_kernel_s(name):
    """Registers, spills and shared memory are read from the cubin; the plan's total is what the host code asks for."""
    plan, found, launch = shown(name)
    made = kernel_cache.artifact(plan.config).resources
    assert (found.registers.source, found.registers.at_launch) == ("compiled", made.registers)
    assert found.registers.spilled_bytes == made.frame_bytes
    assert found.memory.bytes == made.smem_bytes == launch.smem
    if found.memory.regions:
        assert max(x.offset + x.size for x in found.memory.regions) == launch.smem


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_grid_is_the_launch_s(name):
    """CTAs, threads and clusters are those that the host code launches."""
    _, found, launch = shown(name)
    assert math.prod(launch.grid) == found.launch.grid
    assert math.prod(launch.block) == found.launch.threads
    assert math.prod(launch.cluster) == found.launch.cluster


@pytest.mark.parametrize("name", TENSOR)
def test_boxes_are_those_of_the_tensor_maps(name):
    """Each TMA box that is shown is the box, and the swizzle, of one of the launch's tensor maps."""
    _, found, launch = shown(name)
    maps = [decode(x) for x in launch.params if len(x) == 128]
    made = sorted((x.box[:2], x.swizzle) for x in maps)
    assert made == sorted(((x.inner, x.outer), x.swizzle) for x in found.boxes)


@pytest.mark.parametrize("name", TENSOR)
def test_traffic_is_what_the_emulator_counts(name):
    """TMA instructions and bytes, bytes from L2, and FLOP are the emulator's counters."""
    _, found, _ = shown(name)
    counters, traffic = emulated(name).counters, found.traffic
    assert counters["tma_loads"] == traffic.tma_loads
    assert counters["tma_load_bytes"] == traffic.tma_load_bytes
    assert counters["tma_multicast_saved_bytes"] == traffic.multicast_saved_bytes
    assert counters.get("tma_stores", 0) == traffic.tma_stores
    assert counters.get("tma_store_bytes", 0) == traffic.tma_store_bytes
    assert counters["wgmma_flops"] == traffic.executed_flops
    assert counters["l2_read_bytes"] == traffic.l2_bytes


@pytest.mark.parametrize("name", [x for x in PROBLEMS if x.startswith("simt")])
def test_the_cuda_cores_work_is_what_the_emulator_counts(name):
    """Fused multiply-adds are at least the whole tiles' products."""
    _, found, _ = shown(name)
    assert emulated(name).counters["fma_f32"] * 2 >= found.traffic.executed_flops > 0


@pytest.mark.parametrize("name", TENSOR)
def test_conflicts_are_what_the_emulator_counts(name):
    """Each stmatrix of the epilogue takes as many wavefronts beyond the least as are shown."""
    _, found, _ = shown(name)
    costs = [x for x in emulated(name).lines if x.text.startswith("stmatrix")]
    assert costs and all(x.units - x.ideal == x.requests * found.traffic.store_conflicts for x in costs)


@pytest.mark.parametrize("name", TENSOR)
def test_waits_are_what_the_emulator_counts(name):
    """Each consumer warp asks for each stage that is shown, and waits for it if it is not full yet.

    For a tile's first stage it waits at once, but multistage. Warps of a cluster that adds up K wait twice more.
    """
    plan, found, _ = shown(name)
    roles = [x.instructions for x in emulated(name).roles if "wgmma" in x.name]
    asked, waited = (
        sum(n for x in roles for op, n in x.items() if op.startswith(head))
        for head in ("mbarrier.test_wait", "mbarrier.try_wait")
    )
    stages, multistage = found.traffic.stage_waits, plan.config.schedule == "multistage"
    mainloops = stages // found.traffic.k_tiles * plan.config.cluster_splits
    summing = 2 * (plan.config.cluster_splits > 1) * found.launch.grid * plan.config.consumers * 4
    assert asked == stages + multistage * mainloops
    assert (not multistage) * mainloops <= waited - summing <= stages


@pytest.mark.parametrize("name", PROBLEMS)
def test_waves_cover_the_output(name):
    """Work tiles are those of the raster, each once, and waves are they over what is in flight."""
    plan, found, _ = shown(name)
    raster, waves = found.raster, found.waves
    assert sorted(map(tuple, raster.order)) == [
        (m, n) for m in range(raster.down) for n in range(raster.across)
    ]
    assert waves.waves == pytest.approx(waves.work_tiles / waves.at_once, rel=1e-3)
    assert 0 < waves.efficiency <= 1 and 0 <= waves.padding < 1
    assert sum(x.tiles for x in raster.waves) == len(raster.order)
    assert all(x.reuse >= 1 for x in raster.waves)


@pytest.mark.parametrize("name", TENSOR)
def test_the_timeline_holds_the_pipeline_s_rules(name):
    """No stage is loaded before it is free or multiplied before it is full, and every tile has its epilogue."""
    plan, found, _ = shown(name)
    timeline = found.timeline
    loads, *consumers = timeline.tracks
    assert sum(x.stages for x in loads.spans) == timeline.tiles * timeline.k_tiles
    spans = sorted((x for track in consumers for x in track.spans), key=lambda x: x.start)
    mains = [x for x in spans if x.does == "mainloop"]
    assert sum(x.stages for x in mains) == timeline.tiles * timeline.k_tiles
    assert sorted(x.tile for x in spans if x.does == "epilogue") == list(range(timeline.tiles))
    # only one consumer's products at a time
    assert all(x.end <= y.start + 1e-6 for x, y in zip(mains, mains[1:]))
    assert mains[0].start >= timeline.load_ns and all(0 <= x.waits < 1 for x in timeline.tracks)


@pytest.mark.parametrize("schedule, overlaps", [("pingpong", True), ("cooperative", False)])
def test_consumers_in_turn_overlap_epilogues(schedule, overlaps):
    """Pingpong consumers multiply one after the other, and one's epilogue lies beside the other's mainloop."""
    spec = GemmSpec(tile=Tile(128, 128, 64), cluster=(2, 1), schedule=schedule)
    _, found = explained(Case(spec, problem(4096, 4096, 4096), H200, "a test"))
    spans = sorted((x for track in found.timeline.tracks[1:] for x in track.spans), key=lambda x: x.start)
    mains = [x for x in spans if x.does == "mainloop"]
    assert found.timeline.tiles == 4 and all(x.end <= y.start + 1e-6 for x, y in zip(mains, mains[1:]))
    ends = [x for x in spans if x.does == "epilogue"]
    assert overlaps == any(x.start < y.end and y.start < x.end - 1e-6 for x in ends for y in mains)


def test_a_ring_holds_loads_back():
    """With one stage a load waits for the products of the one before it."""
    _, one, _ = shown("multistage, one stage")
    timeline = one.timeline
    each = timeline.load_ns + timeline.mma_ns
    assert timeline.tracks[0].spans[1].start == pytest.approx(each)


def test_a_plan_that_is_not_compiled_shows_its_budget(tmp_path, monkeypatch):
    """Without a compiled kernel registers are the most that the launch bounds leave, and that is said."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_MEMORY", {})
    spec, of = PROBLEMS["cooperative"]
    _, found = explained(Case(spec, of, H200, "a test"))
    assert (found.registers.source, found.registers.at_launch) == ("plan", 168)
    assert found.registers.spilled_bytes is None
    assert found.registers.at_launch >= shown("cooperative")[1].registers.at_launch
    _, simt = explained(Case(*PROBLEMS["simt"], H200, "a test"))
    assert simt.memory.bytes is None and "not compiled yet" in simt.memory.source
    assert "shared memory" not in [x.resource for x in simt.occupancy.bounds]


@pytest.mark.parametrize(
    "threads, registers, smem, ctas, limited",
    [
        (384, 168, 200_000, 1, ["shared memory", "registers"]),
        (128, 64, 1_024, 8, ["registers"]),
        (128, 32, 0, 16, ["registers", "threads"]),
        (32, 16, 0, 32, ["CTA slots"]),
        (128, 255, 100_000, 2, ["shared memory", "registers"]),
    ],
)
def test_occupancy_is_the_calculator_s(threads, registers, smem, ctas, limited):
    """CTAs an SM holds, as CUDA's occupancy calculator has it for compute capability 9.0."""
    found = occupancy.occupancy(H200.limits, threads, registers, smem)
    assert (found.ctas, found.limited_by) == (ctas, limited)
    assert found.warps == ctas * threads // 32


def test_the_roof_is_the_record_s():
    """Peak rates are at most those of the highest clock, 1,980 MHz; the attainable rate is at most the bandwidth's."""
    _, found, _ = shown("cooperative")
    roof = found.roofline
    assert roof.peak_tflops == pytest.approx(peak_tflops(H200, 2)) and 900 < roof.peak_tflops < 1071
    assert 50 < peak_tflops(H200, None) < 67
    fp8 = explained(Case(GemmSpec(), problem(256, 256, 256, dtype="fp8_e4m3"), H200, ""))[1].roofline
    assert fp8.peak_tflops == pytest.approx(2 * roof.peak_tflops)
    assert roof.attainable_tflops == pytest.approx(
        min(roof.peak_tflops, roof.intensity * H200.dram_gbs / 1e3)
    )
    assert roof.share == pytest.approx(max(x.us for x in roof.rates) / roof.us)
    assert roof.bound == "latency"


def test_the_raster_is_the_scheduler_s():
    """Panels along an axis, the last one narrower; a serpentine turns back."""
    assert [tile_of(i, 3, 2, 2, "m") for i in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
    assert [tile_of(i, 2, 2, 1, "n", True) for i in range(4)] == [(0, 0), (1, 0), (1, 1), (0, 1)]


@pytest.mark.parametrize(
    "fields, note",
    [
        ({"scheduler": "dynamic"}, "take tiles from a counter"),
        ({"scheduler": "stream_k"}, "split along K so that all clusters end together"),
        (
            {"split_k": 2, "split_reduction": "launch", "tile": Tile(128, 64, 32)},
            "in each of 2 splits of K",
        ),
        (
            {"split_k": 2, "scheduler": "per_tile", "split_reduction": "launch", "tile": Tile(128, 64, 32)},
            "comes 2 times in a row",
        ),
    ],
)
def test_the_raster_says_what_it_does_not_show(fields, note):
    """Schedulers that do more than walk tiles are named."""
    plan, found = explained(Case(GemmSpec(**{"tile": SMALL} | fields), problem(512, 512, 512), H200, ""))
    assert note in found.raster.note


def test_a_huge_output_lists_some_tiles():
    """An output with more work tiles than a page can show lists the first ones, and the note says so."""
    plan, _ = explained(Case(GemmSpec(tile=SMALL), problem(65536, 65536, 64), H200, ""))
    found = raster_of(plan, 132)
    assert len(found.order) == 4096 and "the first 4,096 of 524,288 work tiles" in found.note


def test_an_empty_output_explains_nothing():
    """D without elements launches nothing: no kernel, no roofline."""
    _, found = explained(Case(GemmSpec(), problem(0, 8, 8), H200, ""))
    parts = dataclasses.asdict(found)
    assert parts["launch"] is parts["roofline"] is parts["timeline"] is None and not found.candidates
