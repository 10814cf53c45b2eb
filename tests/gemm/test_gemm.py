# SPDX-License-Identifier: Apache-2.0
"""`build` and what a Gemm shows without a GPU: plan, PTX, SASS, resources, launches, workspace, warm."""

import subprocess
import sys

import pytest

import cutegemm
from cutegemm import DType, GemmSpec, Tile, problem
from cutegemm.compiling import kernel_cache
from cutegemm.epilogue import linear_combination
from cutegemm.errors import PlanError
from cutegemm.gemm import representative

SPEC = GemmSpec(tile=Tile(128, 64, 64))


@pytest.fixture(scope="module")
def gemm():
    """A built Gemm with a small tile."""
    return cutegemm.build(SPEC)


def test_what_was_built_can_be_seen(gemm):
    """Plan, PTX, SASS and resources of the representative kernel need no GPU."""
    assert gemm.plan.problem == problem(4096, 4096, 4096)
    assert ".target sm_90a" in gemm.ptx and "wgmma.mma_async" in gemm.ptx
    assert "HGMMA" in gemm.sass
    assert gemm.resources.smem_bytes == gemm.plan.smem_bytes and gemm.resources.frame_bytes == 0


def test_printing_shows_spec_plan_and_cost(gemm):
    """`print(gemm)` begins with the spec as Python, then the plan, and ends with what was compiled."""
    lines = str(gemm).splitlines()
    assert lines[0] == repr(SPEC)
    assert "\n".join(lines[1:-1]) == str(gemm.plan)
    assert lines[-1] == f"compiled   {gemm.resources}"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"a_dtype": "fp16", "d_dtype": "fp32"}, {"dtype": "fp16", "d_dtype": "fp32"}),
        ({"a_major": "m", "b_major": "k", "d_major": "m"}, {"majors": "mk", "d_major": "m"}),
        ({"b_dtype": "fp32"}, {"dtype": "fp32"}),
        ({"a_dtype": "int8", "b_dtype": "uint8"}, {"dtype": "int8", "b_dtype": "uint8", "majors": "kk"}),
        ({"epilogue": linear_combination(True), "c_dtype": "fp32"}, {"c_dtype": "fp32"}),
        ({"epilogue": linear_combination(False)}, {}),
    ],
)
def test_the_representative_problem(fields, expected):
    """4096 cubed, aligned, no C unless the epilogue reads it, in the spec's types and majors."""
    assert representative(GemmSpec(**fields)) == problem(4096, 4096, 4096, **expected)


def test_a_problem_may_be_given():
    """With a problem, that problem's kernel is the representative."""
    of = problem(100, 64, 96, dtype="fp16")
    gemm = cutegemm.build(SPEC, of)
    assert gemm.plan.problem == of and gemm.plan.config.a.dtype is DType.FP16


def test_kernels_of_one_spec_are_shared(gemm):
    """Problems of one alignment class have one kernel, long ones that leave SMs free another, so has another class."""
    base = gemm.kernel(problem(2000, 1000, 512)).artifact
    assert gemm.kernel(problem(504, 1000, 512)).artifact is base
    long = gemm.kernel(problem(128, 4096, 4096)).artifact
    assert long is gemm.kernel(problem(100, 2048, 16384)).artifact is not base
    assert gemm.kernel(problem(2000, 1000, 512, majors="kk")).artifact is not base
    # operands that L2 does not hold are walked back and forth
    assert gemm.kernel().artifact is gemm.kernel(problem(5000, 4096, 4096)).artifact is not base


def test_an_empty_problem_has_no_kernel(gemm):
    """M = 0 needs nothing compiled."""
    kernel = gemm.kernel(problem(0, 5, 5))
    assert kernel.artifact is None and kernel.resources is None and (kernel.ptx, kernel.sass) == ("", "")


def test_build_refuses_what_the_planner_refuses():
    """A spec that cannot serve the representative problem is refused when built."""
    with pytest.raises(PlanError, match="^stages=9: each stage takes"):
        cutegemm.build(GemmSpec(tile=Tile(128, 256, 64), stages=9))


def test_workspace_is_the_plans(gemm):
    """Aligned operands need none; a copied one needs whole lines of L2 for each row."""
    assert gemm.workspace_bytes(problem(512, 512, 512)) == 0
    copied = cutegemm.build(GemmSpec(tile=Tile(128, 64, 64), a_load="relayout"))
    assert copied.workspace_bytes(problem(512, 512, 500)) == 512 * 512 * 2


def test_warm_compiles_ahead(gemm, monkeypatch):
    """After `warm`, the problems' kernels are there."""
    pytest.importorskip("torch")
    ahead = [problem(512, 512, 512), problem(640, 512, 512), problem(512, 512, 512, c_dtype="bf16")]
    gemm.warm(ahead)
    monkeypatch.setattr(kernel_cache, "compile_config", None)
    for of in ahead:
        assert gemm.kernel(of).resources.instructions["wgmma"] > 0


def test_launches_take_addresses_and_scalars(gemm):
    """The real host code runs anywhere; changed scalars change parameters and nothing else."""
    of = problem(256, 512, 128, c_dtype="bf16")
    first, second = (gemm.launches(of, alpha=alpha)[0] for alpha in (1.0, 2.0))
    same = [len(x) > 4 or x == y for x, y in zip(first.params, second.params, strict=True)]
    assert same.count(False) == 1
    assert first.grid == second.grid == (gemm.kernel(of).plan.clusters, 1, 1)


def test_build_does_not_import_torch():
    """Building and printing work in a process that has no torch."""
    code = (
        "import sys; sys.modules['torch'] = None; import cutegemm;"
        "print(cutegemm.build(cutegemm.GemmSpec(tile=cutegemm.Tile(128, 64, 64))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "compiled   " in done.stdout, done.stderr
