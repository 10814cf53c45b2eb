# SPDX-License-Identifier: Apache-2.0
"""The host arguments of each launch of a plan: what `kernels.frame.launch_operands` documents, as numbers."""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.config import Config
from cutegemm.plan import KernelPlan, Step
from cutegemm.problem import Operand


def launch_arguments(
    plan: KernelPlan,
    addresses: tuple[int, int, int, int],
    workspace: int,
    scalars: tuple[float, float],
    stream: int,
) -> Iterator[tuple[Config, tuple]]:
    """(config, host arguments) of every launch of a run, in order.

    Args:
        plan: of the run.
        addresses: of a, b, c and d.
        workspace: address of `plan.workspace_bytes` bytes, 256-byte aligned.
        scalars: (alpha, beta).
        stream: CUDA stream handle.
    """
    places = dict(zip("abcd", addresses))
    for step in plan.steps[:-1]:
        target = workspace + step.offset
        yield step.config, ((places[step.operand], target), *relayout_tail(step), stream)
        places[step.operand] = target
    if plan.steps:
        shape, strides, walk = gemm_tail(plan)
        yield plan.config, (tuple(places.values()), shape, strides, scalars, walk, stream)


def gemm_tail(plan: KernelPlan) -> tuple:
    """(shape, strides, walk) of the GEMM launch: everything but addresses, alpha, beta and stream."""
    problem = plan.problem
    views = {step.operand: step.target for step in plan.steps[:-1]}
    a, b = views.get("a", problem.a), views.get("b", problem.b)
    shape = (problem.m, problem.n, problem.k, problem.batch, a.batch, b.batch)
    transposed = (b.strides[1], b.strides[0], b.strides[2])  # the kernel sees B as N x K
    c = problem.c if problem.c is not None else problem.d
    strides = (*a.strides, *transposed, *_epilogue_strides(c), *problem.d.strides)
    return shape, strides, (plan.raster[1], plan.clusters)


def relayout_tail(step: Step) -> tuple:
    """(shape, strides) of a re-layout launch."""
    source, target = step.source, step.target
    return (source.rows, source.cols, source.batch), (*source.strides, *target.strides)


def _epilogue_strides(operand: Operand) -> tuple[int, int, int]:
    """A matrix that the epilogue reads; one that serves every batch does not advance with it."""
    row, col, batch = operand.strides
    return (row, col, batch if operand.batch > 1 else 0)
