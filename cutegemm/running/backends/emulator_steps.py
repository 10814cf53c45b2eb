# SPDX-License-Identifier: Apache-2.0
"""The launches of one call for the emulator, from a plan or an artefact's recipe. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cutegemm.aot.artefact import Recipe
from cutegemm.aot.recipe import WORKSPACE, KernelBinary
from cutegemm.compiling import kernel_cache
from cutegemm.config import Config, KernelConfig
from cutegemm.config.shared import SharedPlan
from cutegemm.emulator import Step
from cutegemm.plans.kernel_plan import KernelPlan, launch_arguments


def of_plan(
    plan: KernelPlan, addresses: Mapping[str, int], workspace: int, numbers: Mapping[str, float]
) -> list[Step]:
    """The launches of a plan: its compiled PTX with the parameters that its host code packs."""
    launches = launch_arguments(plan, dict(addresses), workspace, dict(numbers), stream=0)
    return [step for config, arguments in launches for step in of_launch(config, arguments)]


def of_launch(config: Config, arguments: tuple[Any, ...]) -> list[Step]:
    """The launches of a kernel's host code for packed arguments; the stream comes last."""
    ptx = kernel_cache.artifact(config).ptx
    launches = kernel_cache.launches(config, arguments)
    parts = SharedPlan.of(config).named if isinstance(config, KernelConfig) else ()
    return [Step(ptx, x.grid, x.block, x.cluster, x.smem, x.params, x.pdl, parts) for x in launches]


def of_recipe(
    recipe: Recipe,
    kernels: Sequence[KernelBinary],
    addresses: Mapping[str, int],
    workspace: int,
    numbers: Mapping[str, float],
) -> list[Step]:
    """The launches of a recipe: the artefact's PTX with the recipe's parameters."""
    places = {**addresses, WORKSPACE: workspace}
    return [
        Step(kernels[x.kernel].ptx, x.grid, x.block, x.cluster, x.smem, x.filled(places, numbers), x.pdl)
        for x in recipe.steps
    ]


def shown(plan: KernelPlan | Recipe, name: str) -> tuple[str, tuple[int, int] | None]:
    """A stored output's name in reports, and the rows and columns of a CTA's tile."""
    config, label = plan.config, name.upper() if name == "d" else name
    if config is None or isinstance(plan, Recipe):
        return label, None
    rows, columns = (n // x.halves for n, x in zip(config.tile[:2], config.operands, strict=True))
    return label, (columns, rows) if plan.swapped else (rows, columns)


__all__ = ["of_plan", "of_recipe", "shown"]
