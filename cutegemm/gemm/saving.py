# SPDX-License-Identifier: Apache-2.0
"""From plans to an artefact (`cutegemm.aot`)."""

from __future__ import annotations

from collections.abc import Iterable

from cutegemm.aot.artefact import Artefact, Recipe
from cutegemm.aot.recipe import CHUNK_BYTES, KernelBinary, record
from cutegemm.compiling import kernel_cache
from cutegemm.config import KernelConfig
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import CompileError, field_error
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.running.arguments.named import Order
from cutegemm.spec import GemmSpec


def saved(spec: GemmSpec, plans: Iterable[KernelPlan]) -> Artefact:
    """An artefact of plans under one spec; kernels that are not in the cache are compiled.

    Raises:
        CompileError: a kernel does not compile, or its launch cannot be written down.
    """
    chosen = list(plans)
    kernel_cache.ensure([step.config for x in chosen for step in x.steps])
    kernels: list[KernelBinary] = []
    recipes = tuple(_recipe(x, kernels) for x in chosen)
    device = chosen[0].device
    versions = {name: kernel_cache.version(name) for name in ("cutegemm", "nvidia-cutlass-dsl")}
    return Artefact(
        spec=spec, recipes=recipes, kernels=tuple(kernels), gpu=device.name, sms=device.sms, versions=versions
    )


def _recipe(plan: KernelPlan, kernels: list[KernelBinary]) -> Recipe:
    problem, graph = plan.problem, plan.spec.epilogue
    if not isinstance(graph, Graph):
        graph = linear_combination(problem.c is not None)
    order = Order.of(graph, problem.device_scalars)
    known = {"a": problem.a, "b": problem.b, **dict(problem.inputs), **dict(problem.outputs)}
    _check_addresses(plan)
    # scalars on the device and results of reductions are fp32
    aligns = {name: known[name].align if name in known else 4 for name in order.names}
    numbers = {name: graph.numbers[name] for name in order.numbers}
    return Recipe(
        problem=problem,
        tensors=order.names,
        numbers=order.numbers,
        steps=record(plan, aligns, numbers, kernels),
        workspace_bytes=plan.workspace_bytes,
        counter_bytes=plan.counter_bytes,
        parts=plan.parts,
        partial_width=plan.partial_width,
        plan=str(plan),
        chosen_by=plan.chosen_by,
    )


def _check_addresses(plan: KernelPlan) -> None:
    """Refuse an operand whose tensor maps' extents follow from its address: a recipe writes addresses alone.

    Raises:
        CompileError: an operand is loaded unaligned, from an address that need not be a multiple of 16 bytes.
    """
    if not isinstance(plan.config, KernelConfig) or plan.multiply is None:
        return
    for name, operand in zip(plan.multiply.factors, plan.config.operands):
        align = {"a": plan.problem.a, "b": plan.problem.b}[name].align if name in ("a", "b") else CHUNK_BYTES
        if operand.load == "shift" and align < CHUNK_BYTES:
            rule = f"an artefact needs {name} at a multiple of {CHUNK_BYTES} bytes, and it is {align}-byte aligned"
            raise field_error(CompileError, f"{name}_load", operand.load, rule, "relayout")


__all__ = ["saved"]
