# SPDX-License-Identifier: Apache-2.0
"""Whether K is worth parts, and how many."""

from __future__ import annotations

import functools

from cutegemm.arch.device import Device
from cutegemm.planning.given import PARTING, gives
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, GemmSpec

# parts of K that the planner chooses among, for products at least so deep, where none of these fields is given
PARTS = (1, 2, 4, 8)
LEAST_SPLIT_K = 2048
# the same where the producer's threads load: 103 x 95 x 1543 takes 5.0 us in eight parts, 7.5 behind a copy (H200)
LEAST_LOADED_K = 1024
# K is deep from so many times D's shorter and longer side on: parts then meet outside clusters too
DEEP = (8, 2)
# times D's longer side, where only the largest tiles are that few
DEEPEST = 4
# rows or columns of D up to which sums of deep K are small enough for clusters
FEW = 32


def given_splits(spec: GemmSpec) -> int:
    """The spec's number of splits, or what it means by the ones of a cluster; 1 where it gives neither.

    A launch needs more than one cluster's sum to add: it gets two where only the cluster's splits are given.
    """
    if isinstance(spec.split_k, int):
        return spec.split_k
    depth = spec.depth or 1
    return 2 * depth if depth > 1 and spec.split_reduction == "launch" else depth


def splits_for(spec: GemmSpec, problem: Problem, device: Device, gathers: bool = False) -> tuple[int, ...]:
    """Parts of K that are worth considering: the given number, or several where tiles are too few for the SMs.

    Args:
        gathers: whether the producer's threads load an operand.
    """
    if isinstance(spec.split_k, int) or spec.depth is not None:
        return (given_splits(spec),)
    least = LEAST_LOADED_K if gathers else LEAST_SPLIT_K
    if not (_open(spec) and few(problem, device, least)):
        return (1,)
    # of deep K no sum in clusters came near that of a launch: 11.0 us and 6.3 at 128 x 128 x 16384 (H200)
    tried = min(problem.m, problem.n) <= FEW or not launched(spec, problem, device)
    return PARTS if tried else (1,)


def launched(spec: GemmSpec, problem: Problem, device: Device, gathers: bool = False) -> bool:
    """Whether the planner considers parts of K that meet outside clusters, as many as fill the SMs (`spread`).

    Args:
        gathers: whether the producer's threads load an operand, which is what is then spread: 147 x 683 x 1187 takes
            7.4 us in four parts, 15 x 2009 x 1369 6.4, in clusters 8.4 and whole 12.7 (H200).
    """
    if spec.split_reduction == "cluster" or not _open(spec):
        return False
    # of fewer tiles clusters do: 975 x 11 x 1995 takes 5.9 us in four parts so, 6.2 in eight by a launch (H200)
    if (
        gathers
        and few(problem, device, LEAST_LOADED_K)
        and PARTS[-1] * tiles_of(problem, 64, 64) > device.sms
    ):
        return True
    return deep(problem, device) or (spec.split_reduction != AUTO and few(problem, device))


def _open(spec: GemmSpec) -> bool:
    """Whether parts of K are the planner's choice; how many pay depends on M (`batch_invariant`)."""
    cut = isinstance(spec.split_k, int) or spec.depth is not None or spec.batch_invariant is True
    return not cut and not gives(spec, *PARTING)


# a plan asks some twenty times
@functools.lru_cache(8)
def deep(problem: Problem, device: Device) -> bool:
    """Whether K is deep beside both sides of a D of few tiles.

    Of the largest: 544 x 2632 x 17208 takes 87 us in 128 x 192 in two parts, 105 in one wave of 128 x 96 (H200).
    """
    short, long = sorted((problem.m, problem.n))
    fits = few(problem, device)
    tiles = min(tiles_of(problem, 128, 256), tiles_of(problem, 256, 128))
    least = max(LEAST_SPLIT_K, DEEP[0] * short, (DEEP[1] if fits else DEEPEST) * long)
    return problem.k >= least and (fits or 2 * tiles <= device.sms)


def few(problem: Problem, device: Device, least: int = LEAST_SPLIT_K) -> bool:
    """Whether tiles are too few for the SMs and K is worth parts."""
    return problem.k >= least and 2 * tiles_of(problem, 128, 128) <= device.sms


def tiles_of(problem: Problem, m: int, n: int) -> int:
    """CTA tiles of so many rows and columns that cover D."""
    return -(-problem.m // m) * -(-problem.n // n) * problem.batch


def fewest_parts(steps: int, most: int) -> int:
    """The fewest parts of so many k tiles of which the longest is as long as with `most` parts."""
    return -(-steps // -(-steps // most))
