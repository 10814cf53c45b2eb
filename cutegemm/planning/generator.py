# SPDX-License-Identifier: Apache-2.0
"""All configs for a class of problems, as arrays. NumPy is imported with this module, not with the package.

A table depends on a `Kind` and is made once: the cross product of teams, columns, depths and clusters, pruned by
`config.invariants`. A given field leaves only its own value, which is added if the usual axes lack it. Splits of K
depend on the problem and are added if it has too few tiles for the SMs. Stages, stores and raster follow later
(`kernel_fields`), for the few configs that are predicted fastest.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cutegemm.arch.device import Device
from cutegemm.arch.instructions import instruction
from cutegemm.config import SECTOR, KernelDraft, registers, smem_budget
from cutegemm.config.invariants import BUFFERS, TILE, satisfied
from cutegemm.config.invariants.tiles import rows_step
from cutegemm.config.numbers import divides
from cutegemm.config.spills import spills
from cutegemm.planning.candidates import TENSOR_CORE_SCHEDULES as SCHEDULES
from cutegemm.planning.candidates import Candidate, cut, given, given_splits, schedules
from cutegemm.planning.cost import (
    BY_LAUNCH,
    COOPERATIVE,
    IN_CLUSTER,
    MULTISTAGE,
    PINGPONG,
    REDUCTIONS,
    Column,
    Rows,
)
from cutegemm.planning.kernel_fields import drafted, outlined
from cutegemm.planning.seen import FEW_STAGES, Seen, by_way
from cutegemm.planning.ways import SHALLOW, Kind, Way, only_depth
from cutegemm.plans.launch_limits import MOST_COUNTED
from cutegemm.spec import AUTO, MAX_SPLITS, GemmSpec

# CTAs along M and N that share operands
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
# CTAs of a cluster beyond which tiles must be small: larger clusters gain no more, and leave SMs of a GPU idle
MOST_SHARED = 4
# schedule, consumers and rows, which are whole instructions of each warpgroup
TEAMS = (
    (COOPERATIVE, 1, 64),
    (COOPERATIVE, 1, 128),
    (COOPERATIVE, 2, 128),
    (COOPERATIVE, 2, 256),
    (COOPERATIVE, 3, 192),
    (PINGPONG, 2, 64),
    (PINGPONG, 2, 128),
    (MULTISTAGE, 1, 64),
)
# bytes along K of a stage, and rows and columns together up to which it may be the deeper one, since a pipeline of
# larger stages has too few of them, and up to which CTAs load tiles in turn and splits have all steps of columns
DEPTHS = (128, 256)
DEEP_EDGES = 192
# stages with which loads overlap the mainloop: by TMA, and by threads, which have two stages in flight
LEAST_STAGES = 3
LEAST_LOADED = 2
# least k tiles of a split, and splits that a cluster reduces
LEAST_STEPS = 3
HELD = (4, 8)
# waves of tiles beyond which K is not split, and waves that splits may fill
SPLIT_WAVES = 1.5
FILLED_WAVES = (1, 2)
# columns above which tiles of a row-major D or B are whole swizzle rows wide, and those with scales of blocks have few
NARROW_COLUMNS = 64
# columns below which a warpgroup that loads and multiplies waits for its own loads
BARE_COLUMNS = 32
# scales of blocks of B in a stage, each of an aligned power of two of the tile's columns, of tiles that are not narrow:
# a thread reads every one and multiplies it by those of its two rows before it adds the stage's sums
MOST_SCALES = 4
# index of the columns that splits change
SPLITS = Rows._fields.index("splits")

Extents = tuple[int, int, int]  # of a tile


@functools.lru_cache(256)
def tables(kinds: tuple[Kind, ...]) -> Rows:
    """The concatenated tables of several kinds; a row's `way` is the index of its kind."""
    found = [table(kind)._replace(way=np.full_like(table(kind).m, place)) for place, kind in enumerate(kinds)]
    return Rows(*np.concatenate(found, axis=1))


@functools.lru_cache(256)
def table(kind: Kind) -> Rows:
    """All configs without splits of K."""
    spec, found = kind.spec, [np.zeros((8, 0))]
    for codes in ((COOPERATIVE, PINGPONG), (MULTISTAGE,)):
        teams = [x for x in _teams(kind, spec) if x[0] in codes]
        flat = list(_product(kind, spec, teams))
        if not flat:
            continue
        columns = np.array(flat, dtype=np.int64).T
        m, n, k, across, along, schedule, consumers = columns
        every = Candidate((m, n, k), (across, along), SCHEDULES[schedule[0]], consumers)
        draft = outlined(kind, every, kind.operands, pingpong=schedule == PINGPONG)
        with np.errstate(divide="ignore"):
            legal = satisfied(draft, (*TILE, *BUFFERS)) & _fits(kind, spec, draft)
            clean = legal & (spills(draft) ^ True)
            summed = dataclasses.replace(draft, split_reduction="cluster", splits=2, cluster_splits=2)
            adds = draft.held_values <= registers.most_accumulators(summed)
        # configs that spill are better than none
        legal = clean if clean.any() else legal
        found.append(np.stack(np.broadcast_arrays(*columns, adds))[:, legal].astype(np.float64))
    m, n, k, across, along, schedule, consumers, adds = np.concatenate(found, axis=1)
    one, none = np.ones_like(m), np.zeros_like(m)
    return Rows(m, n, k, across, along, schedule, consumers, one, one, none, none, adds)


