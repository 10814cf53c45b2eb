# SPDX-License-Identifier: Apache-2.0
"""GEMMs of groups of rows in one launch: each group of A's rows times a matrix of B of its own.

The kernel and its tiles are those of the batched problem whose batches have as many rows as a group has on average;
how many rows each group really has, only the device knows (`kernels.groups`).
"""

from __future__ import annotations

import dataclasses
import functools
import math

from cutegemm.arch.device import Device
from cutegemm.config import KernelConfig
from cutegemm.errors import PlanError
from cutegemm.planning.planner import plan
from cutegemm.planning.steps import Multiply
from cutegemm.problems import Operand, Problem
from cutegemm.spec import GemmSpec

# launches that are kept: the same arguments give the same one
REMEMBERED = 1024


@functools.lru_cache(REMEMBERED)
def grouped(spec: GemmSpec, a: Operand, b: Operand, d: Operand, device: Device) -> Multiply:
    """The launch that multiplies the groups of `a`, rows x K, with the matrices of `b`, groups x K x N, into `d`.

    Raises:
        PlanError: no kernel of groups serves these operands under the spec.
    """
    groups = b.batch
    rows = math.ceil(a.rows / groups)
    step = _alike(spec, _batched(a, rows, groups), b, _batched(d, rows, groups), device)
    found = step.config
    if not isinstance(found, KernelConfig):
        raise PlanError("groups of rows are multiplied by tensor-core kernels only")
    # a group may have more rows than the average
    whole = dataclasses.replace(found.a, box_rows=0)
    draft = dataclasses.replace(
        found.draft, operands=(whole, found.b), grouped=True, serpentine=False, early=(), trigger="never"
    )
    config = KernelConfig.of(draft)
    # a group begins with a tile of its own, so that each may have one more than its rows fill
    along_m = a.rows // (config.rows * config.cluster[0]) + groups
    along_n = math.ceil(b.cols / (config.columns * config.cluster[1]))
    resident = device.resident_clusters(config.cluster_size) * config.ctas_per_sm
    if isinstance(spec.sms, int):
        resident = min(resident, spec.sms // config.cluster_size)
    return Multiply(
        config=config,
        extents=(a.rows, b.cols, a.cols, 1),
        operands={"a": a, "b": b, "d": d},
        raster=step.raster,
        clusters=min(along_m * along_n, resident),
    )


def _alike(spec: GemmSpec, a: Operand, b: Operand, d: Operand, device: Device) -> Multiply:
    """The launch of the batched problem."""
    problem = Problem(m=a.rows, n=b.cols, k=a.cols, batch=b.batch, a=a, b=b, inputs=(), outputs=(("d", d),))
    given = dataclasses.replace(spec, scheduler="persistent", store="staged", split_k=1, swap=False)
    made = plan(given, problem, device)
    if len(made.steps) != 1 or made.multiply is None:
        raise PlanError("groups of rows take one launch, and the operands need copies first")
    return made.multiply


def _batched(x: Operand, rows: int, groups: int) -> Operand:
    """A matrix as batches of so many rows, one after another."""
    return dataclasses.replace(x, rows=rows, batch=groups, strides=(*x.strides[:2], rows * x.strides[0]))


__all__ = ["grouped"]
