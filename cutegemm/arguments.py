# SPDX-License-Identifier: Apache-2.0
"""The host arguments of each launch of a plan: what `kernels.launch` documents, as numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cutegemm.config import Config
from cutegemm.plan_types import GEMM, KernelPlan, Step

NO_NUMBERS = (0.0,)  # a launch that passes no number by value passes this: its tuple cannot be empty


def launch_arguments(
    plan: KernelPlan, addresses: Mapping[str, int], workspace: int, numbers: Mapping[str, float], stream: int
) -> Iterator[tuple[Config, tuple]]:
    """(config, host arguments) of every launch of a run, in order.

    Args:
        plan: of the run.
        addresses: of a, b, every tensor input and output, and every device scalar, by name.
        workspace: address of `plan.workspace_bytes` bytes, 16-byte aligned.
        numbers: the epilogue's numbers by name.
        stream: CUDA stream handle.
    """
    places = dict(addresses)
    for step in plan.steps:
        if step.name == GEMM:
            given = tuple(numbers[name] for name in plan.config.host_numbers)
            shape, strides, walk = gemm_tail(plan)
            where = gemm_addresses(plan, places, workspace)
            yield step.config, (where, shape, strides, given or NO_NUMBERS, walk, stream)
        elif step.parts:
            yield step.config, ((workspace + step.offset, places[step.operand]), finish_tail(step), stream)
        else:
            target = workspace + step.offset
            yield (
                step.config,
                ((addresses[step.operand] + step.source_offset, target), *relayout_tail(step), stream),
            )
            if step.source_offset == 0:  # a gated b's other half lies behind
                places[step.operand] = target


def gemm_addresses(plan: KernelPlan, places: Mapping[str, int], workspace: int) -> tuple[int, ...]:
    """The addresses of the GEMM launch, from those of all tensors by name; re-laid-out operands' are their copies'."""
    config = plan.config
    named = ("a", "b", *config.epilogue.tensors, *(x.name for x in config.epilogue.stores))
    partials = (
        places[x.name] if offset is None else workspace + offset
        for x, offset in zip(config.epilogue.reductions, plan.partials, strict=True)
    )
    scalars = (places[name] for name in config.device_scalars)
    return (*(places[name] for name in named), *partials, *scalars)


def gemm_tail(plan: KernelPlan) -> tuple:
    """(shape, strides, walk) of the GEMM launch."""
    problem, graph = plan.problem, plan.config.epilogue
    inputs, outputs = dict(problem.inputs), dict(problem.outputs)
    a, b = plan.views
    read = [inputs[name] for name in graph.tensors]
    shape = (problem.m, b.cols, problem.k, problem.batch, a.batch, b.batch, *(x.batch for x in read))
    transposed = (b.strides[1], b.strides[0], b.strides[2])  # the kernel sees B as N x K
    triples = [
        a.strides,
        transposed,
        *(x.strides for x in read),
        *(outputs[x.name].strides for x in graph.stores),
    ]
    gate = () if plan.gate is None else (plan.gate,)
    strides = (*(x for triple in triples for x in triple), *gate)
    return shape, strides, (plan.raster[1], plan.clusters, *plan.parts)


def relayout_tail(step: Step) -> tuple:
    """(shape, strides) of a re-layout launch."""
    source, target = step.source, step.target
    return (source.rows, source.cols, source.batch), (*source.strides, *target.strides)


def finish_tail(step: Step) -> tuple[int, int]:
    """(partial results per result, results) of the finish of a reduction."""
    return step.parts, step.results
