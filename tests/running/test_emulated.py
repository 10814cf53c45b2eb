# SPDX-License-Identifier: Apache-2.0
"""`backend="emulator"` through the ordinary door."""

import dataclasses

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.emulator.watch.written import NEVER_WRITTEN
from cutegemm.errors import EmulatorError, InputError
from cutegemm.gemm import Gemm, representative
from cutegemm.running.backends import emulator_steps
from cutegemm.running.numerics import reference
from tests.support.numerics import assert_close
from tests.support.watched import RACES

SPECS = {
    "warp-specialised": GemmSpec(tile=Tile(64, 64, 64)),
    "multicast": GemmSpec(tile=Tile(128, 64, 64), cluster=(2, 1)),
    "multistage": GemmSpec(schedule="multistage", tile=Tile(64, 64, 64), stages=2),
    "gather": GemmSpec(tile=Tile(64, 64, 64), a_load="gather", b_load="gather"),
    "relayout": GemmSpec(tile=Tile(64, 64, 64), a_load="relayout", b_load="relayout"),
}


@pytest.fixture
def no_reference(monkeypatch):
    """The reference backend raises."""

    def banned(*_, **__):
        raise AssertionError("the reference backend was called")

    monkeypatch.setattr(reference, "evaluate", banned)


@pytest.mark.parametrize(("name", "m", "n", "k"), [(x, 70, 90, 50) for x in SPECS] + [("gather", 129, 72, 1)])
def test_the_compiled_kernel_computes(name, m, n, k, no_reference):
    """Each family's own PTX gives alpha A B + beta C on CPU tensors, and no torch product takes part."""
    gemm = Gemm(SPECS[name], representative(GemmSpec()))
    torch.manual_seed(m)
    pad = lambda x: -(-x // 8) * 8
    a = torch.randn(m, pad(k)).bfloat16()[:, :k]
    b = torch.randn(k, pad(n)).bfloat16()[:, :n]
    c = torch.randn(m, n).bfloat16()
    d = gemm.run(a, b, c, alpha=1.5, beta=0.5, backend="emulator")
    assert_close(d, a, b, c, 1.5, 0.5)


def test_in_place_and_batched(no_reference):
    """`out` may be c, and a 2-D operand serves every batch."""
    gemm = Gemm(SPECS["warp-specialised"], representative(GemmSpec()))
    a, b, c = (
        torch.randn(2, 40, 24).bfloat16(),
        torch.randn(24, 56).bfloat16(),
        torch.randn(2, 40, 56).bfloat16(),
    )
    before = c.clone()
    assert gemm.run(a, b, c, out=c, beta=2.0, backend="emulator") is c
    assert_close(c, a, b, before, 1.0, 2.0)


def test_autograd_notices_what_a_kernel_writes():
    """A tensor that autograd has saved for a gradient, and that a kernel has overwritten since."""
    gemm = Gemm(SPECS["warp-specialised"], representative(GemmSpec()))
    a, b, saved = (torch.randn(64, 64).bfloat16() for _ in range(3))
    y = torch.ones(64, 64, requires_grad=True) * saved
    gemm.run(a, b, out=saved, backend="emulator")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


WRITTEN = {
    "tma": GemmSpec(tile=Tile(64, 64, 64), swap=False, scheduler="per_tile"),
    "staged": GemmSpec(tile=Tile(64, 64, 64), swap=False, scheduler="per_tile", store="staged"),
    "direct": GemmSpec(tile=Tile(64, 64, 64), swap=False, scheduler="per_tile", store="direct"),
    "swapped": GemmSpec(tile=Tile(64, 64, 64), swap=True, scheduler="per_tile"),
    "fp32": GemmSpec(schedule="simt", tile=Tile(64, 64, 32), split_k=1),
}


@pytest.mark.sliced
@pytest.mark.parametrize("name", WRITTEN)
def test_what_no_launch_writes_is_a_finding(name, monkeypatch):
    """A run of every way to store reports nothing; without its last CTA, the elements of that one's tile."""
    gemm = Gemm(WRITTEN[name], representative(WRITTEN[name]))
    dtype = torch.float32 if name == "fp32" else torch.bfloat16
    a, b, c = torch.randn(2, 70, 48), torch.randn(48, 88), torch.randn(2, 70, 88)
    a, b, c = (x.to(dtype) for x in (a, b, c))
    assert emulator.run(gemm, a, b, c, out=c, beta=1.0, options=RACES).findings == []
    made = emulator_steps.of_plan
    short = lambda step: dataclasses.replace(step, grid=(step.grid[0] - 1, *step.grid[1:]))
    monkeypatch.setattr(emulator_steps, "of_plan", lambda *args: [short(x) for x in made(*args)])
    for options in (None, emulator.Options()):
        (found,) = (x for x in emulator.run(gemm, a, b, options=options).findings if x.kind == NEVER_WRITTEN)
        assert (
            found.text == "144 of 12,320 elements of D, the first at (1, 64, 64), in tile (1, 1) of 64 x 64"
        )


def test_memory_of_a_run_is_the_cpus_whatever_torchs_default_device():
    """Its workspace and counters, beside operands that are CPU tensors."""
    a, b = torch.randn(8, 16).bfloat16(), torch.randn(16, 8).bfloat16()
    with torch.device("meta"):
        d = Gemm(SPECS["warp-specialised"]).run(a, b, backend="emulator")
    assert_close(d, a, b, None, 1.0, 0.0)


def test_overlap_is_refused_on_the_emulator_too():
    """Nothing is written when out overlaps a."""
    gemm = Gemm(SPECS["warp-specialised"], representative(GemmSpec()))
    a = torch.randn(64, 64).bfloat16()
    with pytest.raises(InputError, match="^out: overlaps a in memory"):
        gemm.run(a, torch.randn(64, 64).bfloat16(), out=a, backend="emulator")


def test_overlap_is_seen_on_every_emulated_call_of_a_known_kind():
    """A call like an accepted one before it, but whose `out` overlaps `a`, is refused before anything is written."""
    gemm = Gemm(SPECS["warp-specialised"], representative(GemmSpec()))
    memory = torch.ones(3 * 4096).bfloat16()
    a, b = memory[:4096].view(64, 64), torch.randn(64, 64).bfloat16()
    gemm.run(a, b, out=memory[8192:].view(64, 64), backend="emulator")
    with pytest.raises(InputError, match="^out: overlaps a in memory$"):
        gemm.run(a, b, out=memory[2048:6144].view(64, 64), backend="emulator")
    assert bool((memory[:8192] == 1).all())


def test_a_run_brings_out_findings_and_counters():
    """`emulator.run` gives D, no races, and what was counted; further keywords go to `gemm.run`."""
    gemm = Gemm(SPECS["multicast"], representative(GemmSpec()))
    a, b, c = torch.randn(256, 64).bfloat16(), torch.randn(64, 64).bfloat16(), torch.randn(256, 64).bfloat16()
    out = torch.empty(256, 64).bfloat16()
    run = emulator.run(gemm, a, b, c, alpha=2.0, beta=0.5, out=out)
    assert run.d is out and run.races == run.findings == []
    assert_close(out, a, b, c, 2.0, 0.5)
    assert run.counters["wgmma_flops"] == 2 * 256 * 64 * 64
    assert run.counters["tma_multicast_saved_bytes"] == 64 * 64 * 2
    assert run.counters["dram_read_bytes"] == (a.numel() + b.numel() + c.numel()) * 2
    assert {role.name for role in run.reports[0].roles} >= {"TMA", "wgmma"}


def test_a_run_of_several_launches_adds_its_counts_up():
    """Re-layouts and the GEMM share one L2: what a re-layout wrote is not fetched again."""
    gemm = Gemm(SPECS["relayout"], representative(GemmSpec()))
    a, b = torch.randn(64, 63).bfloat16(), torch.randn(63, 64).bfloat16()
    run = emulator.run(gemm, a, b)
    assert_close(run.d, a, b, None, 1.0, 0.0)
    assert len(run.reports) == 2
    loads = [report.sums["l2_read_bytes"] for report in run.reports]
    assert run.counters["l2_read_bytes"] == sum(loads) and min(loads) > 0
    assert run.reports[1].sums["dram_read_bytes"] == 0


def test_options_of_a_run_hold_for_it_alone():
    """Without meters nothing is counted; a time limit stops; afterwards the ordinary door is as before."""
    gemm = Gemm(SPECS["warp-specialised"], representative(GemmSpec()))
    a = torch.randn(64, 64).bfloat16()
    assert emulator.run(gemm, a, a, options=emulator.Options()).counters == {}
    with pytest.raises(EmulatorError, match="max_seconds=0.0: stopped after 0 of"):
        emulator.run(gemm, a, a, options=emulator.Options(max_seconds=0.0))
    assert_close(gemm.run(a, a, backend="emulator"), a, a, None, 1.0, 0.0)
