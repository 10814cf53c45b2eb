# SPDX-License-Identifier: Apache-2.0
"""A plan as text: every figure in it is the plan's."""

import re

import pytest
from hypothesis import given

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.errors import PlanError
from cutegemm.gemm import other_types
from cutegemm.planning.planner import plan
from tests.support.strategies import problems

EXPECTED = """\
problem    M x N x K = 1000 x 512 x 250, batch 2; A, B bf16, D fp32
launches   relayout a -> gemm
kernel     warp_specialized: tile 128 x 128 x 64, cluster 1 x 2, 3 stages
roles      1 producer + 2 consumer warpgroups, 384 threads, registers 40 / 232, 64 accumulators a thread
loads      A by tma (k-major), B by tma (n-major); swizzle 128B / 128B
epilogue   d = alpha * acc + beta * c
input      c: matrix, bf16, by TMA, 4 of 4 subtiles ahead, 2,048,000 B
store      D by tma (n-major, fp32), subtiles of 64 x 32, 1 buffer, 4,096,000 B
smem       147,568 of 232,448 B: A 49,152, B 49,152, d staging 16,384, c subtiles 32,768, subtile barriers 64, \
barriers 48
tma boxes  A 1 x 64 x 64, B 2 x 64 x 64, D 1 x 32 x 64, C 1 x 32 x 64
barriers   3 full (1 arrival), 3 empty (16 arrivals), 8 subtiles (1 arrival), 2 epilogue (128 arrivals)
grid       32 clusters, persistent, panels of 8 clusters along M; 8 x 4 x 2 tiles, 0.48 waves
workspace  1,024,000 B
because    A is copied into aligned workspace first: leading stride is 500 bytes, not a multiple of 16"""


def test_a_tensor_core_plan_word_for_word():
    """Every line of the description, for a plan with a re-layout, a batch, a cluster and a C."""
    spec = GemmSpec(tile=Tile(128, 128, 64), cluster=(1, 2), stages=3)
    assert str(plan(spec, problem(1000, 512, 250, batch=2, d_dtype="fp32", c_dtype="bf16"))) == EXPECTED


FUSED = """\
problem    M x N x K = 512 x 256 x 128; A, B bf16, D bf16, pre bf16
launches   gemm -> finish amax
epilogue   t0 = acc * scale + bias
           d = t0 + residual
           pre = t0
           amax = Max(abs(t0))
           rows = Sum(t0, axis=1, partial=True)
input      scale: col, bf16, once per tile, 1,024 B
input      bias: row, bf16, once per tile, 512 B
input      residual: matrix, bf16, by TMA, 2 of 2 subtiles ahead, 262,144 B
store      D by tma (n-major, bf16), subtiles of 64 x 64, 1 buffer, 262,144 B
store      pre by tma (n-major, bf16), subtiles of 64 x 64, 1 buffer, 262,144 B
reduce     amax: max, finished by a launch in a fixed order
reduce     rows: sum, partial results
workspace  256 B"""


@epi.define
def several(acc, *, bias: epi.Row, scale: epi.Col, residual: epi.Matrix):
    """Inputs of every shape, two matrices, two reductions."""
    h = acc * scale + bias
    return epi.Output(d=h + residual, pre=h, amax=epi.Max(abs(h)), rows=epi.Sum(h, axis=1, partial=True))


def test_a_fused_plan_word_for_word():
    """The formula, one line below the other, and what every input and output costs."""
    spec = GemmSpec(tile=Tile(128, 128, 64), epilogue=several)
    lines = str(plan(spec, problem(512, 256, 128, epilogue=several))).splitlines()
    parts = ("problem", "launches", "epilogue", " ", "input", "store", "reduce", "workspace")
    assert "\n".join(x for x in lines if x.startswith(parts)) == FUSED


def test_a_cuda_core_plan_says_why():
    """An fp32 problem names its kernel and the reason."""
    text = str(plan(GemmSpec(), problem(100, 200, 300, dtype="fp32")))
    assert (
        "kernel     simt, tile (" in text and "because    fp32 operands: exact fp32 on the CUDA cores" in text
    )
    text = str(plan(GemmSpec(epilogue=several), problem(100, 200, 300, dtype="fp32", epilogue=several)))
    assert "\nepilogue   t0 = acc * scale + bias\n           d = t0 + residual\n" in text


