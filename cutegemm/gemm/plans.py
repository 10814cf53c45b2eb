# SPDX-License-Identifier: Apache-2.0
"""The public `plan`: the plan that `build` and `run` would use. Compiles nothing and does not import torch."""

from __future__ import annotations

import dataclasses

from cutegemm import checks as value_checks
from cutegemm.arch.device import Device
from cutegemm.database.choice import by_model as chosen_by_model
from cutegemm.database.choice import choose
from cutegemm.errors import InputError
from cutegemm.planning import planner
from cutegemm.planning.ways import Order, by_cost
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.problems import Problem
from cutegemm.request import requirements
from cutegemm.running.backends import here
from cutegemm.spec import GemmSpec


def plan(
    spec: GemmSpec,
    problem: Problem,
    device: Device | None = None,
    *,
    database: bool = True,
    order: Order = by_cost,
) -> KernelPlan:
    """The plan that `build` would compile for `problem` under `spec`; `chosen_by` names what chose it and the GPU.

    Args:
        spec, problem: the declaration and the problem.
        device: the GPU to plan for; None is torch's current one, or an H200 if there is none.
        database: whether measured entries are used; False, or CUTEGEMM_DATABASE=off, leaves the choice to the cost
            model.
        order: a function that sorts the configs that the spec allows, fastest first. With an order other than the cost
            model's, the database is not used.

    Raises:
        PlanError: a specified field contradicts another or the problem, or does not fit the hardware.
        SpecError, InputError: an argument has another type.

    Example:
        >>> import cutegemm
        >>> made = plan(GemmSpec(), cutegemm.problem(4096, 4096, 4096))
        >>> made.config.family, made.device.name
        ('warp_specialized', 'NVIDIA H200')
    """
    value_checks.truth(InputError, "database", database)
    if device is None:
        device = here.device()
    try:
        if order is by_cost:
            return (choose if database else chosen_by_model)(spec, problem, device).plan
        made = planner.plan(spec, problem, device, order=order)
    except TypeError:
        # an argument that cannot be hashed has a wrong type
        requirements.check_arguments(spec, problem, device, order)
        raise
    return dataclasses.replace(made, chosen_by=f"a given order ({device.name})")


__all__ = ["plan"]
