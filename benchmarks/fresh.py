# SPDX-License-Identifier: Apache-2.0
"""The cost model's choices on unseen problems compared with cuBLAS, without a tuning database.

    python -m benchmarks.fresh --compile-only                # without a GPU: kernels go to CUTEGEMM_CACHE_DIR
    python -m benchmarks.fresh --seconds 540                 # with a repository
    python -m benchmarks.fresh --trees A,B --commit HASH     # without; `benchmarks.fresh_tree` prints these
    python -m benchmarks.fresh --regret ...                  # compare with the tuner's candidates
    python -m benchmarks.fresh_check FILE...                 # verify files and print their figures

The measured sources determine the problems (`fresh_tree`, `fresh_draws`). The header is written to
`benchmarks/results/fresh-<tree>.json` before anything is measured. The same command continues a run that stopped. No
row is ever replaced, and a problem that could not be timed has a row with the reason. The lowest rows of a family are
measured again, and both values are kept. `--training N` measures problems that the model may be fitted to.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import command_line, fresh_bench, fresh_check, fresh_draws, fresh_tree, runs
from benchmarks.fresh_bench import AGAIN, FIRST, PREFIX, Bench, Regret
from benchmarks.results import Case, Results, Row
from benchmarks.sweep_draws import VERSIONS
from cutegemm.arch.device import Device
from cutegemm.running.backends.launcher import current_device
from cutegemm.tuning import CANDIDATES

FOLDER = fresh_tree.ROOT / fresh_tree.BENCHMARKS / fresh_tree.RESULTS
REGRETS = 8  # problems per family with --regret
NAMED = 12  # digits of the seed in a file name


def name_of(seed: int | str, regret: bool) -> str:
    """The file name of a run."""
    words = ["fresh", f"training-{seed}" if isinstance(seed, int) else seed[:NAMED]]
    return "-".join([*words, *(["regret"] if regret else [])]) + ".json"


def header(args: argparse.Namespace) -> Row:
    """The header of a run, written before it measures."""
    return {
        "seed": args.seed,
        "trees": None if args.trees is None else args.trees._asdict(),
        "count": args.count,
        "families": list(args.families),
        "regret": args.regret,
        **VERSIONS,
    }


def begun(out: Results, said: Row) -> None:
    """Write the header. A continued run adds its families to those of the file.

    Raises:
        ValueError: the file belongs to another run.
    """
    before = out.environment.get("fresh")
    if before is not None:
        differing = [name for name in said if name != "families" and said[name] != before.get(name)]
        if differing:
            raise ValueError(f"{out.path}: {', '.join(differing)} must be those of the run that wrote it")
        said = said | {"families": list(dict.fromkeys([*before["families"], *said["families"]]))}
    out.environment["fresh"] = said
    out.put([])


def measure(
    args: argparse.Namespace,
    first: runs.Bench[Case],
    again: runs.Bench[Case] | None,
    out: Results,
    console: Console,
) -> runs.Outcome:
    """runs.Bench[Case] family after family, the lowest rows of each again, within the time."""
    ends = time.monotonic() + args.seconds
    total = runs.Outcome(0, 0, [], 0)

    def go(bench: runs.Bench[Case], cases: Sequence[Case]) -> None:
        nonlocal total
        left = ends - time.monotonic()
        done = runs.run(cases, bench, out, seconds=left, console=console, describe=fresh_check.describe)
        failures = [*total.failures, *done.failures]
        total = runs.Outcome(
            total.skipped + done.skipped, total.measured + done.measured, failures, total.left + done.left
        )

    for family in args.families:
        cases = fresh_bench.cases_of(family, args.seed, args.count)
        go(first, cases)
        if again is not None:
            go(again, fresh_check.lowest(cases, out.rows))
    return total


def compile_all(args: argparse.Namespace, record: Device, console: Console) -> int:
    """Compile the kernels of all problems in parallel. Returns their number."""
    cases = list(itertools.chain(*(fresh_bench.cases_of(x, args.seed, args.count) for x in args.families)))
    configs = list(fresh_bench.configs(cases, record))
    if args.regret:
        regret = Regret(None, record, args.candidates)
        configs += regret.configs(cases)
    return runs.compiled(configs, len(cases), console)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: the options are illegal, or sources differ from the last commit.
    """
    parser = command_line.parser("fresh", __doc__)
    add = parser.add_argument
    families = tuple(fresh_draws.FAMILIES)
    add("--families", type=runs.names_among(families), default=list(families), help=", ".join(families))
    runs.add_budget(parser)
    fresh_tree.add_option(parser)
    add("--commit", help="hash of the measured commit, with --trees")
    add("--training", type=int, help="draw with this training seed; its results may not be reported")
    add("--regret", action="store_true", help="also measure the tuner's candidates")
    add(
        "--count",
        type=int,
        help=f"problems per family; default {fresh_draws.COUNT}, {REGRETS} with --regret",
    )
    add("--candidates", type=int, default=CANDIDATES, help=f"maximum per problem; default {CANDIDATES}")
    add("--compile-only", action="store_true", help="compile the kernels and measure nothing")
    runs.add_gpu(parser, "GPU that --compile-only plans for")
    add("--folder", type=Path, default=FOLDER, help="folder of the results file")
    args = parser.parse_args(arguments)
    try:
        _settle(args)
        args.seed = args.trees.seed if args.training is None else args.training
        fresh_draws.draw("square", args.seed, 0)
    except ValueError as error:
        parser.error(str(error))
    args.count = args.count or (REGRETS if args.regret else fresh_draws.COUNT)
    if args.regret:
        # candidates exist for single GEMMs only
        args.families = [x for x in args.families if PREFIX + x != fresh_bench.CHAIN]
    args.out = args.folder / name_of(args.seed, args.regret)
    return args


def _settle(args: argparse.Namespace) -> None:
    """Take missing trees and commit from the repository.

    Raises:
        ValueError: there is no repository, or its sources differ from the last commit.
    """
    if args.training is None and args.trees is None:
        args.trees, args.commit = fresh_tree.committed(), fresh_tree.commit_of()
    elif args.commit is None:
        raise ValueError("--commit must be given with --trees or --training")


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a contender refused a problem or was wrong, 2 if the environment differs."""
    args = parse(arguments)
    if args.compile_only:
        record = runs.record_of(args.gpu)
        compile_all(args, record, runs.console())
        return 0
    before = args.out.exists()
    console, sensors, out = runs.open_run(args)
    if before and out.dropped:
        console.print(f"{args.out}: measured in another environment; nothing is overwritten", markup=False)
        return 2
    begun(out, header(args))
    record = current_device()[1]
    compile_all(args, record, console)
    if args.regret:
        outcome = measure(args, Regret(sensors, record, args.candidates), None, out, console)
    else:
        first, again = (Bench(regime, sensors, keep=out.put) for regime in (FIRST, AGAIN))
        outcome = measure(args, first, again, out, console)
    console.print(fresh_check.table([{"environment": out.environment, "rows": out.rows}]))
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
