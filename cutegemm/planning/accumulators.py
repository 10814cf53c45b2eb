# SPDX-License-Identifier: Apache-2.0
"""What a thread's registers hold of a tile: its accumulators, by who computes and what it holds beside them."""

from __future__ import annotations

from cutegemm.arch.limits import Limits
from cutegemm.config import plain
from cutegemm.errors import PlanError, field_error
from cutegemm.families import of_schedule
from cutegemm.families.family import PLAIN_CONSUMERS
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.epilogue import columns_step
from cutegemm.planning.setting import Setting
from cutegemm.spec import GemmSpec


def accumulators(tile: tuple[int, int, int], team: int, limits: Limits) -> int:
    """fp32 registers per thread: its warpgroup's share of BLK_M x BLK_N."""
    return tile[0] * tile[1] // (team * limits.warpgroup)


def ctas_per_sm(spec: GemmSpec) -> int:
    """The CTAs that are to share an SM."""
    return spec.ctas_per_sm if isinstance(spec.ctas_per_sm, int) else 1


def split_reduction(setting: Setting, candidate: Candidate) -> str:
    """Where parts of K meet: as the candidate says; in workspace where the walk cuts them."""
    return "workspace" if setting.spec.scheduler == "stream_k" else candidate.reduction


def most_accumulators(setting: Setting, candidate: Candidate) -> tuple[int, str]:
    """How many accumulators a thread of such a kernel holds at most, whatever its tile, and who holds them.

    Raises:
        PlanError: it leaves no room for the given CTAs of an SM.
    """
    consumers, shared = candidate.consumers, ctas_per_sm(setting.spec)
    roles = of_schedule(candidate.schedule).roles
    if shared > 1:
        if setting.loads.gathers or consumers not in roles.shared_accumulators:
            rule = f"{consumers} consumer warpgroups need all of an SM, and so does a gathering producer"
            raise field_error(PlanError, "ctas_per_sm", shared, rule, 1)
        who = f"{consumers} consumer warpgroups, with {shared} CTAs an SM, hold"
        return roles.shared_accumulators[consumers], who
    # beside its own accumulators a thread holds what it reads of other parts
    adds = split_reduction(setting, candidate) != "none" and not (
        candidate.reduction == "launch" and candidate.depth == 1
    )
    laden = setting.loads.gathers or adds
    if candidate.pingpong:
        most, who = roles.turns[setting.loads.gathers], "a warpgroup of a pingpong kernel holds"
    else:
        most, who = roles.most(consumers, laden), f"{consumers} consumer warpgroups hold"
    if consumers == PLAIN_CONSUMERS and not laden and plain(setting.epilogue, setting.outputs):
        most = max(most, roles.plain_accumulators)
    return most, who


def check_accumulators(setting: Setting, candidate: Candidate) -> None:
    """A thread's registers hold its share of the tile.

    Raises:
        PlanError: they do not.
    """
    tile, team = candidate.tile, candidate.team
    blocks = tile[0] // setting.limits.mma_m
    most, who = most_accumulators(setting, candidate)
    held = accumulators(tile, team, setting.limits)
    if held <= most:
        return
    rule = f"{who} {held} accumulators per thread, more than {most}"
    step = columns_step(setting.outputs, setting.inputs) * setting.gates
    columns = most * 2 * team // blocks // step * step
    if columns:
        raise field_error(PlanError, "tile.n", tile[1], rule, columns)
    rows = most * 2 * team // tile[1] // team * setting.limits.mma_m * team
    raise field_error(PlanError, "tile.m", tile[0], rule, max(rows, setting.limits.mma_m * team))


__all__ = ["accumulators", "check_accumulators", "ctas_per_sm", "most_accumulators", "split_reduction"]
