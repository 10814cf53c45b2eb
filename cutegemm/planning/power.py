# SPDX-License-Identifier: Apache-2.0
"""Energy under the power cap: what a launch's work takes, and how long the cap makes it."""

from __future__ import annotations

from cutegemm.arch.device import PowerModel
from cutegemm.planning.columns import Column, Table
from cutegemm.problems import Problem

# how sharply the power cap takes over from clock and waves: the larger of both, rounded off within a tenth
CAP_BITES = 8.0


def capped(ns: Column, problem: Problem, power: PowerModel | None, of: Table) -> Column:
    """Nanoseconds of each candidate where its energy may take longer than its waves; `ns` where no cap is known."""
    if power is None:
        return ns
    longer: Column = energies(problem, power, of) / power.watts
    found: Column = (ns**CAP_BITES + longer**CAP_BITES) ** (1 / CAP_BITES)
    return found


def energies(problem: Problem, power: PowerModel, of: Table) -> Column:
    """Nanojoules of each candidate: its tiles' products, padding included, and the bytes of L2 and of device memory."""
    flops, l2, dram = work(problem, of)
    return (power.flop * flops + power.l2 * l2 + power.dram * dram) / 1e3


def work(problem: Problem, of: Table) -> tuple[Column, Column, float]:
    """What takes energy: FLOP and bytes from L2 of each candidate, and bytes of device memory."""
    return 2 * of.m * of.n * of.depth * of.stages * of.ctas, of.traffic, float(problem.min_bytes)
