# SPDX-License-Identifier: Apache-2.0
"""Resources read from PTX and cubin, against nvdisasm and against what was asked of the compiler."""

import re

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.resources import Resources, kernel_name, measure, param_sizes, sass
from cutegemm.config.spills import spills
from cutegemm.errors import CompileError, PlanError
from cutegemm.gemm import build
from cutegemm.planning.planner import plan


@pytest.fixture(scope="module")
def made():
    """(plan, artifact) of one kernel."""
    p = plan(GemmSpec(tile=Tile(128, 64, 64)), problem(304, 200, 136))
    return p, kernel_cache.artifact(p.config)


PTX = """
.visible .entry some_kernel$1(
	.param .align 64 .b8 some_kernel_param_0[128],
	.param .align 4 .b8 some_kernel_param_1[12],
	.param .u32 some_kernel_param_2,
	.param .f32 some_kernel_param_3,
	.param .u64 some_kernel_param_4
)
.reqntid 16, 4, 2
{ wgmma.mma_async.sync; wgmma.mma_async.sync; st.global.b32 [%rd1], %r1; }
"""


def test_names_and_parameters_of_a_ptx_text():
    """The entry's name, and each parameter's size in bytes."""
    assert kernel_name(PTX) == "some_kernel$1"
    assert param_sizes(PTX) == [128, 12, 4, 4, 8]


def test_a_ptx_without_an_entry_is_refused():
    """There is no kernel in it."""
    with pytest.raises(CompileError, match=r"^PTX holds no \.entry$"):
        kernel_name(".version 8.0")


def test_figures_come_from_the_right_places(made):
    """Threads and instructions from the PTX, shared memory as passed, the rest from the cubin."""
    _, artifact = made
    found = measure(PTX, artifact.cubin, 77)
    assert (found.threads, found.smem_bytes) == (128, 77)
    assert found.instructions["wgmma"] == 2 and found.instructions["st.global"] == 1
    assert found.instructions["tma_load"] == 0
    assert (found.registers, found.code_bytes) == (
        artifact.resources.registers,
        artifact.resources.code_bytes,
    )


def test_registers_and_code_agree_with_the_disassembly(made):
    """The machine code fills the code bytes, and a kernel of 384 threads was given 65536 / 384 registers, in eights."""
    p, artifact = made
    text = sass(artifact.cubin)
    assert "HGMMA.64x64x16" in text and "UTMALDG" in text and "UTMASTG" in text
    offsets = [int(x, 16) for x in re.findall(r"/\*([0-9a-f]{4,})\*/", text)]
    assert max(offsets) + 16 == artifact.resources.code_bytes
    assert artifact.resources.registers == 65_536 // p.config.threads // 8 * 8
    assert artifact.resources.frame_bytes == 0 and not re.search(r"\b(STL|LDL)\b", text)


def test_spills_are_seen():
    """A stack frame in the cubin is reported as spilled bytes."""
    used = Resources(255, 96, 1024, 2048, 128, {"wgmma": 3, "setmaxnreg": 0})
    text = (
        "255 registers x 128 threads, 96 B spilled per thread, 1,024 B shared memory, 2,048 B code; wgmma x3"
    )
    assert str(used) == text
    assert "no spills" in str(Resources(8, 0, 0, 0, 32))


WIDE = {
    "fp32 columns": (Tile(128, 208, 64), {"d_dtype": "fp32", "c_dtype": "fp32", "d_major": "m"}),
    "gelu": (Tile(256, 208, 64), {"epilogue": epi.bias_act("gelu")}),
    "swiglu, swapped": (Tile(208, 128, 64), {"epilogue": epi.swiglu(), "swap": True}),
    "dynamic": (Tile(128, 208, 64), {"c_dtype": "bf16", "scheduler": "dynamic"}),
}


@pytest.mark.sliced
@pytest.mark.parametrize("name", WIDE)
def test_the_widest_tiles_do_not_spill(name):
    """208 accumulators a thread under plain epilogues; two outputs, sums and random numbers hold them to 192."""
    tile, fields = WIDE[name]
    kind = {"schedule": "cooperative" if tile.m == 256 else "pingpong", "cluster": (2, 1)}
    gemm = build(GemmSpec(tile=tile, **({"swap": False} | kind | fields)))
    assert gemm.plan.accumulators == 208 and gemm.plan.registers == (24, 240)
    assert gemm.resources.frame_bytes == 0
    two = epi.define(lambda acc: epi.Output(d=acc, pre=epi.Store(acc)))
    for laden in (two, epi.dropout_residual(), epi.row_max()):
        with pytest.raises(PlanError, match="208 accumulators per thread, more than 192"):
            build(GemmSpec(tile=tile, swap="swap" in name, epilogue=laden, **kind))


@pytest.mark.sliced
@pytest.mark.parametrize("width", [160, 168, 176])
def test_rows_that_begin_anywhere_take_registers_to_store(width):
    """Their words are shifted together: tiles of more than 160 accumulators spill, and the planner knows which."""
    of = problem(1001, 1003, 1024, majors="kk")
    for rows, schedule in ((128, "pingpong"), (256, "cooperative")):
        spec = GemmSpec(tile=Tile(rows, width, 64), schedule=schedule, swap=False, cluster=(1, 1))
        config = plan(spec, of).config
        spilled = kernel_cache.artifact(config, warn=False).resources.frame_bytes
        assert bool(spills(config)) == (spilled > 0) == (width > 160)
        aligned = plan(spec, problem(1001, 1008, 1024, majors="kk")).config
        assert not spills(aligned)


@pytest.mark.parametrize("cubin", [b"", b"not an ELF file at all", b"\x7fEL"])
def test_what_is_no_cubin_is_refused(cubin):
    """Bytes that are no ELF file are refused by name."""
    with pytest.raises(CompileError, match="^cubin is not an ELF file$"):
        measure(PTX, cubin, 0)


def test_a_failed_disassembly_is_reported(monkeypatch):
    """Without nvdisasm, or with a file it cannot read, `sass` says what to do or what nvdisasm said."""
    with pytest.raises(CompileError, match="^nvdisasm failed: "):
        sass(b"\x7fELF but nothing more")
    monkeypatch.setattr("cutegemm.compiling.resources.nvdisasm", lambda: None)
    with pytest.raises(CompileError, match="^sass needs nvdisasm: pip install nvidia-cuda-nvdisasm$"):
        sass(b"")
