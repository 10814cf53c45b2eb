# SPDX-License-Identifier: Apache-2.0
"""The contenders of a benchmark: cutegemm and cuBLAS. Other libraries are in `libraries`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

import cutegemm
from benchmarks import libraries
from benchmarks.inputs import InputSet
from benchmarks.results import Case
from benchmarks.timing import Contender
from cutegemm import GemmSpec, KernelPlan
from cutegemm.arch.device import Device
from cutegemm.compiling import kernel_cache
from cutegemm.config import Config
from cutegemm.database import choose
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan

Compile = Callable[[Iterable[Config]], None]

OURS = "cutegemm"
BASELINE = "cublas"
# our batch-invariant kernels
INVARIANT = "cutegemm_invariant"
# our kernels as the cost model chooses them, without a tuning database
MODEL = "cutegemm_model"
# measured by default, and all that can be requested
NAMES = (OURS, BASELINE)
CHOICES = (*NAMES, MODEL, INVARIANT, *libraries.NAMES)

# Config fields in the label of a plan, if the family has them.
_PLAN_FIELDS = ("family", "tile", "cluster", "stages", "consumers", "pingpong", "persistent")


def make(name: str, case: Case) -> Contender:
    """A contender for one problem.

    Raises:
        GemmError: cutegemm refuses the problem.
        libraries.LeftOut: the library is not installed or does not support the problem.
    """
    if name in libraries.NAMES:
        return libraries.make(name, case)
    if name == INVARIANT:
        return cutegemm_contender(case, GemmSpec(batch_invariant=True), INVARIANT)
    if name == MODEL:
        return _model(case)
    return _cublas(case) if name == BASELINE else cutegemm_contender(case)


def _cublas(case: Case) -> Contender:
    """cuBLAS through torch.mm, or torch.bmm for a batch; fp32 operands without tf32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    multiply = torch.mm if case.batch == 1 else torch.bmm

    def call(inputs: InputSet) -> None:
        multiply(inputs.a, inputs.b, out=inputs.out)

    return Contender(BASELINE, call)


def _model(case: Case) -> Contender:
    """Our kernel without a tuning database, when it is built and when it first runs."""
    with no_database():
        ours = cutegemm_contender(case, name=MODEL)

    def call(inputs: InputSet) -> None:
        with no_database():
            ours.call(inputs)

    return Contender(MODEL, call, ours.plan)


@contextlib.contextmanager
def no_database() -> Iterator[None]:
    """Within the context `build` and `run` use no tuning database."""
    before = os.environ.get("CUTEGEMM_DATABASE")
    os.environ["CUTEGEMM_DATABASE"] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUTEGEMM_DATABASE"]
        else:
            os.environ["CUTEGEMM_DATABASE"] = before


def problem(case: Case) -> cutegemm.Problem:
    """The problem of a case, with freshly allocated operands."""
    return cutegemm.problem(case.m, case.n, case.k, batch=case.batch, dtype=case.dtype, majors=case.majors)


def cutegemm_contender(case: Case, spec: GemmSpec | None = None, name: str = OURS) -> Contender:
    """Our kernel for a case; the planner chooses unspecified fields.

    Raises:
        GemmError: cutegemm refuses the problem or the spec.
    """
    solved = problem(case)
    gemm = cutegemm.build(spec or GemmSpec(), solved)

    def call(inputs: InputSet) -> None:
        gemm.run(inputs.a, inputs.b, out=inputs.out)

    return Contender(name, call, plan_label(gemm.kernel(solved).plan))


def ready(
    names: Sequence[str], cases: Sequence[Case], device: Device, compile: Compile = kernel_cache.ensure
) -> int:
    """Compile our kernels of all cases in parallel, ahead of the measurements. Returns their number.

    Args:
        names: of the contenders.
        cases: to measure.
        device: to plan for.
        compile: compiles kernels in parallel.
    """
    configs = []
    for name, case in itertools.product(names, cases):
        if name in (OURS, MODEL, INVARIANT):
            spec = GemmSpec(batch_invariant=True) if name == INVARIANT else GemmSpec()
            planner = plan if name == MODEL else lambda *x: choose(*x).plan
            with contextlib.suppress(GemmError):
                # a refused contender reports the error when it is made
                configs += [step.config for step in planner(spec, problem(case), device).steps]
    wanted = list(dict.fromkeys(configs))
    with contextlib.suppress(GemmError):
        compile(wanted)
    return len(wanted)


def plan_label(plan: KernelPlan) -> str:
    """A plan on one line: its launches, then the fields of the GEMM kernel."""
    config = plan.config
    words = [" -> ".join(step.name for step in plan.steps)]
    for field in _PLAN_FIELDS:
        value = getattr(config, field, None)
        if value is not None:
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words.append(text if field == "family" else f"{field} {text}")
    if getattr(config, "splits", 1) > 1:
        words.append(f"K in {config.splits} parts")
    words += [f"store {output.store}" for output in getattr(config, "outputs", ())]
    axis, panel = plan.raster
    return ", ".join([*words, f"raster {axis} {panel}"])
