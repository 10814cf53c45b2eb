# SPDX-License-Identifier: Apache-2.0
"""Which tile a CUDA-core kernel gets, and how its K is shared out: the fastest predicted of a short list.

A spec may name a tile of the list by its extents, how many tiles of shared memory a ring has, and how K is cut; the
rest of a tile follows from its extents. K is cut where tiles are too few to occupy every SM. Cuts depend on the problem
and the device alone, so equal calls give equal bits.
"""

from __future__ import annotations

import dataclasses
import math

from cutegemm.arch.device import Device
from cutegemm.config import SimtTile
from cutegemm.config.simt import STAGED_STAGES
from cutegemm.config.spills import simt_spills, with_room
from cutegemm.dtypes import DType
from cutegemm.errors import PlanError, field_error
from cutegemm.planning import invariance
from cutegemm.planning.request import Request
from cutegemm.planning.simt_times import estimate, tiles_of
from cutegemm.planning.simt_vectors import loads
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, MAX_STAGES, GemmSpec, Tile, tile_fault

# bytes of the elements that a ring can take: cp.async does not convert
RING_BYTES = 4
# CTAs that share an output tile
SPLITS = (1, 2, 4, 8)
# accumulators of a thread that leave room for a gated pair's
PAIRED_VALUES = 64

# Larger tiles first among equals; of those with the same extents the first that serves. What each reaches on an H200:
# `benchmarks/probes/simt_tiles.py`.
TILES = (
    SimtTile(tile=(128, 128, 8), thread_tile=(16, 8), lanes_m=4, staged=True, residents=2),
    SimtTile(tile=(128, 128, 8), staged=True, residents=2),
    # three of 112 rows are 336
    SimtTile(tile=(112, 128, 8), thread_tile=(14, 8), staged=True, residents=2),
    SimtTile(tile=(64, 128, 16), staged=True, slices=2, residents=2),
    SimtTile(tile=(64, 64, 16), staged=True, slices=4, residents=2),
    SimtTile(tile=(64, 64, 32), thread_tile=(8, 16), staged=True, slices=8, ahead=4),
    SimtTile(tile=(64, 64, 32), staged=True, slices=8),
    SimtTile(tile=(64, 32, 64), staged=True, slices=16, ahead=4),
    SimtTile(tile=(64, 16, 32), thread_tile=(8, 4), slices=8, stages=6, residents=2),
    SimtTile(tile=(16, 64, 32), thread_tile=(4, 8), lanes_m=4, slices=8, stages=6, residents=2),
)


def choose(asked: Request) -> SimtTile:
    """The tile and the cut of K that the model finds fastest for a request.

    Raises:
        PlanError: nothing serves what is given.
    """
    return min(weighed(asked), key=lambda pair: pair[0])[1]


def weighed(asked: Request) -> list[tuple[float, SimtTile]]:
    """(nanoseconds, tile) of everything that may serve a request: `weigh`, with what its spec and epilogue say.

    Raises:
        PlanError: nothing serves what is given.
    """
    found = weigh(
        asked.problem,
        asked.device,
        pairs=asked.epilogue.gated is not None,
        invariant=asked.spec.batch_invariant is True,
        summed=invariance.along_rows(asked),
        # without K there is no mainloop that a tile could be given for
        spec=asked.spec if asked.problem.k else None,
    )
    return _without_spills(asked, found)


def _without_spills(asked: Request, found: list[tuple[float, SimtTile]]) -> list[tuple[float, SimtTile]]:
    """The tiles with as many CTAs an SM as registers allow, without those that spill where there are others."""
    problem, epilogue, limits = asked.problem, asked.epilogue, asked.device.limits
    kept, clean = [], []
    for ns, x in found:
        singles = min(loads(x, problem) or (1,)) == 1
        roomy = with_room(x, epilogue, singles, limits)
        kept.append((ns if roomy is x else estimate(problem, roomy, asked.device), roomy))
        if not simt_spills(roomy, epilogue, singles, limits):
            clean.append(kept[-1])
    return clean if clean and asked.spec.tile == AUTO else kept


def weigh(
    problem: Problem,
    device: Device,
    *,
    pairs: bool = False,
    invariant: bool = False,
    summed: bool = False,
    spec: GemmSpec | None = None,
) -> list[tuple[float, SimtTile]]:
    """(nanoseconds, tile) of every tile and cut of K that may serve, larger tiles and fewer cuts first.

    Args:
        pairs: whether the epilogue takes gated pairs. Of 16-bit operands those are not cut along K, nor shared out: a
            thread's accumulators, single elements in flight and the sum's addresses do not fit its registers.
        invariant: whether the order of additions must not depend on M: every product is added by one thread, unless the
            spec says how.
        summed: whether a reduction along rows must not depend on M either (`invariance.along_rows`).
        spec: what is given: its tile, stages and split_k.

    Raises:
        PlanError: nothing serves what is given.
    """
    asked = GemmSpec() if spec is None else spec
    alone = pairs and problem.a.dtype.bytes != RING_BYTES
    named = isinstance(asked.tile, Tile)
    kinds = _named(_kinds(problem, pairs, alone or (invariant and not named), summed), asked)
    splits = _splits(asked, alone)
    found = []
    for kind in kinds:
        for split in (1,) if splits is None and (alone or invariant) else splits or SPLITS:
            x = dataclasses.replace(kind, split=split)
            if splits is not None or split == 1 or _may_split(problem, x, device):
                found.append((estimate(problem, x, device), x))
    return found


