# SPDX-License-Identifier: Apache-2.0
"""Chooses the kernels that a sweep of random training problems measures.

    python -m benchmarks.sweep_draws --seeds 2,3,4 --kernels 700 --out jobs.json
    python -m benchmarks.sweep_draws --seeds 5,6 --counts deep_k=10,odd=7 --configs 25 --out jobs.json

Each problem has many kernels near the predicted best, and each kernel has to be compiled. A kernel does not depend on
most extents, so the sweep prefers kernels that many problems share. Every problem has the model's choice and the config
predicted fastest. Others are chosen by predicted time and by dissimilarity to the problem's other configs. The model
only considers numbers of splits that fill whole waves; for a few configs the sweep measures other numbers too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import heapq
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import chain, command_line, contenders, fresh_draws, runs
from benchmarks.results import Case, Row
from cutegemm import GemmSpec, KernelPlan, Problem
from cutegemm.arch.device import Device
from cutegemm.config import KernelConfig
from cutegemm.database.entry import refined
from cutegemm.errors import GemmError
from cutegemm.planning import ranking, ways
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.why import fields_of, fields_of_option
from cutegemm.request.requirements import requested

# problems of a family and seed
COUNTS = {
    "square": 6, "prefill": 6, "decode": 6, "wide_decode": 7, "deep_k": 6, "few_columns": 5, "odd": 4,
    "odd_skinny": 5, "small": 5, "batched": 7, "chain": 5, "square_nn": 3, "square_nt": 3, "square_tt": 3,
    "prefill_nn": 3, "prefill_nt": 3, "prefill_tt": 3,
}  # fmt: skip
# configs per problem; configs considered: fastest predicted, and random; their maximum predicted slowdown
CONFIGS, FASTEST, DRAWN, SLOWER = 16, 30, 24, 1.5
# number of fast configs that are measured with other splits, and factors of their splits
RECUT, SHARES = 4, (0.5, 0.75, 1.5)
# relative slowdown at which the worth falls to 1/e, and factor for each further config of a kind
NEAR, AGAIN = 0.12, 0.35
# version of the kernel that copies operands: the second has two chunks in flight per thread, and prefetches
COPIES = 2
# version of loads by cp.async: the second computes addresses with a few instructions for each, the third also where
# lines are longer than a warp's copies, the fourth leaves L1 60 KiB
ASYNC = 4
# both as tables name them
VERSIONS = {"copies": COPIES, "async": ASYNC}
# a problem with fewer configs than this has few, and its next config is worth this factor more
FEW, WANTED = 9, 6.0


class Option(NamedTuple):
    """A kernel for a problem.

    Attributes:
        fields: of the spec that requests it.
        loads: of operands that TMA cannot address.
        kernels: configs of its launches.
        config: as a row of `COLUMNS`.
        worth: of measuring it, before others of its kind are chosen.
        kind: equal for similar options.
        must: whether it is always measured.
    """

    fields: dict[str, Any]
    loads: dict[str, Any]
    kernels: frozenset[Any]
    config: list[Any]
    worth: float
    kind: tuple[Any, ...]
    must: bool


COLUMNS = (
    "swapped", "m", "n", "k", "across", "along", "schedule", "consumers", "splits", "held", "reduction"
)  # fmt: skip


def read_config(row: Sequence[Any]) -> tuple[bool, Candidate]:
    """Whether operands are swapped, and the candidate, from a row that starts with `COLUMNS`."""
    swapped, m, n, k, across, along, *others = row[: len(COLUMNS)]
    return bool(swapped), Candidate((m, n, k), (across, along), *others)


def row_of(made: KernelPlan) -> list[Any]:
    """The row of `COLUMNS` of a plan on the tensor cores, which `read_config` reads."""
    x = Candidate.of(made.config)  # type: ignore[arg-type]
    return [int(made.swapped), *x.tile, *x.cluster, x.schedule, x.consumers, x.splits, x.depth, x.reduction]


def loads_of(made: KernelPlan) -> dict[str, Any]:
    """How a plan loads operands that TMA cannot address."""
    full = fields_of(made)
    return {name: full[name] for name in ("a_load", "b_load") if name in full}


def cases(
    seeds: list[int], counts: dict[str, int] = COUNTS, gflop: float = math.inf
) -> Iterator[tuple[int, Case]]:
    """(Seed, problem) with interleaved families, so that a partial sweep has some of each.

    Args:
        seeds: training seeds.
        counts: problems drawn per seed and family.
        gflop: those with more are left out.
    """
    drawn = [
        [(seed, x) for seed in seeds for x in fresh_draws.draw(name, seed, count) if x.flops <= gflop * 1e9]
        for name, count in counts.items()
    ]
    places = sorted((i / len(x), n, i) for n, x in enumerate(drawn) for i in range(len(x)))
    for _, family, place in places:
        yield drawn[family][place]


def base(case: Case) -> GemmSpec:
    """The spec of all configs of a problem; the weights of a chain are constant."""
    return chain.spec(constant=True) if case.suite == "chain" else GemmSpec()


def options(spec: GemmSpec, of: Problem, device: Device, source: random.Random) -> list[Option]:
    """The options for a problem and spec."""
    asked, _ = requested(spec, of, device)
    own = plan(spec, of, device)
    found: dict[frozenset[Any], Option] = {}

    def add(made: KernelPlan | None, fields: dict[str, Any], slower: float, must: bool) -> None:
        if made is not None and isinstance(made.config, KernelConfig):
            one = _option(made, fields, slower, must)
            found.setdefault(one.kernels, one)

    everything = list(ranking.options(asked))
    least = everything[0].ns
    add(own, {}, 1.0, True)
    near = [x for x in everything if x.ns <= SLOWER * least]
    kinds = {_kind(x.way.swapped, x.candidate, x.way.loads): x for x in reversed(near)}
    others = source.sample(near, min(DRAWN, len(near)))
    for place, x in enumerate([*near[:FASTEST], *kinds.values(), *others]):
        fields = dict(fields_of_option(x))
        made = _planned(spec, fields, of, device)
        known = made is not None and isinstance(made.config, KernelConfig)
        if known and (made.swapped, Candidate.of(made.config)) == (x.way.swapped, x.candidate):
            add(made, fields, x.ns / least, place == 0)
    for x, parts in _recut(near):
        fields = dict(fields_of_option(x)) | {"split_k": parts}
        add(_planned(spec, fields, of, device), fields, x.ns / least, False)
    return list(found.values())


def _recut(near: Sequence[ways.Option]) -> Iterator[tuple[ways.Option, int]]:
    """The fastest configs with a reduction launch, and other numbers of splits for them."""
    cut = [x for x in near if x.candidate.reduction == "launch"]
    for x in cut[:RECUT]:
        splits = x.candidate.splits
        yield from ((x, parts) for parts in {max(2, round(splits * share)) for share in SHARES} - {splits})


def _planned(spec: GemmSpec, fields: dict[str, Any], of: Problem, device: Device) -> KernelPlan | None:
    try:
        return plan(refined(spec, fields), of, device)
    except GemmError:
        return None


def _option(made: KernelPlan, fields: dict[str, Any], slower: float, must: bool) -> Option:
    x, row = Candidate.of(made.config), row_of(made)  # type: ignore[arg-type]
    kernels = frozenset(step.config for step in made.steps)
    worth = math.exp((1 - slower) / NEAR)
    loads = loads_of(made)
    return Option(fields, loads, kernels, row, worth, _kind(made.swapped, x, tuple(loads.values())), must)


def _kind(swapped: bool, x: Candidate, loads: tuple[str, ...]) -> tuple[Any, ...]:
    m, n, k = x.tile
    shape = round(2 * math.log2(m * n)), x.schedule, x.consumers, k
    return (swapped, *shape, x.cluster, min(x.splits, 2), x.reduction, loads)


def taken(pools: list[list[Option]], kernels: int, configs: int = CONFIGS) -> list[list[Option]]:
    """The options of each problem that are measured.

    Args:
        pools: options of each problem.
        kernels: maximum kernels to compile, unless options that must be measured need more.
        configs: maximum per problem.
    """
    chosen: list[list[Option]] = [[x for x in pool if x.must] for pool in pools]
    have = {kernel for few in chosen for x in few for kernel in x.kernels}
    users: dict[frozenset[Any], list[tuple[int, Option]]] = {}
    for i, pool in enumerate(pools):
        for x in pool:
            if not x.must:
                users.setdefault(x.kernels, []).append((i, x))

    def gain(of: frozenset[Any]) -> float:
        return sum(_worth(x, chosen[i], configs) for i, x in users[of]) / (1e-3 + len(of - have))

    heap = [(-gain(x), n, x) for n, x in enumerate(users)]
    heapq.heapify(heap)
    while heap:
        before, n, best = heapq.heappop(heap)
        now = gain(best)
        if heap and now < -heap[0][0]:
            if now > 0:
                heapq.heappush(heap, (-now, n, best))
            continue
        if now <= 0 or len(have | best) > kernels:
            continue
        for i, x in users[best]:
            if _worth(x, chosen[i], configs) > 0:
                chosen[i].append(x)
        have |= best
    return chosen


def _worth(x: Option, others: list[Option], configs: int) -> float:
    if len(others) >= configs:
        return 0.0
    wanted = WANTED if len(others) < FEW else 1.0
    return wanted * x.worth * AGAIN ** sum(x.kind == y.kind for y in others)


def _pool(of: tuple[int, Case], device: Device) -> list[Option]:
    seed, case = of
    return options(base(case), contenders.problem(case), device, random.Random(f"{seed} {case}"))


def drawn(args: argparse.Namespace, device: Device) -> dict[str, list[Row]]:
    """The jobs, and the kernels' configs in the order of first use. Every other problem of a family is held back."""
    problems, found = list(cases(args.seeds, args.counts, args.gflop)), []
    seen = dict.fromkeys(args.counts, 0)
    with concurrent.futures.ProcessPoolExecutor(args.workers) as pool:
        pools = list(pool.map(_pool, problems, itertools.repeat(device)))
    for seed, case in problems:
        more = {"seed": seed, "held_back": seen[case.suite] % 2 == 1} | VERSIONS
        found.append(dataclasses.asdict(case) | more)
        seen[case.suite] += 1
    kernels: dict[Any, int] = {}
    for row, few in zip(found, taken(pools, args.kernels, args.configs), strict=True):
        row["configs"] = [
            {
                "fields": x.fields,
                "loads": x.loads,
                "config": x.config,
                "kernels": sorted(kernels.setdefault(kernel, len(kernels)) for kernel in x.kernels),
            }
            for x in few
        ]
    return {"jobs": found, "kernels": [x.to_data() for x in kernels]}


