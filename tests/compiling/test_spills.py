# SPDX-License-Identifier: Apache-2.0
"""Spills: the planner's own choices have none, and a spec that insists is told of them."""

import dataclasses
import warnings

import numpy as np
import pytest

from cutegemm import GemmSpec, Tile, build, plan, problem
from cutegemm import epilogue as epi
from cutegemm.arch import sm90 as hw
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.resources import SpillWarning
from cutegemm.config import spills
from cutegemm.config.draft import KernelDraft
from cutegemm.epilogue.graph import Graph
from cutegemm.planning import simt_tiles
from tests.support.compiled import CONFIG, isolated

LOG_SUM_EXP = epi.define(lambda acc: epi.Output(d=acc, s=epi.LogSumExp(acc, axis=1)))
GATED_LOG_SUM_EXP = epi.define(
    lambda gate, up: epi.Output(d=gate * up, s=epi.LogSumExp(gate * up, axis=1)), gated="halves"
)
EVERY_AXIS = epi.define(
    lambda acc: epi.Output(d=acc, **{f"s{axis}": epi.LogSumExp(acc, axis=axis) for axis in (0, 1, None)})
)

OWN = {
    "C that threads load": (
        GemmSpec(a_dtype="fp16"),
        problem(512, 4097, 4096, dtype="fp16", c_dtype="fp16", batch=64),
    ),
    "gated sums on the CUDA cores": (GemmSpec(a_dtype="fp32", epilogue=GATED_LOG_SUM_EXP, split_k=8), None),
    "sums of a whole thread's tile": (GemmSpec(a_dtype="fp32", epilogue=epi.softmax_partials()), None),
    "random numbers": (GemmSpec(epilogue=epi.dropout_residual()), None),
    "pingpong with sums": (GemmSpec(schedule="pingpong", epilogue=LOG_SUM_EXP), None),
    "log-sum-exps along every axis": (
        GemmSpec(epilogue=EVERY_AXIS),
        problem(2048, 2048, 4096, epilogue=EVERY_AXIS),
    ),
    "fp8 by columns": (GemmSpec(epilogue=epi.quantize_fp8(), d_major="m", store="staged"), None),
    "three consumers": (GemmSpec(consumers=3, epilogue=epi.rms_partial()), None),
}


def bytewise(m, n, k, dtype="fp8", majors="kk", **fields):
    """A spec of 8-bit operands and its problem."""
    spec = GemmSpec(**fields)
    graph = spec.epilogue if isinstance(spec.epilogue, Graph) else None
    return spec, problem(m, n, k, dtype=dtype, majors=majors, epilogue=graph)


ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
OWN |= {
    "fp8": bytewise(4096, 4096, 4096),
    "fp8 of few rows": bytewise(16, 7168, 16384),
    "fp8 that is copied": bytewise(4095, 4096, 4097, majors="mn"),
    "fp8 that is gathered": bytewise(64, 24, 100, majors="mn"),
    "fp8 with scales of rows": bytewise(8192, 8192, 8192, scale_a="row", scale_b="row"),
    "fp8 with scales of rows, gated": bytewise(
        4096, 8192, 4096, scale_a="row", epilogue=epi.swiglu("interleaved")
    ),
    "scales of blocks": bytewise(4096, 7168, 16384, scale_a=ROWS, scale_b=SQUARES),
    "scales of blocks, both by rows": bytewise(4096, 4096, 4096, scale_a=ROWS, scale_b=ROWS),
    "scales of blocks, few rows": bytewise(16, 8192, 28672, scale_a=ROWS, scale_b=SQUARES),
    "scales of blocks, both by rows, few rows": bytewise(64, 4096, 4096, scale_a=ROWS, scale_b=ROWS),
    "int8": bytewise(4096, 4096, 4096, "int8"),
    "int8 of a row": bytewise(1, 4096, 4096, "int8"),
    "zero points": bytewise(4096, 4096, 4096, "int8", zero_point_a="row", zero_point_b="row"),
    "zero points and scales": bytewise(
        512, 4096, 4096, "uint8", zero_point_a="tensor", scale_a="row", scale_b="row", epilogue=epi.bias()
    ),
}


@pytest.mark.sliced
@pytest.mark.parametrize("name", OWN)
def test_what_the_planner_chooses_does_not_spill(name):
    """Where the tile is the planner's no thread spills more than a few addresses."""
    spec, of = OWN[name]
    assert not build(spec, of).resources.spills


# (spec's fields, epilogue): wide tiles whose subtiles all belong to the same rows, columns, or one number
WIDE = {
    "rows of 256": ({"tile": Tile(128, 256, 64)}, 1),
    "rows, two passes": ({"tile": Tile(256, 112, 64)}, 1),
    "rows, pingpong": ({"tile": Tile(64, 224, 64), "schedule": "pingpong"}, 1),
    "columns, two passes": ({"tile": Tile(256, 112, 64)}, 0),
}