def fields_of(x: SimtTile) -> tuple[tuple[str, object], ...]:
    """Fields of a `GemmSpec` that ask for a tile."""
    stages = STAGED_STAGES if x.staged else x.stages
    return ("schedule", "simt"), ("tile", x.tile), ("stages", stages), ("split_k", x.split)


def has_tile(problem: Problem, tile: Tile) -> bool:
    """Whether a tile of some extents can load a problem's operands."""
    return any(x.tile == tuple(tile) and loads(x, problem) is not None for x in TILES)


def _kinds(problem: Problem, pairs: bool, whole: bool, summed: bool) -> list[SimtTile]:
    """The tiles that serve a problem, one of each extents; `whole` forbids to share out a tile's K.

    Partial results along rows are those of a warp's columns. Where those must be the same for every M (`summed`) it is
    the last of each extents, which serves every problem; a warp of those that do not share out K has 32 columns.
    """
    found: dict[tuple[int, int, int], SimtTile] = {}
    for x in reversed(TILES) if summed else TILES:
        room = not pairs or (x.takes_pairs and math.prod(x.thread_tile) <= PAIRED_VALUES)
        taken = x.staged or problem.a.dtype.bytes == RING_BYTES
        if room and taken and not (whole and x.slices > 1) and loads(x, problem) is not None:
            found.setdefault(x.tile, x)
    return list(found.values())


def _named(kinds: list[SimtTile], spec: GemmSpec) -> list[SimtTile]:
    """Those that have what a spec gives.

    Raises:
        PlanError: none has.
    """
    if isinstance(spec.tile, Tile):
        given = tuple(spec.tile)
        legal = [x.tile for x in kinds]
        kinds = [x for x in kinds if x.tile == given]
        if not kinds:
            raise _no_tile(spec, given, legal)
    if spec.stages == AUTO:
        return kinds
    found = []
    for x in kinds:
        if not x.staged and spec.stages >= STAGED_STAGES:
            found.append(dataclasses.replace(x, stages=spec.stages))
        elif x.staged and spec.stages == STAGED_STAGES:
            found.append(x)
    if not found:
        rings = [x for x in kinds if not x.staged]
        rule = f"tiles that come through registers have {STAGED_STAGES}"
        if rings:
            rule += f", a ring {STAGED_STAGES} to {MAX_STAGES}"
        raise field_error(PlanError, "stages", spec.stages, rule, STAGED_STAGES)
    return found


def _no_tile(spec: GemmSpec, given: tuple[int, ...], legal: list[tuple[int, int, int]]) -> PlanError:
    """What says that a given tile is none of those that are legal, and the nearest that this spec may name."""
    listed = ", ".join("x".join(map(str, x)) for x in legal)
    rule = f"tiles of the CUDA cores are {listed} for these operands and this epilogue"
    if spec.schedule != "simt" and DType.FP32 not in (spec.a_dtype, spec.b_dtype):
        # a spec that does not say that it means the CUDA cores must name what the tensor cores could have, too
        legal = [x for x in legal if None in (tile_fault(Tile(*x)), tile_fault(Tile(*x), swap=True))]
    return field_error(PlanError, "tile", spec.tile, rule, Tile(*min(legal, key=lambda x: _apart(x, given))))


def _splits(spec: GemmSpec, alone: bool) -> tuple[int] | None:
    """The cut that a spec gives; None where it leaves it open.

    Raises:
        PlanError: it is none of the CUDA cores'.
    """
    parts = spec.split_k
    if isinstance(parts, str):
        return None
    if alone and parts != 1:
        rule = "gated pairs of 16-bit operands leave no registers for a sum that CTAs share"
        raise field_error(PlanError, "split_k", parts, rule, 1)
    if parts not in SPLITS:
        rule = f"parts of K on the CUDA cores are added by a cluster of {', '.join(map(str, SPLITS))} CTAs"
        raise field_error(
            PlanError, "split_k", parts, rule, min(SPLITS, key=lambda x: _apart((x,), (parts,)))
        )
    return (parts,)


def _apart(x: tuple[int, ...], y: tuple[int, ...]) -> float:
    """How far two tiles' extents are apart."""
    return sum(abs(math.log(p / q)) for p, q in zip(x, y, strict=True))


def _may_split(problem: Problem, x: SimtTile, device: Device) -> bool:
    """Whether half the cut leaves room on the SMs, and every CTA's part of K fills its ring."""
    room = tiles_of(problem, x) * x.split // 2 < device.sms * x.residents
    return room and problem.k >= x.split * x.tile[2] * x.stages
