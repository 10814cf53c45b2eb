# SPDX-License-Identifier: Apache-2.0
"""Random problems of frozen distributions: training problems of the cost model, and problems that judge it.

A seed gives every family a list of problems. Seeds below `TRAINING_SEEDS` are for fitting. A reported run draws with a
digest of the measured sources (`fresh_tree`), so nobody can have seen its problems.

Training and reported problems never share an (N, K), in either order: a hash assigns each pair to one side, for all
training seeds. Pairs of the committed suites are always on the training side.

The distributions are frozen, since figures of different distributions cannot be compared.
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
import re
from dataclasses import dataclass

from benchmarks import suites
from benchmarks.results import Case

TRAINING_SEEDS = 1000
COUNT = 40
DTYPE = "bf16"
MOST_BYTES = 4 << 30  # of A, B and D together
COARSE, FINE = 128, 8  # N and K are multiples of either
COARSE_SHARE = 0.7
THIN_COLUMNS = 1 / 3  # share of `odd_skinny` whose N is the thin extent, not M
Range = tuple[int, int]  # least and greatest


@dataclass(frozen=True, kw_only=True)
class Family:
    """The distribution of one kind of problem; every extent is log-uniform.

    Attributes:
        m, n, k, batch: least and greatest extent.
        majors: unit-stride axes of A and B, as in `results.Case`.
        cube: whether M and K equal N.
        odd: whether N and K are arbitrary integers, but not both multiples of 8.
        flip: share of problems with M and N exchanged.
    """

    m: Range
    n: Range
    k: Range
    batch: Range = (1, 1)
    majors: str = "kk"
    cube: bool = False
    odd: bool = False
    flip: float = 0.0


def _square(majors: str) -> Family:
    size = (768, 16_384)
    return Family(m=size, n=size, k=size, majors=majors, cube=True)


def _prefill(majors: str) -> Family:
    return Family(m=(1024, 8192), n=(1024, 57_344), k=(512, 32_768), majors=majors)


# BLAS's names of layouts: TN, without a suffix, has a row-major A and a column-major B; NN has both column-major.
MAJORS = {"nn": "mk", "nt": "mn", "tt": "kn"}
FAMILIES = {
    "square": _square("kk"),
    "prefill": _prefill("kk"),
    "decode": Family(m=(1, 64), n=(1024, 57_344), k=(1024, 32_768)),
    "wide_decode": Family(m=(65, 256), n=(1024, 57_344), k=(1024, 32_768)),
    "deep_k": Family(m=(64, 1024), n=(64, 4096), k=(8192, 65_536)),
    "few_columns": Family(m=(1024, 32_768), n=(8, 64), k=(1024, 32_768)),
    "odd": Family(m=(512, 8192), n=(512, 8192), k=(512, 8192), odd=True),
    "odd_skinny": Family(m=(1, 333), n=(1024, 50_257), k=(256, 8192), odd=True, flip=THIN_COLUMNS),
    "small": Family(m=(64, 1024), n=(64, 1024), k=(64, 1024)),
    "batched": Family(m=(1, 4096), n=(64, 4096), k=(64, 4096), batch=(2, 256)),
    # layers N x K and K x N alternate
    "chain": Family(m=(1, 64), n=(1024, 16_384), k=(1024, 16_384)),
    **{f"square_{name}": _square(majors) for name, majors in MAJORS.items()},
    **{f"prefill_{name}": _prefill(majors) for name, majors in MAJORS.items()},
}


def draw(family: str, seed: int | str, count: int = COUNT) -> list[Case]:
    """A family's problems with a seed, without repeated (N, K).

    Args:
        family: of `FAMILIES`.
        seed: a number below `TRAINING_SEEDS`, or the SHA-256 of a reported run in hexadecimal.
        count: number of problems; a smaller count gives the first of a larger one.

    Raises:
        ValueError: the seed is neither.
    """
    training = isinstance(seed, int)
    if not (0 <= seed < TRAINING_SEEDS if isinstance(seed, int) else re.fullmatch("[0-9a-f]{64}", seed)):
        raise ValueError(f"seed {seed!r}: must be a number below {TRAINING_SEEDS} or 64 hexadecimal digits")
    source = random.Random(int(hashlib.sha256(f"{seed}/{family}".encode()).hexdigest(), 16))
    found: dict[tuple[int, int], Case] = {}
    while len(found) < count:
        case = _problem(family, FAMILIES[family], source)
        elements = case.batch * (case.m * case.k + case.k * case.n + case.m * case.n)
        pair = case.n, case.k
        if 2 * elements <= MOST_BYTES and pair not in found and for_training(*pair) == training:
            found[pair] = case
    return list(found.values())


def for_training(n: int, k: int) -> bool:
    """Whether an (N, K), in either order, belongs to training seeds; all others belong to reported runs."""
    pair = min(n, k), max(n, k)
    return pair in _committed() or hashlib.sha256("{}x{}".format(*pair).encode()).digest()[0] % 2 == 0


@functools.cache
def _committed() -> frozenset[tuple[int, int]]:
    """The (N, K) of the committed suites, on which kernels were tuned."""
    sizes = [(n, k) for suite in suites.PRODUCTS for _, _, n, k in suites.extents(suite)]
    sizes += [layer for chain in suites.CHAINS for layer in chain]
    sizes += [(n, k) for _, _, (_, n, k) in suites.EPILOGUES]
    return frozenset((min(pair), max(pair)) for pair in sizes)


def _problem(name: str, family: Family, source: random.Random) -> Case:
    """One problem of a family, before it is filtered by size and side.

    `random.Random.random` gives the same numbers in every version of Python.
    """

    def near(low: int, high: int, step: int = 1) -> int:
        """A multiple of `step` between the bounds."""
        value = math.exp(math.log(low) + source.random() * (math.log(high) - math.log(low)))
        return min(high // step, max(-(-low // step), round(value / step))) * step

    def unit(high: int) -> int:
        """The unit of N or K."""
        coarse = source.random() < COARSE_SHARE and high >= COARSE
        return COARSE if coarse else FINE

    batch = near(*family.batch)
    if family.cube:
        size = near(*family.n, unit(family.n[1]))
        return Case(suite=name, dtype=DTYPE, majors=family.majors, m=size, n=size, k=size)
    # a column-major A needs an aligned M, as the other operands need aligned N and K
    m = near(*family.m, 1 if family.majors[0] == "k" else FINE)
    if not family.odd:
        n, k = near(*family.n, unit(family.n[1])), near(*family.k, unit(family.k[1]))
        return Case(suite=name, dtype=DTYPE, majors=family.majors, batch=batch, m=m, n=n, k=k)
    n, k = near(*family.n), near(*family.k)
    if source.random() < family.flip:
        m, n = n, m
    if n % FINE == 0 and k % FINE == 0:
        return _problem(name, family, source)
    return Case(suite=name, dtype=DTYPE, majors=family.majors, m=m, n=n, k=k)
