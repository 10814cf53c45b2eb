# SPDX-License-Identifier: Apache-2.0
"""Choosing a tensor-core kernel: the config that costs least of those that serve every given field.

If none of the cheapest serves, everything else that the given fields allow is tried: other tiles, schedules and teams,
direct stores. A spec is refused only if all of that fails, with the first error that is about what was given.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from cutegemm.arch.device import Device
from cutegemm.config import KernelConfig
from cutegemm.config.invariants.tiles import legal_swizzles, rows_step
from cutegemm.config.registers import most_accumulators
from cutegemm.config.spills import spills
from cutegemm.errors import PlanError, field_error
from cutegemm.planning import candidates, invariance, swap
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.epilogue_plan import subtile_columns
from cutegemm.planning.kernel_fields import configured, drafted, kind_of
from cutegemm.planning.launches import Grid, check_per_tile, check_sms, grid_of
from cutegemm.planning.requirements import Request
from cutegemm.planning.ways import Option, Order, Setting, direct, turned, ways_of
from cutegemm.spec import AUTO, GemmSpec

NONE = range(0)


def passes(setting: Setting, kind: Candidate, n: int, k: int, counts: range) -> range:
    """Of so many passes over a tile's rows those that parts of K, swizzles, buffers and shared memory leave.

    Counts the given stages, or two, and the given buffers of outputs; what else lies beside them takes more.

    Args:
        kind: a candidate but for its tile.
        n, k: the tile's columns and depth.
        counts: passes of the consumers that share a tile.
    """
    spec, (a, b), mma_m = setting.spec, setting.loads.operands, setting.limits.mma_m
    if kind.splits > max(1, -(-setting.problem.k // k)):
        return NONE
    columns = n // b.halves
    if spec.swizzle != AUTO:
        # rows of an A that is contiguous along them are whole rows of some swizzle, which one is up to their number
        wide = spec.swizzle in legal_swizzles(b, columns, k) and (
            not a.k_major or spec.swizzle in legal_swizzles(a, mma_m, k)
        )
        if not wide:
            return NONE
    stages = spec.stages if isinstance(spec.stages, int) else 2 if spec.tile == AUTO else 1
    shared = spec.ctas_per_sm if isinstance(spec.ctas_per_sm, int) else 1
    room = setting.limits.smem_bytes // shared - stages * n * k * b.dtype.bytes
    least = 1
    # of a cluster that adds up parts every CTA stores a slice of its own
    if isinstance(spec.epilogue_stages, int) and kind.depth == 1:
        width = subtile_columns(columns, setting.outputs, setting.inputs)
        through = sum(x.dtype.bytes for x in setting.outputs if x.store != "direct")
        room -= spec.epilogue_stages * kind.consumers * mma_m * width * through
        least = -(-spec.epilogue_stages // (columns // width))
    most = room // (stages * mma_m * a.halves * kind.team * k * a.dtype.bytes)
    return range(max(counts.start, least), min(counts.stop, most + 1))


# configs of the generator's that are tried: what so many refuse, the others do
TRIES = 64


class Chosen(NamedTuple):
    """A kernel that serves, the option that it comes from, and its launch."""

    option: Option
    config: KernelConfig
    grid: Grid

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, one line each; of a candidate that was given there is nothing to say."""
        ns, way, candidate = self.option
        if way.setting.spec.tile != AUTO:
            return way.setting.reasons
        why = f"costs least, {ns / 1e3:,.1f} us" if ns else "the given fields leave little else"
        return (*way.setting.reasons, f"{candidate}: {why}")


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
    # imports NumPy
    from cutegemm.planning.ranking import options

    check_per_tile(asked.spec, asked.problem, asked.device.limits)
    refusals, shown = Refusals(asked.spec), turned(asked)[0]
    spilling: Chosen | None = None
    first = itertools.islice(order(options(asked)), TRIES)
    for option in itertools.chain(first, _others(asked, refusals)):
        _, way, candidate = option
        if not invariance.allows(way.seen, candidate):
            continue
        try:
            config, grid = served(way.setting, candidate, asked.device)
        except PlanError as error:
            if way.swapped == shown:
                refusals.add(swap.error_in_d(error) if shown else error)
            continue
        found = Chosen(option, config, grid)
        if asked.spec.tile != AUTO or not spills(config):
            return found
        spilling = spilling or found
    if spilling is not None:
        return spilling
    raise refusals.error()


def _others(asked: Request, refusals: Refusals) -> Iterator[Option]:
    """Everything else that could serve a spec, one way round, whatever it costs.

    Where no tile fixes what a kind of candidate breaks, none is tried; and once it is known what to refuse with, none
    that is quickly known not to serve.
    """
    swapped = turned(asked)[0]
    found = [x for x in ways_of(asked) if x.swapped == swapped]
    found += [x._replace(setting=y) for x in found if (y := direct(x.setting)) is not None]
    for way in found:
        setting, spec = way.setting, way.seen.spec
        limits = setting.limits
        for kind in candidates.kinds(spec, limits):
            error = _broken(spec, setting, kind)
            if error:
                refusals.add(swap.error_in_d(error) if swapped else error)
                continue
            rows = rows_step(limits, kind.team, setting.halves)
            elements = most_accumulators(drafted(setting, kind)) * kind.team * limits.warpgroup
            for n, k, counts in candidates.shapes(spec, kind, limits, elements, rows, setting.gates):
                for count in counts if refusals.first is None else passes(setting, kind, n, k, counts):
                    yield Option(0.0, way, kind._replace(tile=(rows * count, n, k)))


def _broken(spec: GemmSpec, setting: Setting, kind: Candidate) -> PlanError | None:
    """What a kind of candidate breaks that no tile mends, if anything."""
    try:
        kind_of(setting, kind)
        check_sms(spec, math.prod(kind.cluster) * kind.depth)
    except PlanError as error:
        return error
    return None


def served(setting: Setting, candidate: Candidate, device: Device) -> tuple[KernelConfig, Grid]:
    """The kernel and the launch of a candidate.

    Raises:
        PlanError: it does not serve.
    """
    config = configured(setting, candidate)
    spec = setting.spec
    grid = grid_of(spec, setting.problem, config, device)
    if config.stages < 2 and spec.stages == AUTO and spec.tile == AUTO:
        rule = "loads and products of one stage would alternate"
        raise field_error(PlanError, "stages", config.stages, rule, 2)
    return config, grid