def _teams(kind: Kind, spec: GemmSpec) -> list[tuple[int, int, int]]:
    """(schedule, consumers, rows) that a spec allows, also with numbers of consumers that are not usual."""
    allowed = [SCHEDULES.index(x) for x in schedules(spec)]
    if kind.gathers and spec.schedule == AUTO:
        # loads by threads take longer than the epilogue that pingpong would hide
        allowed = [COOPERATIVE]
    found = [x for x in TEAMS if x[0] in allowed and spec.consumers in (AUTO, x[1])]
    if not found and isinstance(spec.consumers, int):
        found = [(i, spec.consumers, rows_step(kind.limits, spec.consumers)) for i in allowed]
    return [(i, count, m * x) for i, count, m in found for x in range(1, kind.operands[0].halves + 1)]


def _product(kind: Kind, spec: GemmSpec, teams: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, ...]]:
    """(rows, columns, depth, CTAs along M and N, schedule, consumers) of all configs before pruning."""
    columns, depth = kind.pinned
    types = kind.operands[0].dtype, kind.operands[1].dtype
    multiply = instruction(*types, spec.arithmetic)
    widths = (columns,) if columns else multiply.columns
    size = max(x.dtype.bytes for x in kind.operands) * multiply.parts
    depths = tuple(x // size for x in DEPTHS)
    usual = (SHALLOW,) if kind.shallow else depths
    if only := only_depth(kind):
        usual = (only,)
    elif kind.promoted:
        usual = tuple(x for x in usual if kind.promoted % x == 0) or (math.gcd(kind.promoted, depths[0]),)
    # an operand that threads load is not multicast
    clusters = (spec.plane,) if spec.plane else CLUSTERS[:1] if kind.gathers else CLUSTERS
    for (schedule, count, m), n, k in itertools.product(teams, widths, (depth,) if depth else usual):
        small = m + n <= DEEP_EDGES
        if k <= min(usual) or (small and schedule != PINGPONG) or depth:
            for across, along in clusters:
                if across * along <= MOST_SHARED or small or spec.plane:
                    yield m, n, k, across, along, schedule, count


def fitting(way: Way, kind: Candidate, tiles: Iterable[Extents]) -> Iterator[Extents]:
    """The tiles that invariants allow a kind of candidate, with the given buffers and stages."""
    columns = np.array(list(tiles), dtype=np.int64).T
    if not columns.size:
        return
    draft, spec = drafted(way, kind._replace(tile=tuple(columns))), way.spec
    # two stages, or loads and instructions of one would alternate
    least = given(spec.stages, 2 if spec.tile == AUTO else 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        legal = satisfied(draft, TILE) & (kind.splits <= -(-way.problem.k // columns[2]))
        if kind.depth == 1:
            # of a cluster that adds up splits every CTA stores a slice of its own
            legal = legal & satisfied(draft, BUFFERS) & (smem_budget.room(draft) >= least)
    yield from map(tuple, columns.T[legal].tolist())


def _fits(kind: Kind, spec: GemmSpec, draft: KernelDraft) -> NDArray[np.bool_]:
    """Which configs have room for their stages, and no columns that are always worse than others."""
    least = LEAST_LOADED if kind.gathers else LEAST_STAGES
    columns = draft.columns
    fits = smem_budget.room(draft) >= given(spec.stages, least)
    if isinstance(spec.sms, int):
        fits = fits & ((draft.cluster_size <= spec.sms) | (spec.plane is not None))
    # a larger tile has a width near by that divides
    small = draft.tile[0] + draft.tile[1] <= (DEEP_EDGES if kind.stages > FEW_STAGES else 0)
    for item in draft.stage:
        fits = fits & (small | np.logical_not(item.in_turn))
    if not kind.operands[1].k_major:
        fits = fits & (columns % 16 == 0) & ((columns % 32 == 0) | (columns < NARROW_COLUMNS))
    if not draft.producers and spec.schedule == AUTO:
        fits = fits & (columns >= BARE_COLUMNS)
    for scale in kind.epilogue.scales:
        if scale.axis == "n" and scale.extent > 1 and not kind.pinned[0]:
            fits = fits & ((draft.scales_of(scale) <= MOST_SCALES) | (columns <= NARROW_COLUMNS))
    if any(x.major == "n" for x in kind.outputs):
        fits = fits & ((columns * 2 % SECTOR == 0) | (columns <= NARROW_COLUMNS))
    found: NDArray[np.bool_] = fits
    return found


def split(spec: GemmSpec, gemms: Sequence[Seen], device: Device, of: Rows) -> Rows:
    """The configs, and for few tiles also configs with splits of K; if a spec gives splits, only those.

    By default clusters or a launch reduce the splits. `gemms` has one of each way.
    """
    if isinstance(spec.split_k, int) or spec.depth is not None:
        return _given(spec, gemms[0], device, of)
    if spec.batch_invariant is True or spec.scheduler in ("stream_k", "dynamic") or not len(of.m):
        # the best number of splits depends on M
        return of
    # ways of a request differ in orientation, which exchanges M and N, and in loads
    x, way = gemms[0], of.way.astype(np.intp)
    m, n = by_way([y.m for y in gemms], way), by_way([y.n for y in gemms], way)
    planes = np.ceil(m / (of.m * of.across)) * np.ceil(n / (of.n * of.along)) * x.batch
    resident = np.array([device.resident_clusters(x) for x in range(1, 9)], dtype=np.float64)
    resident = resident[(of.across * of.along).astype(np.intp) - 1]
    steps = np.ceil(x.k / of.k)
    # only cooperative kernels reduce splits
    few = (of.schedule == COOPERATIVE) & (planes < SPLIT_WAVES * resident) & (steps >= 2 * LEAST_STEPS)
    if not few.any():
        return of
    # splits need no clusters of eight, and steps of eight columns in narrow or small tiles only
    fine = (of.n <= NARROW_COLUMNS) | (of.m + of.n <= DEEP_EDGES) | divides(16, of.n)
    few &= (of.across * of.along <= MOST_SHARED) & fine
    found = [np.array(of)]
    flat = found[0][:, few]
    base = Rows(*flat)
    planes, resident, steps = planes[few], resident[few], steps[few]
    if spec.split_reduction in (AUTO, "cluster"):
        size = base.across * base.along
        # sums that a CTA receives from others lie beside its stages
        sums = 4 * base.m * base.n + LEAST_STAGES * (base.m + base.n) * base.k * x.size
        added = (base.adds > 0) & (sums <= device.limits.smem_bytes)
        for held in HELD:
            most = np.minimum(device.limits.max_cluster, device.sms / planes)
            fits = added & (size * held <= most) & (steps >= LEAST_STEPS * held)
            found.append(_with(flat, fits, np.full_like(steps, held), held, IN_CLUSTER))
    if spec.split_reduction != "cluster":
        how = BY_LAUNCH if spec.split_reduction == AUTO else REDUCTIONS.index(spec.split_reduction)
        seen = np.ones_like(steps)
        for waves in FILLED_WAVES:
            most = np.floor(np.minimum(waves * resident / planes, steps / LEAST_STEPS))
            most = np.minimum(most, np.floor(MOST_COUNTED / steps))
            parts = np.ceil(steps / np.ceil(steps / np.clip(most, 1, MAX_SPLITS)))
            found.append(_with(flat, parts != seen, parts, 1, how))
            seen = parts
    return Rows(*np.concatenate(found, axis=1))


def _with(flat: Column, fits: Column, parts: Column, held: int, reduction: int) -> Column:
    """Some of the configs, with splits."""
    some = flat[:, fits]
    some[SPLITS], some[SPLITS + 1], some[SPLITS + 2] = parts[fits], held, reduction
    return some


def _given(spec: GemmSpec, x: Seen, device: Device, of: Rows) -> Rows:
    """The configs with the given splits, reduced as the spec says."""
    parts, flat, found = given_splits(spec), np.array(of), [np.zeros((len(of), 0))]
    for across, along in sorted(set(zip(of.across.tolist(), of.along.tolist(), strict=True))):
        plane = int(across), int(along)
        one = cut(spec, Candidate((0, 0, 0), plane, SCHEDULES[COOPERATIVE], 1), parts, device.limits)
        fits = (of.across == across) & (of.along == along) & (parts <= np.ceil(x.k / of.k))
        if parts > 1:
            fits &= (of.schedule == COOPERATIVE) & ((of.adds > 0) | (one.depth == 1))
        fits &= across * along * one.depth <= min(device.sms, device.limits.max_cluster)
        reduction = REDUCTIONS.index(one.reduction)
        found.append(_with(flat, fits, np.full(flat.shape[1], float(parts)), one.depth, reduction))
    return Rows(*np.concatenate(found, axis=1))


def candidate(of: Rows, place: int) -> Candidate:
    """One of the rows as a candidate."""
    m, n, k, across, along, schedule, consumers, splits, held, reduction, *_ = (int(x[place]) for x in of)
    how = SCHEDULES[schedule], consumers, splits, held, REDUCTIONS[reduction]
    return Candidate((m, n, k), (across, along), *how)


def rows(candidates: Sequence[Candidate]) -> Rows:
    """Candidates as columns."""
    flat = []
    for x in candidates:
        how = SCHEDULES.index(x.schedule), x.consumers, x.splits, x.depth, REDUCTIONS.index(x.reduction)
        flat.append((*x.tile, *x.cluster, *how, 0, 0))
    return Rows(*np.array(flat, dtype=np.float64).T)
