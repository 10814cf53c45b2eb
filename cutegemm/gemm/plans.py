# SPDX-License-Identifier: Apache-2.0
"""The public `plan`: what `build` and `run` would take, without compiling anything. Imports no torch."""

from __future__ import annotations

import dataclasses

from cutegemm import checks as value_checks
from cutegemm.arch.device import Device
from cutegemm.database.choice import by_model as chosen_by_model
from cutegemm.database.choice import choose
from cutegemm.errors import InputError
from cutegemm.planning import checks, planner
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.ways import Order, by_cost
from cutegemm.problems import Problem
from cutegemm.running import here
from cutegemm.spec import GemmSpec


def plan(
    spec: GemmSpec,
    problem: Problem,
    device: Device | None = None,
    *,
    database: bool = True,
    order: Order = by_cost,
) -> KernelPlan:
    """Choose how to serve `problem` under `spec`, as `build` does; `chosen_by` says what chose, and for which GPU.

    Args:
        spec, problem: what is asked.
        device: the GPU that the choice is for; None is torch's current one, an H200 where there is none.
        database: whether to take what was measured, where the database has an entry; False, or
            CUTEGEMM_DATABASE=off, leaves the choice to the cost model.
        order: puts the configs that the spec allows, fastest first, in the order in which they are tried; another one
            than the cost model's leaves the database out.

    Raises:
        PlanError: a given field contradicts another or the problem, or does not fit the hardware.
        SpecError, InputError: an argument is of another type.

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
        # what cannot be hashed is no such argument
        checks.check_arguments(spec, problem, device, order)
        raise
    return dataclasses.replace(made, chosen_by=f"a given order ({device.name})")


__all__ = ["plan"]
