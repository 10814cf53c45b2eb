# SPDX-License-Identifier: Apache-2.0
"""Choosing a tensor-core kernel: the first candidate that serves every given field.

What an order puts first is tried first, under the setting that is chosen where nothing stands against it. If no
such candidate serves, everything that the spec leaves open gives way: other tiles, schedules and teams, copies
instead of gathering, direct stores. A spec is refused only if all of that fails, with the first error that is
about what was given.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cutegemm.config import KernelConfig
from cutegemm.config.registers import most_accumulators
from cutegemm.config.spills import spills
from cutegemm.errors import PlanError, field_error
from cutegemm.planning import candidates, invariance
from cutegemm.planning.candidates import NO_TILE, Candidate, Order, Ranked
from cutegemm.planning.grid import Grid, check_per_tile, check_sms, grid_of
from cutegemm.planning.kernel import configured, drafted, kind_of
from cutegemm.planning.listed import listed
from cutegemm.planning.prospects import passes
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


class Refusals:
    """The refusal to give should no candidate serve: the first about something given, or about no field of a spec."""

    def __init__(self, spec: GemmSpec) -> None:
        self._spec = spec
        self.first: PlanError | None = None

    def add(self, error: PlanError) -> None:
        """A candidate is refused."""
        if self.first is None and not any(error.concerns(name) for name in self._open):
            self.first = error

    @functools.cached_property
    def _open(self) -> list[str]:
        given = self._spec.given()
        return [name for name in GemmSpec.__dataclass_fields__ if name not in given]

    def error(self) -> PlanError:
        """What to raise."""
        return self.first or field_error(PlanError, "tile", AUTO, "no tile serves the other given fields")


def choose(asked: Request, order: Order) -> Chosen:
    """The kernel of a request.

    Raises:
        PlanError: the given fields contradict one another or the problem.
    """
    check_per_tile(asked.spec, asked.problem, asked.device.limits)
    refusals = Refusals(asked.spec)
    spilling: Chosen | None = None
    for setting, ranked in tries(asked, first_setting(asked), order, refusals):
        if not invariance.allows(asked, ranked.candidate):
            continue
        try:
            config, grid = served(asked, setting, ranked.candidate)
        except PlanError as error:
            refusals.add(error)
            continue
        found = Chosen(setting, ranked, config, grid)
        if asked.spec.tile != AUTO or not spills(config):
            return found
        spilling = spilling or found
    if spilling is not None:
        return spilling
    raise refusals.error()


def tries(
    asked: Request, first: Setting, order: Order, refusals: Refusals
) -> Iterator[tuple[Setting, Ranked]]:
    """What to try, best first, each with the reason to give if it serves.

    Where no tile mends what a kind of candidate breaks, none is tried; and once it is known what to refuse with,
    none that is quickly known not to serve.
    """
    spec, limits = asked.spec, first.limits
    broken = functools.cache(functools.partial(_broken, spec, first))
    for ranked in preferred(asked, first, order):
        if refusals.first is None or not _hopeless(first, ranked.candidate, broken):
            yield first, ranked
    for setting in settings(asked, first):
        for kind in candidates.kinds(spec, limits):
            error = _broken(spec, setting, kind)
            if error:
                refusals.add(error)
                continue
            rows = limits.mma_m * setting.halves * kind.team
            elements = most_accumulators(drafted(setting, kind)) * kind.team * limits.warpgroup
            for n, k, counts in candidates.shapes(spec, kind, limits, elements, rows, setting.gates):
                for count in counts if refusals.first is None else passes(setting, kind, n, k, counts):
                    candidate = kind._replace(tile=(rows * count, n, k))
                    yield setting, Ranked(candidate, "the given fields leave little else")


def _hopeless(setting: Setting, candidate: Candidate, broken: Callable[[Candidate], object]) -> bool:
    """Whether it is quickly known that a candidate does not serve; `broken` says what its kind breaks."""
    (m, n, k), kind = candidate.tile, candidate._replace(tile=NO_TILE)
    count = m // (setting.limits.mma_m * setting.halves * kind.team)
    return bool(broken(kind)) or not passes(setting, kind, n, k, range(count, count + 1))


def _broken(spec: GemmSpec, setting: Setting, kind: Candidate) -> PlanError | None:
    """What a kind of candidate breaks that no tile mends, if anything."""
    try:
        kind_of(setting, kind)
        check_sms(spec, math.prod(kind.cluster) * kind.depth)
    except PlanError as error:
        return error
    return None


def preferred(asked: Request, first: Setting, order: Order) -> Iterator[Ranked]:
    """What an order puts in its place, or the one candidate that a given tile means."""
    spec, limits = asked.spec, first.limits
    if isinstance(spec.tile, Tile):
        yield Ranked(candidates.given_tile(spec, spec.tile, limits, first.halves), "")
    else:
        found = listed(spec, first.problem, asked.device, first.gates, first.loads.gathers)
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
