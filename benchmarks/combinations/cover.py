# SPDX-License-Identifier: Apache-2.0
"""A covering array: cases that together contain every legal pair of values.

Cases are made one by one, greedily. A case starts from an uncovered pair. Each other field then takes the value that
covers most pairs, if the planner accepts the case. Unnamed fields stay "auto". Pairs that no attempt makes legal are
listed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.combinations.factors import Meaningless, declared
from benchmarks.combinations.fields import (
    AUTO,
    EIGHTS,
    EXTENTS,
    FACTORS,
    FREE,
    POINTS,
    SCALES,
    WITH_BLOCKS,
    Case,
    Value,
)  # fmt: skip
from benchmarks.combinations.graphs import GRAPHS
from cutegemm import plan
from cutegemm.errors import GemmError

NAMES = tuple(FACTORS)
# values per field that are tried for a case, best first
CHOICES = 3
# attempts to make a pair legal: while cases are made, and before the pair is listed as impossible
ATTEMPTS, HARD_ATTEMPTS = 30, 400
Pair = tuple[str, Value, str, Value]
Needs = Callable[[str, Value], Mapping[str, tuple[Value, ...]]]

_WITH_SCALARS = tuple(k for k, g in GRAPHS.items() if g is not None and "scalar" in g.numbers.values())
_WITH_TENSORS = tuple(k for k, g in GRAPHS.items() if g is not None and g.tensors)
_GIVEN = tuple(x for x in FACTORS["out"] if x not in ("new", "in_place"))


_WRITABLE = tuple(x for x in FACTORS["c"] if x not in ("none", "odd"))
_INTEGERS = tuple(x for x in FACTORS["dtype"] if "int" in str(x))
_FLOATS = tuple(x for x in FACTORS["dtype"] if x not in _INTEGERS)


def needs(name: str, value: Value) -> dict[str, tuple[Value, ...]]:
    """The values of other fields that a value needs by the case's own rules, by field."""
    if name in EXTENTS and value != AUTO:
        return {x: tuple(v for v in FACTORS[x] if v != AUTO) for x in EXTENTS if x != name}
    found: dict[tuple[str, Value], dict[str, tuple[Value, ...]]] = {
        ("numbers", "device"): {"epilogue": _WITH_SCALARS},
        ("before", "scalar"): {"numbers": ("device",), "epilogue": _WITH_SCALARS},
        ("before", "input"): {"epilogue": _WITH_TENSORS},
        ("before", "out"): {"out": _GIVEN},
        ("out", "in_place"): {"c": _WRITABLE, "epilogue": ("plain",)},
        ("acc_dtype", "int32"): {"dtype": _INTEGERS},
        ("acc_dtype", "fp32"): {"dtype": _FLOATS},
        ("d_dtype", "int32"): {"dtype": _INTEGERS},
        **{(x, kind): {"dtype": _INTEGERS} for x in POINTS for kind in ("tensor", "row")},
        ("math", "tf32"): {"dtype": ("fp32",)},
        ("math", "tf32x3"): {"dtype": ("fp32",)},
        **{
            ("scales", x): {"dtype": EIGHTS, "c": ("none",)}
            for x in SCALES
            if x not in ("none", *WITH_BLOCKS)
        },
        **{("scales", x): {"dtype": ("fp8_e4m3",), "c": ("none",)} for x in WITH_BLOCKS},
        ("scale_type", "ue8m0"): {"scales": WITH_BLOCKS},
    }
    if name == "inputs" and value != "as_a":
        return {"epilogue": _WITH_TENSORS}
    if name == "c" and value != "none":
        return {"epilogue": ("plain",)}
    return found.get((name, value), {})


def legal(case: Case) -> bool:
    """Whether the planner accepts a case."""
    try:
        made = declared(case)
        plan(made.spec, made.problem)
    except (Meaningless, GemmError):
        return False
    return True


