# SPDX-License-Identifier: Apache-2.0
"""Contenders: what they compute and how a plan is named."""

import os
import re

import pytest
import torch

import cutegemm
from benchmarks import contenders, correctness, inputs
from benchmarks.results import Case
from cutegemm.arch.records import H100
from cutegemm.database import choice
from tests.support.tuned import filled

CASE = Case(suite="small", dtype="bf16", majors="kk", m=64, n=128, k=64)


def test_cublas_is_right():
    """The baseline computes A @ B into out; it has no plan to tell."""
    contender = contenders.make("cublas", CASE)
    correctness.check(contender.call, inputs.make_sets(CASE, "cpu", 1)[0])
    assert (contender.name, contender.plan) == ("cublas", None)


@pytest.mark.parametrize("dtype", list(inputs.DTYPES))
def test_cublas_of_a_batch_is_right(dtype):
    """A batch is multiplied by torch.bmm, fp32 exactly."""
    case = Case(suite="batched", dtype=dtype, majors="kk", batch=3, m=8, n=16, k=24)
    torch.backends.cuda.matmul.allow_tf32 = True
    correctness.check(contenders.make("cublas", case).call, inputs.make_sets(case, "cpu", 1)[0])
    assert torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("majors", inputs.MAJORS)
def test_problem_of_a_case_is_that_of_its_tensors(majors, batch):
    """The problem built from a case has the extents and strides of the tensors drawn for it."""
    case = Case(suite="odd", dtype="fp16", majors=majors, batch=batch, m=48, n=64, k=80)
    problem = contenders.problem(case)
    x = inputs.make_sets(case, "cpu", 1)[0]
    assert (problem.m, problem.n, problem.k) == (48, 64, 80)
    for operand, tensor in ((problem.a, x.a), (problem.b, x.b), (problem.d, x.out)):
        assert operand.strides[:2] == tensor.stride()[-2:] and str(tensor.dtype) == "torch.float16"
        assert operand.dtype is cutegemm.DType.FP16


def test_the_invariant_contender_says_what_invariance_costs():
    """It is ours under batch_invariant=True, whose plan cuts no K where the free one does."""
    case = Case(suite="decode", dtype="bf16", majors="kk", m=16, n=256, k=16384)
    free, fixed = (contenders.make(name, case) for name in (contenders.OURS, contenders.INVARIANT))
    assert fixed.name == "cutegemm_invariant" and free.name == "cutegemm"
    spec = cutegemm.GemmSpec(batch_invariant=True)
    assert fixed.plan == contenders.plan_label(cutegemm.plan(spec, contenders.problem(case), database=False))
    assert re.search(r"K in \d+ parts", free.plan) and "parts" not in fixed.plan


def test_the_models_contender_reads_no_database(tmp_path, monkeypatch):
    """Beside a database that holds the problem it is the model's choice, at its first run too; ours is the entry's."""
    case = Case(suite="custom", dtype="bf16", majors="kk", m=512, n=512, k=64)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    filled(tmp_path / "tuned.sqlite", contenders.problem(case))
    ours, model = (contenders.make(name, case) for name in (contenders.OURS, contenders.MODEL))
    assert (
        "tile 128x64x64" in ours.plan
        and "tile 128x64x64" not in model.plan
        and model.name == "cutegemm_model"
    )
    read = []
    real = choice.find
    monkeypatch.setattr(choice, "find", lambda *args, **more: read.append(args) or real(*args, **more))
    choice._remembered.cache_clear()
    (x,) = inputs.make_sets(case, "cpu", 1)
    model.call(x)
    assert not read and "CUTEGEMM_DATABASE" not in os.environ
    ours.call(x)
    assert read


def test_kernels_of_all_cases_are_compiled_at_once():
    """Each once, of every launch; cuBLAS has none, and what is refused is left out."""
    cases = [Case(suite="custom", dtype="bf16", majors="kk", m=m, n=m, k=m) for m in (4096, 8192, 4095)]
    compiled = []
    count = contenders.ready(["cutegemm_model", "cublas"], cases, H100, compiled.append)
    wanted = [
        step.config
        for case in cases
        for step in cutegemm.plan(cutegemm.GemmSpec(), contenders.problem(case), H100, database=False).steps
    ]
    assert compiled == [list(dict.fromkeys(wanted))] and count == len(set(wanted)) >= 3


@pytest.mark.parametrize("size", [(4096, 4096, 4096), (4095, 4097, 1023)])
def test_plan_label_is_one_line(size):
    """A plan's label is one line that begins with its launches and names the tile."""
    m, n, k = size
    plan = cutegemm.plan(cutegemm.GemmSpec(), cutegemm.problem(m, n, k, majors="kk"), database=False)
    label = contenders.plan_label(plan)
    assert "\n" not in label and label.startswith(" -> ".join(step.name for step in plan.steps))
    assert f"tile {'x'.join(map(str, plan.config.tile))}" in label and "raster " in label
    assert f"store {plan.config.d.store}" in label and f"pingpong {plan.config.pingpong}" in label


@pytest.mark.gpu
def test_cutegemm_is_right_on_the_gpu():
    """The contender that is timed computes A @ B and names its plan."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    contender = contenders.make("cutegemm", CASE)
    correctness.check(contender.call, inputs.make_sets(CASE, "cuda", 1)[0])
    assert contender.name == "cutegemm" and "tile" in contender.plan
