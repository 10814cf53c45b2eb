# SPDX-License-Identifier: Apache-2.0
"""Whether operands of another type are predicted faster than a plan's. Found when asked for."""

from __future__ import annotations

import dataclasses

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.dtypes import DType
from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scaling import INTEGERS
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.planning.why import predicted_us
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.problems import Operand
from cutegemm.spec import AUTO, GemmSpec


def faster_in_bf16(made: KernelPlan) -> str:
    """That bf16 operands are predicted faster than a plan's of 8 bits, in words; empty where they are not.

    They lie as those of 8 bits do, without scales and zero points. An integer D becomes fp32, or bf16 if it has 8 bits.
    """
    step, problem = made.multiply, made.problem
    if problem.a.dtype.bits != 8 or step is None or step.groups is not None:
        return ""
    graph = made.spec.epilogue
    if isinstance(graph, Graph):
        graph = AUTO if set(graph.tensors) & INTEGERS else dataclasses.replace(graph, scales=())
    kept = graph.tensors if isinstance(graph, Graph) else ("c",)
    try:
        seen = dataclasses.replace(
            problem,
            a=_wider(problem.a),
            b=_wider(problem.b),
            inputs=tuple((name, x) for name, x in problem.inputs if name in kept),
            outputs=tuple((name, _wider(x) if x.dtype.whole else x) for name, x in problem.outputs),
        )
        spec = GemmSpec(epilogue=graph, sms=made.spec.sms, batch_invariant=made.spec.batch_invariant)
        other = plan(spec, seen, made.device)
    except GemmError:
        # the epilogue reads integers, which go with operands of integers
        return ""
    own, wider = predicted_us(made), predicted_us(other)
    if own <= wider:
        return ""
    return f"is predicted faster on the same problem: {wider:,.1f} us, and {own:,.1f} us of 8 bits"


def _wider(x: Operand) -> Operand:
    """A matrix of 8 bits in bf16, and of int32 in fp32, that lies alike."""
    dtype = DType.FP32 if x.dtype.bytes == 4 else DType.BF16
    align = min(LIMITS.tma_align, x.align * dtype.bytes // x.dtype.bytes)
    return dataclasses.replace(x, dtype=dtype, align=align)
