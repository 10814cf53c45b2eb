# SPDX-License-Identifier: Apache-2.0
"""Choosing a tensor-core kernel: the first candidate that serves every given field.

What an order puts first is tried first, under the setting that is chosen where nothing stands against it. If no
such candidate serves, everything that the spec leaves open gives way: other tiles, schedules and teams, copies
instead of gathering, direct stores. A spec is refused only if all of that fails, with the first error that is
about what was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cutegemm.config import KernelConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.planning import candidates, cuts, edges, invariance
from cutegemm.planning.candidates import Candidate, Order, Ranked
from cutegemm.planning.grid import Grid, grid_of
from cutegemm.planning.kernel import configured
from cutegemm.planning.request import Request
from cutegemm.planning.setting import Setting, first_setting, settings
from cutegemm.spec import AUTO, GemmSpec, Tile


class Chosen(NamedTuple):
    """A kernel that serves, the setting and the candidate that it comes from, with why it was taken, and its launch."""

    setting: Setting
    ranked: Ranked
    config: KernelConfig
    grid: Grid

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, one line each; of a candidate that was given there is nothing to say."""
        candidate, why, _ = self.ranked
        return (*self.setting.reasons, f"{candidate}: {why}") if why else self.setting.reasons


def choose(asked: Request, order: Order) -> Chosen:
    """The kernel of a request.

    Raises:
        PlanError: the given fields contradict one another or the problem.
    """
    refusals: list[PlanError] = []
    first = first_setting(asked)
    for setting, ranked in tries(asked, first, order):
        if not invariance.allows(asked, ranked.candidate):
            continue
        try:
            config, grid = served(asked, setting, ranked.candidate)
        except PlanError as error:
            refusals.append(error)
            continue
        return Chosen(setting, ranked, config, grid)
    raise _refusal(asked.spec, refusals)


def tries(asked: Request, first: Setting, order: Order) -> Iterator[tuple[Setting, Ranked]]:
    """What to try, best first, each with the reason to give if it serves."""
    for ranked in preferred(asked, first, order):
        yield first, ranked
    for setting in settings(asked, first):
        for candidate in candidates.every(asked.spec, first.gates, first.limits, first.halves):
            yield setting, Ranked(candidate, "the given fields leave little else")


def preferred(asked: Request, first: Setting, order: Order) -> Iterator[Ranked]:
    """What an order puts in its place, or the one candidate that a given tile means."""
    spec, limits = asked.spec, first.limits
    if isinstance(spec.tile, Tile):
        yield Ranked(candidates.given_tile(spec, spec.tile, limits, first.halves), "")
    else:
        n_major = first.problem.b.unit_col
        gathers = first.loads.gathers
        splits = cuts.splits_for(spec, first.problem, asked.device, gathers)
        found = candidates.preferred(
            spec,
            limits,
            gates=first.gates,
            n_major=n_major,
            gathers=gathers,
            splits=splits,
            short=candidates.short(first.problem, asked.device),
            uneven=edges.uneven(first.problem, asked.device),
            shared=not cuts.deep(first.problem, asked.device) and edges.shared(first.problem, asked.device),
            vast=edges.vast(first.problem, asked.device),
        )
        if gathers:
            found = candidates.deepened(found, first.problem.k)
        found += tuple(
            candidates.spread(
                spec, first.problem, asked.device, found, gathers=gathers, fits=first.gates == 1
            )
        )
        yield from order(first.seen, asked.device, first.gates, found)


def served(asked: Request, setting: Setting, candidate: Candidate) -> tuple[KernelConfig, Grid]:
    """The kernel and the launch of a candidate.

    Raises:
        PlanError: it does not serve.
    """
    config = configured(setting, candidate)
    grid = grid_of(asked.spec, setting.problem, config, asked.device)
    if config.stages < 2 and asked.spec.stages == AUTO and asked.spec.tile == AUTO:
        rule = "loads and products of one stage would alternate"
        raise field_error(PlanError, "stages", config.stages, rule, 2)
    return config, grid


def _refusal(spec: GemmSpec, refusals: list[PlanError]) -> PlanError:
    """The first error that is about something given, or about no field of a spec at all."""
    left_open = {name for name in GemmSpec.__dataclass_fields__ if name not in spec.given()}
    about = (x for x in refusals if not any(x.concerns(name) for name in left_open))
    fallback = field_error(PlanError, "tile", AUTO, "no tile serves the other given fields")
    return next(about, fallback)
