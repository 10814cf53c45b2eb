# SPDX-License-Identifier: Apache-2.0
"""`plan(spec, problem)`: how a spec serves a problem. Pure Python: no GPU, no tensors, no torch, no DSL.

`requirements` checks both. The planner of a family of kernels (`simt_tiles`, `choose`) chooses every "auto".
"""

from __future__ import annotations

import functools

from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT
from cutegemm.checks import keywords
from cutegemm.families import load
from cutegemm.planning.ways import Order, by_cost
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.problems import Problem
from cutegemm.request import requirements
from cutegemm.request.requirements import MATRICES, Batches, requested
from cutegemm.spec import GemmSpec

# plans that are kept: the same arguments give the same plan
REMEMBERED = 1024


@keywords(GemmSpec)
def plan(spec: GemmSpec, problem: Problem, device: Device = DEFAULT, *, order: Order = by_cost) -> KernelPlan:
    """Choose how to serve `problem` under `spec` on `device`.

    Args:
        spec, problem: what is asked.
        device: the GPU that the choice is for.
        order: puts the configs that the spec allows, fastest first, in the order in which they are tried.

    Raises:
        PlanError: a given field contradicts another or the problem, or does not fit the hardware.
        SpecError, InputError: an argument is of another type.

    Example:
        >>> from cutegemm.problems import problem
        >>> plan(GemmSpec(), problem(4096, 4096, 4096)).config.family
        'warp_specialized'
    """
    return plan_adjacent(spec, problem, device, MATRICES, order)


def plan_adjacent(
    spec: GemmSpec, problem: Problem, device: Device, batches: Batches, order: Order = by_cost
) -> KernelPlan:
    """As `plan`, also for batches that are groups along an axis of D, or along K.

    Raises:
        PlanError, SpecError, InputError: as for `plan`.
    """
    requirements.check_arguments(spec, problem, device, order)
    requirements.check_extents(problem)
    return _planned(spec, problem, device, order, batches)


@functools.lru_cache(REMEMBERED)
def _planned(spec: GemmSpec, problem: Problem, device: Device, order: Order, batches: Batches) -> KernelPlan:
    requirements.check_dtypes(spec, problem)
    requirements.check_majors(spec, problem)
    if 0 in (problem.m, problem.n, problem.batch):
        why = "D is empty: nothing is launched"
        return KernelPlan(spec=spec, problem=problem, device=device, steps=(), reasons=(why,))
    asked, family = requested(spec, problem, device, batches)
    assert family.plan is not None
    made: KernelPlan = load(family.plan)(asked, order)
    return made