@dataclass
class Array:
    """A covering array that is built case by case.

    Args:
        seed: of every choice.
        accepts: whether a case is legal.
        factors: the fields and their values.
        needs: the values of other fields that a value needs.
        hard: attempts before a pair is listed as impossible.

    Attributes:
        cases: so far.
        impossible: pairs that no attempt made legal.
        asked: number of legality checks.
    """

    seed: int
    accepts: Callable[[Case], bool] = legal
    factors: Mapping[str, tuple[Value, ...]] = field(default_factory=lambda: FACTORS)
    needs: Needs = needs
    hard: int = HARD_ATTEMPTS
    cases: list[dict[str, Value]] = field(default_factory=list)
    impossible: list[Pair] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._names = tuple(self.factors)
        ids = [(name, value) for name in self._names for value in self.factors[name]]
        self._values = ids
        self._id = {x: i for i, x in enumerate(ids)}
        fields = np.array([self._names.index(name) for name, _ in ids])
        # whether a pair is uncovered
        self._todo = fields[:, None] != fields[None, :]
        self.pairs = int(self._todo.sum()) // 2
        self._aside = np.zeros_like(self._todo)

    @property
    def left(self) -> int:
        """Number of pairs that are neither covered nor impossible."""
        return int(self._todo.sum()) // 2

    @property
    def covered(self) -> int:
        """Number of covered pairs."""
        return self.pairs - self.left - len(self.impossible)

    def make(self, most: int | None = None) -> Iterator[dict[str, Value]]:
        """Cases until every pair is covered or impossible, at most `most`."""
        while most is None or len(self.cases) < most:
            case = self._next()
            if case is None:
                return
            self.cases.append(case)
            yield case

    def triples(self, most: int) -> Iterator[dict[str, Value]]:
        """Cases that each contain a random legal triple of values."""
        while most:
            fixed = {name: self._rng.choice(self.factors[name]) for name in self._rng.sample(self._names, 3)}
            start = self._start(fixed, ATTEMPTS, hard=False)
            if start is not None:
                most -= 1
                yield self._grown(start)

    def take(self, cases: Sequence[dict[str, Value]], impossible: Sequence[Pair]) -> None:
        """Continue from stored cases and impossible pairs."""
        for case in cases:
            self.cases.append(case)
            self.count(case)
        for a, v, b, w in impossible:
            i, j = self._id[a, v], self._id[b, w]
            self._todo[i, j] = self._todo[j, i] = False
            self.impossible.append((a, v, b, w))

    def count(self, case: Case) -> None:
        """Mark the pairs of a case as covered; with K = 0 only pairs with that value."""
        ids = [self._id[name, case.get(name, self.factors[name][0])] for name in self._names]
        if case.get("depth") == "zero":
            zero = self._id["depth", "zero"]
            for todo in (self._todo, self._aside):
                todo[zero, ids] = todo[ids, zero] = False
            return
        for todo in (self._todo, self._aside):
            todo[np.ix_(ids, ids)] = False

    def held(self, cases: Iterable[Case]) -> int:
        """The number of pairs that cases cover."""
        fresh = Array(self.seed, self.accepts, self.factors, self.needs)
        for case in cases:
            fresh.count(case)
        return fresh.covered

    def _next(self) -> dict[str, Value] | None:
        while True:
            open_ = np.argwhere(np.triu(self._todo & ~self._aside))
            hard = not len(open_)
            if hard:
                open_ = np.argwhere(np.triu(self._todo))
                if not len(open_):
                    return None
            i, j = open_[self._rng.randrange(len(open_))]
            start = self._start(dict(self._values[x] for x in (i, j)), self.hard if hard else ATTEMPTS, hard)
            if start is not None:
                case = self._grown(start)
                self.count(case)
                return case
            if hard:
                self._todo[i, j] = self._todo[j, i] = False
                self.impossible.append((*self._values[i], *self._values[j]))
            else:
                self._aside[i, j] = self._aside[j, i] = True

    def _legal(self, case: Case) -> bool:
        self.asked += 1
        return self.accepts(case)

    def _start(self, fixed: Case, attempts: int, hard: bool) -> dict[str, Value] | None:
        """A legal case with some values, or None."""
        relatives = [
            c for c in self.cases if any(c.get(n, self.factors[n][0]) == v for n, v in fixed.items())
        ]
        for attempt in range(attempts):
            case = dict(fixed)
            if hard and relatives and attempt % 2:
                # a case with one of the two values, with some fields removed
                other = self._rng.choice(relatives)
                keep = self._rng.random()
                case = {n: v for n, v in other.items() if self._rng.random() < keep} | fixed
            if not self._complete(case, fixed):
                continue
            if attempt and (not hard or not attempt % 2):
                for name in self._rng.sample(self._names, self._rng.randrange(1, 5)):
                    if name not in case:
                        case[name] = self._rng.choice(self.factors[name])
                self._complete(case, fixed)
            if case.get("depth") == "zero" and "depth" not in fixed:
                # with K = 0 the case would not cover the pair
                del case["depth"]
            if self._legal(case):
                return case
        return None

    def _complete(self, case: dict[str, Value], fixed: Case) -> bool:
        """Set other fields to values that the case needs; False if fixed fields forbid it."""
        for _ in range(3):
            for name, value in list(case.items()):
                for other, serve in self.needs(name, value).items():
                    if case.get(other, self.factors[other][0]) in serve:
                        continue
                    if other in fixed:
                        return False
                    case[other] = self._rng.choice(serve)
        return True

    def _grown(self, start: dict[str, Value]) -> dict[str, Value]:
        """A legal case with more fields, each with the value that covers most pairs."""
        case = dict(start)
        order = [name for name in self._names if name not in case]
        self._rng.shuffle(order)
        for name in order:
            if name in case:
                continue
            for value in self._best(case, name)[:CHOICES]:
                if value == self.factors[name][0]:
                    break
                tried = {**case, name: value}
                if self._complete(tried, case) and self._legal(tried):
                    case = tried
                    break
            else:
                continue
            case.setdefault(name, self.factors[name][0])
        return case

    def _best(self, case: Case, name: str) -> list[Value]:
        """A field's values, sorted by the number of uncovered pairs with a case."""
        have = [self._id[x, v] for x, v in case.items()]
        drawn = self._rng.sample(self.factors[name], len(self.factors[name]))
        # a case with K = 0 tests little else
        drawn = [v for v in drawn if (name, v) != ("depth", "zero")]
        return sorted(drawn, key=lambda v: -int(self._todo[self._id[name, v], have].sum()))


def drawn(seed: int, number: int, accepts: Callable[[Case], bool] = legal) -> dict[str, Value]:
    """A random legal case, determined by the seed and its number; M and N are up to 700, K up to 1500."""
    rng = random.Random(f"{seed} {number}")
    chooser = Array(rng.randrange(1 << 30), accepts)
    extent = lambda most: max(1, int(most ** rng.random())) | (rng.random() < 0.3)
    case: dict[str, Value] = {}
    free = dict(zip(FREE, (extent(700), extent(700), extent(1500))))
    share = rng.random()
    for name in rng.sample(NAMES, len(NAMES)):
        if name in case or rng.random() > share:
            continue
        tried: dict[str, Value] = {**case, name: rng.choice(FACTORS[name])}
        if chooser._complete(tried, case) and accepts(tried | free):
            case = tried
    return case | free if accepts(case | free) else case


__all__ = ["Array", "Pair", "drawn", "legal", "needs"]