def counts(text: str) -> dict[str, int]:
    """Parse numbers of problems per family, such as "decode=9,odd=7".

    Raises:
        ValueError: a family is unknown, or a count is not a number.
    """
    found = {name: int(count) for name, _, count in (x.partition("=") for x in text.split(","))}
    if unknown := found.keys() - fresh_draws.FAMILIES.keys():
        raise ValueError(f"{sorted(unknown)}: no such families")
    return found


def add_options(parser: argparse.ArgumentParser, seeds: list[int] | None = None) -> None:
    """Add the options of `drawn`; without `seeds`, the command line must name some."""
    add = parser.add_argument
    add("--seeds", type=lambda x: [int(y) for y in x.split(",")], default=seeds, required=seeds is None)
    add("--counts", type=counts, default=COUNTS, help="problems per seed and family: NAME=COUNT,...")
    add("--gflop", type=float, default=math.inf, help="leave out problems with more than GFLOP")
    add("--configs", type=int, default=CONFIGS, help="maximum per problem")
    add("--kernels", type=int, default=700, help="maximum to compile")
    add("--workers", type=int, default=1, help="planning processes")


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("sweep_draws", __doc__)
    add_options(parser)
    runs.add_gpu(parser, "GPU by whose record configs are chosen")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    found = drawn(args, runs.record_of(args.gpu))
    args.out.write_text(json.dumps(found))
    configs = sum(len(x["configs"]) for x in found["jobs"])
    print(f"{len(found['jobs'])} problems, {configs} configs, {len(found['kernels'])} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