@pytest.mark.sliced
@pytest.mark.parametrize("name", WIDE)
def test_a_wide_reduction_keeps_few_values(name):
    """What subtiles reduce is dead before the next one's values are computed: 88 to 256 B were spilled otherwise."""
    fields, axis = WIDE[name]
    graph = epi.define(lambda acc: epi.Output(d=acc, s=epi.LogSumExp(acc, axis=axis)))
    gemm = build(GemmSpec(swap=False, epilogue=graph, **fields))
    assert gemm.resources.frame_bytes <= 24 and not spills.spills(gemm.plan.config)


def test_a_spec_that_insists_is_told(monkeypatch, tmp_path):
    """A given tile that spills compiles with one warning a process, and print(gemm) says it; tuning tells nobody."""
    made = kernel_cache.artifact(CONFIG)
    isolated(monkeypatch, tmp_path)
    spilled = dataclasses.replace(made, resources=dataclasses.replace(made.resources, frame_bytes=248))
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: spilled)
    with pytest.warns(
        SpillWarning, match=r"^warp_specialized kernel: 248 B spilled per thread; a smaller tile"
    ):
        gemm = build(GemmSpec(tile=CONFIG.tile, stages=3))
    assert "248 B spilled per thread" in str(gemm)
    for told in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if not told:
                monkeypatch.setattr(kernel_cache, "_MEMORY", {})
            kernel_cache.ensure([gemm.plan.config], warn=told)


def test_no_candidate_that_is_shown_spills():
    """What `why` weighs are kernels whose threads hold their registers, so the plan's tile is one of these."""
    made = plan(*OWN["C that threads load"])
    assert made.why.weighed and made.accumulators <= 128
    assert not spills.spills(made.config)


def held(config):
    """What a thread of a kernel holds beside its accumulators, without what counts nothing."""
    return {name: count for name, count in spills.beside_accumulators(config) if count}


def test_what_a_thread_holds_is_a_sum_over_its_epilogue():
    """Matrices that threads load or store, random draws and the largest reduction's state count, each for itself."""
    made = plan(*OWN["C that threads load"]).config
    base = lambda config: spills.BASE + spills.PASS * config.passes
    assert held(made) == {"base": base(made), "loads": spills.LOADED, "stores": spills.STORED}
    made = build(GemmSpec(epilogue=LOG_SUM_EXP)).plan.config
    assert held(made) == {"base": base(made), "reductions": 2 * spills.REDUCED[1] + spills.EXPONENTIALS[1]}
    total = epi.define(lambda acc: epi.Output(d=acc, s=epi.LogSumExp(acc)))
    made = plan(GemmSpec(epilogue=total), problem(512, 512, 512)).config
    assert held(made)["reductions"] == 2 * spills.REDUCED[None] + spills.EXPONENTIALS[None]
    made = plan(*OWN["log-sum-exps along every axis"])
    most = 2 * spills.REDUCED[None] + spills.EXPONENTIALS[None]
    assert held(made.config)["reductions"] == most + 2 * spills.FURTHER and made.accumulators >= 64
    made = build(GemmSpec(epilogue=epi.dropout_residual())).plan.config
    # the planner may swap the factors, and with them the residual's axis
    vector = "columns" if "columns" in held(made) else "rows"
    assert held(made) == {"base": base(made), vector: spills.VECTOR, "random": spills.RANDOM}


def test_many_candidates_are_judged_at_once():
    """A draft whose fields are arrays gives each candidate's own answer; a kernel that stores nothing never spills."""
    made = plan(*OWN["C that threads load"]).config
    fields = {x.name: getattr(made, x.name) for x in dataclasses.fields(made)}
    columns = [64, 128, 192]
    alone = [bool(spills.spills(KernelDraft(**fields | {"tile": (128, n, 64)}))) for n in columns]
    many = KernelDraft(**fields | {"tile": (128, np.array(columns), 64)})
    assert list(spills.spills(many)) == alone == [False, False, True]
    left = KernelDraft(**fields | {"tile": (128, 192, 64), "split_reduction": "launch"})
    assert not spills.spills(left)


def test_cuda_cores_give_threads_room_first():
    """A tile whose threads would spill beside another CTA has the SM to itself; addresses of single elements count."""
    graph, limits = LOG_SUM_EXP, hw.LIMITS
    large, small = simt_tiles.TILES[1], simt_tiles.TILES[4]
    assert spills.with_room(large, graph, False, limits).residents == 1
    assert [spills.simt_spills(small, graph, x, limits) for x in (False, True)] == [False, True]
    alone = dataclasses.replace(large, residents=1)
    assert not spills.simt_spills(alone, graph, True, limits)
    assert spills.simt_spills(simt_tiles.TILES[0], graph, False, limits)
