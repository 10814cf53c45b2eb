# SPDX-License-Identifier: Apache-2.0
"""Committed sweeps as problems that `benchmarks.fit_cost` fits: configs whose kernels are as they were measured."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks import sweep_draws, sweep_rows
from cutegemm import Problem, problem
from cutegemm.arch.device import CostModel, Device
from cutegemm.arch.instructions import instruction
from cutegemm.dtypes import DType
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.cost import REDUCTIONS
from cutegemm.planning.kernel_fields import drifts
from cutegemm.planning.seen import FEW_STAGES
from cutegemm.request.swap import transposed_problem

SWEEPS = Path(__file__).parent / "results" / "sweeps"
# weight of problems of older sweeps, which have fewer and more similar configs
OLDER_WEIGHT = 0.6
# weight of problems with 1 x 128 scales in both operands, of which there are few
OWN_WEIGHT = 3.0
# kinds of scales that multiply partial sums
BLOCKS = ("block", "blocks")
# K up to which panels of kernels without a producer lay along N in tables without `plain`
LOCKSTEP_K = 2048
# the family with constant weights, whose launches overlap; only ratios of its times count
CHAIN = "chain"
# elements of K between promotions of fp8 kernels with D in bf16, in tables that do not say it
PROMOTED = instruction(DType.FP8_E4M3, DType.FP8_E4M3).coarse


@dataclasses.dataclass(frozen=True)
class Measured:
    """Configs of one problem.

    Attributes:
        family: of the problem.
        configs: (whether operands are swapped, candidate of the kernel's GEMM).
        us: time of each config.
        settled: whether times are microseconds, not shares of a baseline's time.
        weight: of the problem.
        chosen: microseconds of the planner's choice at the time of the sweep.
        held_back: whether the problem is excluded from the fit.
        scales: kind of scales in `benchmarks.probes.fp8`; "" without any.
        promote: elements of K between promotions of unscaled partial sums; 0 is never.
        stages: of the pipeline at most.
        plain: whether CTAs without a cluster were placed on one GPC after another, not in turn.
    """

    family: str
    problem: Problem
    configs: list[tuple[bool, Candidate]]
    us: list[float]
    settled: bool = True
    weight: float = 1.0
    chosen: float | None = None
    held_back: bool = False
    scales: str = ""
    promote: int = 0
    stages: int = FEW_STAGES
    plain: bool = False


def fresh(path: Path, device: Device) -> list[Measured]:
    """The problems of a sweep whose operands TMA loads.

    Configs that specify more than a candidate are left out. So are kernels that have changed (`sweep_table`): in tables
    without `counter` lists of tiles, in those without `plain` kernels without a producer whose raster was another, and
    in those without `gpcs` splits, with the problem if one was the fastest.
    """
    found = []
    for x in json.loads(path.read_text())["cases"]:
        of = problem(
            x["m"], x["n"], x["k"], batch=x["batch"], majors=x["majors"], dtype=x.get("dtype", "bf16")
        )
        if of.a.tma_reason() is not None or of.b.tma_reason() is not None:
            continue
        configs, us, chosen, least = [], [], None, math.inf
        # no counter with scales of blocks or constant operands (`kernel_fields.takes_numbers`)
        listed = not x.get("counter", False) and x.get("kind", "") not in BLOCKS and x["suite"] != CHAIN
        for row in x["rows"]:
            config = sweep_draws.read_config(row)
            took, _, extra = row[len(sweep_draws.COLUMNS) :]
            turned = transposed_problem(of) if config[0] else of
            replaced = listed and drifts(turned, config[1], device)
            replaced |= not x.get("plain", False) and turned_panels(turned, config[1])
            if not x.get("gpcs", False) and sweep_rows.splits_changed(config[1], device):
                replaced, least = True, min(took, least)
            if not replaced and not extra.keys() - {"chosen"} and config[1].reduction in REDUCTIONS:
                configs.append(config)
                us.append(took)
                chosen = took if "chosen" in extra else chosen
        held, settled = x.get("held_back", False), x["suite"] != CHAIN
        if len(us) > 1 and min(us) <= least:
            scales = x.get("kind", "")
            family = f"fp8 {scales}" if scales else x["suite"]
            weight = OWN_WEIGHT if scales == "blocks" else 1.0
            promote = x.get("promote", PROMOTED) if scales and scales not in BLOCKS else 0
            stages = x.get("stages", FEW_STAGES) if settled else FEW_STAGES
            measured = Measured(
                family, of, configs, us, settled, weight, chosen, held, scales, promote, stages
            )
            found.append(dataclasses.replace(measured, plain=x.get("plain", False)))
    return found


def turned_panels(of: Problem, x: Candidate) -> bool:
    """Whether panels of the raster lay along N where no warp only loads, before `plain`."""
    return x.schedule == "multistage" and of.k <= LOCKSTEP_K and of.batch == 1


def older(paths: Sequence[Path], device: Device, start: CostModel) -> list[Measured]:
    """The problems of `benchmarks.sweep_rows` whose operands TMA loads; only ratios of their times count.

    Args:
        start: rates by which unspecified fields are planned; with the record's a second fit would give other rates.
    """
    found = []
    for x in sweep_rows.read(list(paths), dataclasses.replace(device, cost=start, kernels={})):
        of = x.problem
        changed = {c for c in x.us if drifts(of, c, device) or sweep_rows.splits_changed(c, device)}
        changed |= {c for c in x.us if turned_panels(of, c)}
        us = {c: x.us[c] for c in x.us if c not in changed and c.reduction in REDUCTIONS}
        aligned = of.a.tma_reason() is None and of.b.tma_reason() is None
        if x.gpu == device.name and aligned and len(us) > 1:
            configs = [(False, c) for c in us]
            found.append(Measured(f"older {x.suite}", of, configs, list(us.values()), False, OLDER_WEIGHT))
    return found