SWAPPED = """\
launches   relayout a -> gemm -> add parts
kernel     warp_specialized: tile 128 x 64 x 128, cluster 1 x 1, 3 stages, on the transposes
loads      A by tma (k-major), B by shift (n-major); swizzle 128B / 128B
store      D by staged (n-major, bf16), subtiles of 64 x 64, 1 buffer, 1,048,320 B
because    operands swapped: D's rows lie along the instruction's columns
because    A is copied into aligned workspace first: leading stride is 8190 bytes, not a multiple of 16
because    D is stored in words shifted together, through shared memory: \
leading stride is 8190 bytes, not a multiple of 16
because    tile (128, 64, 128), cluster (1, 1), 2 splits of K, added by a launch: costs least, ... us"""


def test_a_swapped_plan_names_the_callers_operands():
    """Loads, majors, the tile and the reasons are in D's coordinates; so are errors."""
    of = problem(128, 4095, 4095)
    lines = str(plan(GemmSpec(swap=True, b_load="shift"), of)).splitlines()
    parts = ("launches", "kernel", "loads", "store", "because")
    found = "\n".join(x for x in lines if x.startswith(parts))
    assert re.sub(r"[\d.]+ us", "... us", found) == SWAPPED
    made = plan(GemmSpec(swap=True, b_load="gather"), problem(16, 4096, 4096, dtype="fp8_e4m3", majors="kn"))
    assert "loads      A by tma (k-major), B by gather (strided-major)" in str(made)
    with pytest.raises(PlanError, match="^b_load='tma': TMA cannot address B: leading stride is 8190 bytes"):
        plan(GemmSpec(swap=True, b_load="tma"), of)


@pytest.mark.parametrize(
    ("dtype", "majors", "fields", "told"),
    [
        ("fp8", "kn", {}, True),
        ("int8", "mn", {"zero_point_a": "row", "scale_b": "row", "d_dtype": "int8"}, True),
        ("fp8", "kn", {"scale_a": ("block", 1, 128), "scale_b": ("block", 128, 128)}, True),
        ("fp8", "kk", {"scale_a": "row", "scale_b": "tensor"}, False),
        ("int8", "kk", {}, False),
        ("bf16", "kn", {}, False),
    ],
)
def test_a_plan_of_8_bits_says_where_bf16_is_faster(dtype, majors, fields, told):
    """A weight along N is copied at every run, which takes longer than to read it in bf16; scales do not count."""
    spec = GemmSpec(**fields)
    more = {"epilogue": spec.epilogue} if "scale_b" in fields else {}
    of = problem(16, 4096, 4096, dtype=dtype, majors=majors, d_dtype=fields.get("d_dtype"), **more)
    made = plan(spec, of)
    assert ("bf16       is predicted faster on the same problem: " in str(made)) is told
    if told:
        plain = plan(GemmSpec(), problem(16, 4096, 4096, majors=majors, d_dtype="bf16"))
        assert made.faster_in_bf16.split()[7] == f"{plain.why.taken.us:,.1f}"


def test_bf16_is_planned_where_a_plan_is_shown_only(monkeypatch):
    """A plan that nobody prints costs no second one; where bf16 has no plan nothing is said."""
    monkeypatch.setattr(other_types, "faster_in_bf16", lambda made: 1 / 0)
    made = plan(GemmSpec(), problem(17, 4096, 4096, dtype="fp8", majors="kn"))
    with pytest.raises(ZeroDivisionError):
        str(made)
    monkeypatch.undo()
    assert made.faster_in_bf16
    monkeypatch.setattr(other_types, "plan", lambda spec, *more: plan(GemmSpec(tile=Tile(8, 8, 8)), *more))
    assert made.faster_in_bf16 == ""


def test_an_empty_plan_says_so():
    """Nothing is launched for an empty D, and the text says it."""
    assert str(plan(GemmSpec(), problem(0, 5, 5))).endswith("because    D is empty: nothing is launched")


@given(problems())
def test_any_plan_can_be_described(of):
    """The text has the shape in its first line and one reason a line at its end."""
    p = plan(GemmSpec(sms=100, scheduler="persistent") if of.a.dtype.bytes == 2 else GemmSpec(), of)
    lines = str(p).splitlines()
    assert lines[0].startswith(f"problem    M x N x K = {of.m} x {of.n} x {of.k}")
    assert [x for x in lines if x.startswith("because")] == [f"because    {reason}" for reason in p.reasons]
