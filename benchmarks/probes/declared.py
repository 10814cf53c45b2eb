# SPDX-License-Identifier: Apache-2.0
"""What constant weights change, kernel by kernel: chains of training seeds with kernels chosen with and without them.

    python -m benchmarks.probes.declared --compile-only          # without a GPU
    python -m benchmarks.probes.declared --out benchmarks/results/before_after/declared.json --commit HASH

Contenders, of which each layer has its own plan:

- `declared`, `undeclared`: the model's choices;
- `declared_deep`: the declared ones with as many stages as fit;
- `same`, `same_deep`: the undeclared choices with weights declared constant, with default stages and with theirs.

Times are microseconds per layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import (
    chain,
    command_line,
    contenders,
    correctness,
    environment,
    fresh_bench,
    fresh_draws,
    results,
    runs,
    timing,
)
from benchmarks.results import Case, Row
from cutegemm import Gemm, GemmSpec, KernelPlan, problem
from cutegemm.arch.device import Device
from cutegemm.config import KernelConfig
from cutegemm.database.entry import refined
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.planning.why import fields_of
from cutegemm.spec import MAX_STAGES

SEEDS, COUNT = (171, 172), 6


def deepest(spec: GemmSpec, made: KernelPlan, case: Case, device: Device) -> GemmSpec:
    """The plan's fields with as many stages as fit."""
    fixed = refined(spec, fields_of(made))
    for stages in range(MAX_STAGES, 0, -1):
        try:
            plan(found := refined(fixed, {"stages": stages}), contenders.problem(case), device)
            return found
        except GemmError:
            continue
    return fixed


def specs(case: Case, device: Device) -> Iterator[tuple[str, GemmSpec]]:
    """(Contender, spec) of a layer."""
    constant, plain = chain.spec(constant=True), chain.spec(constant=False)
    of = contenders.problem(case)
    own, other = plan(constant, of, device), plan(plain, of, device)
    yield "declared", constant
    yield "undeclared", plain
    yield "declared_deep", deepest(constant, own, case, device) if own.config.stages > 1 else constant
    if not isinstance(other.config, KernelConfig):
        return
    same = refined(constant, fields_of(other))
    plan(same, of, device)
    yield "same", same
    yield "same_deep", refined(same, {"stages": other.config.stages})


def of_chain(case: Case, device: Device) -> dict[str, list[GemmSpec]]:
    """Specs of both layers by contender; the undeclared kernel where constant weights do not have it."""
    layers = [dict(specs(replace(case, n=n, k=k), device)) for n, k in fresh_bench.chain_of(case).layers]
    return {
        name: [x.get(name, x["undeclared"]) for x in layers]
        for name in dict.fromkeys([*layers[0], *layers[1]])
    }


class Bench:
    """Checks and times one chain after another."""

    def __init__(self, device: Device, sensors: timing.Readable | None) -> None:
        self._device, self._sensors = device, sensors

    def measure(self, case: Case) -> Row:
        """A chain's row: microseconds per layer, plans, and errors of contenders that are refused or wrong."""
        of = fresh_bench.chain_of(case)
        operands = chain.make_operands(of, "cuda")
        right, bad = [chain.make(contenders.BASELINE, of, GemmSpec())], {}
        for name, each in of_chain(case, self._device).items():
            contender = self._contender(name, each, of)
            try:
                chain.check(contender, operands)
                right.append(contender)
            except (GemmError, correctness.WrongResult) as error:
                bad[name] = str(error)
        times = timing.measure(
            right, [operands], fresh_bench.FIRST, device=timing.Device(), sensors=self._sensors
        )
        us = {name: round(x.us / of.depth, 3) for name, x in times.items()}
        return {
            "m": case.m,
            "n": case.n,
            "k": case.k,
            "us": us,
            "plans": {x.name: x.plan for x in right},
            "bad": bad,
        }

    def _contender(self, name: str, each: list[GemmSpec], of: chain.Chain) -> timing.Contender:
        gemms = [Gemm(x) for x in each]
        plans = [
            plan(x, problem(of.m, n, k, majors="kk"), self._device)
            for x, (n, k) in zip(each, of.layers, strict=True)
        ]

        def multiply(i: int) -> chain.Multiply:
            gemm = gemms[i % len(gemms)]
            return lambda x, weight, out: gemm.run(x, weight, out=out)

        return chain.layered(name, multiply, " | ".join(map(contenders.plan_label, plans)))


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("probes.declared", __doc__)
    args = runs.parsed_or_compiling(parser, arguments)
    with contenders.no_database():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    cases = [x for seed in SEEDS for x in fresh_draws.draw("chain", seed, COUNT)]
    if args.compile_only:
        device = runs.record_of(args.gpu)
        found = []
        for case in cases:
            for each in of_chain(case, device).values():
                for spec, (n, k) in zip(each, fresh_bench.chain_of(case).layers, strict=True):
                    found += plan(spec, contenders.problem(replace(case, n=n, k=k)), device).steps
        runs.compiled([x.config for x in found], len(cases), runs.console())
        return 0
    # imported here, since it calls the driver
    from cutegemm.running.backends.launcher import current_device

    environment.select(args.device)
    sensors = environment.sensors(args.device)
    bench, rows = Bench(current_device()[1], sensors), []
    for case in cases:
        rows.append(bench.measure(case))
        print(case.m, case.n, case.k, rows[-1]["us"], rows[-1]["bad"], flush=True)
        head = {
            "schema": results.SCHEMA,
            "environment": environment.record(args.commit, sensors, args.device),
        }
        results.save(args.out, head | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
