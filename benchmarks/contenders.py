# SPDX-License-Identifier: Apache-2.0
"""Who is measured: cutegemm and cuBLAS. Everything that knows cutegemm's interface is here."""

from __future__ import annotations

import torch

import cutegemm
from benchmarks.inputs import InputSet
from benchmarks.results import Case
from benchmarks.timing import Contender
from cutegemm import GemmSpec, KernelPlan

OURS = "cutegemm"
BASELINE = "cublas"
NAMES = (OURS, BASELINE)

# Fields of a kernel's config that name it in a results row, where the family has them.
_PLAN_FIELDS = ("tile", "cluster", "stages", "consumers", "pingpong", "persistent")


def make(name: str, case: Case) -> Contender:
    """A contender for one problem.

    Raises:
        GemmError: cutegemm refuses the problem.
    """
    return _cublas() if name == BASELINE else _cutegemm(case)


def _cublas() -> Contender:
    def call(inputs: InputSet) -> None:
        torch.matmul(inputs.a, inputs.b, out=inputs.out)

    return Contender(BASELINE, call)


def problem(case: Case) -> cutegemm.Problem:
    """The problem that a case's operands, freshly allocated, pose."""
    return cutegemm.problem(case.m, case.n, case.k, batch=case.batch, dtype=case.dtype, majors=case.majors)


def _cutegemm(case: Case) -> Contender:
    solved = problem(case)
    gemm = cutegemm.build(GemmSpec(), solved)

    def call(inputs: InputSet) -> None:
        gemm.run(inputs.a, inputs.b, out=inputs.out)

    return Contender(OURS, call, plan_label(gemm.kernel(solved).plan))


def plan_label(plan: KernelPlan) -> str:
    """One line that tells a plan from others: its launches, then the GEMM kernel's choices."""
    words = [" -> ".join(step.name for step in plan.steps), plan.config.family]
    for field in _PLAN_FIELDS:
        value = getattr(plan.config, field, None)
        if value is not None:
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words.append(f"{field} {text}")
    words += [f"store {x.store}" for x in plan.config.outputs]
    axis, panel = plan.raster
    return ", ".join([*words, f"raster {axis} {panel}"])
