# SPDX-License-Identifier: Apache-2.0
"""Runs cases with all pairs of field values, and random cases, on a GPU or on the emulator.

With `--groups` the cases are grouped GEMMs, which have their own fields.

    python -m benchmarks.combinations --out benchmarks/results/checks/combinations.json --commit "$(git rev-parse HEAD)"
    python -m benchmarks.combinations --no-array --random 2000 --random-seed 7
    python -m benchmarks.combinations --backend emulator --workers 12 --seconds 500 --lines lines.jsonl --out OUT.json
    python -m benchmarks.combinations --backend emulator --workers 1 --lines lines.jsonl --share 0/4
    python -m benchmarks.combinations --groups --backend emulator --workers 12 --lines groups.jsonl --out OUT.json
    python -m benchmarks.combinations --case '{"schedule": "pingpong", "c": "as_a"}' --backend emulator

The seeds determine the cases. Each worker compiles and runs many cases. A worker that hangs is killed with its process
group, its case is reported, and a new worker continues. `--shrink` shrinks a failing case (emulator). With `--lines` a
line per case is written at once, and cases with a line are not run again. Small cases run first.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.combinations import farm, group_factors, group_runs
from benchmarks.combinations.cover import HARD_ATTEMPTS, Array, drawn, legal, needs
from benchmarks.combinations.factors import declared, shortened
from benchmarks.combinations.fields import FACTORS
from benchmarks.combinations.runs import Wrong, emulated, kernels, on_gpu
from benchmarks.combinations.shrink import shrunk
from cutegemm import files
from cutegemm.compiling import kernel_cache
from cutegemm.config import Config
from cutegemm.errors import CompileError, GemmError

SEED, RANDOM_SEED = 1, 20_261_122
OK = "ok"
# the planner refuses a case by a rule added after the array was made; the case is skipped, and its pairs do not count
REFUSED = "refused"
# stored arrays of the default seed, since making one takes minutes
DENSE_ARRAY, GROUPS_ARRAY = (Path(__file__).with_name(f"{x}_array.json") for x in ("dense", "groups"))


@dataclass(frozen=True)
class Set:
    """A set of fields with the functions that make, check, weigh and run their cases."""

    factors: Mapping[str, tuple[Any, ...]]
    needs: Any
    legal: Callable[[Any], bool]
    shortened: Callable[[Any], dict[str, Any]]
    weight: Callable[[Any], int]
    emulated: Callable[[Any], None]
    on_gpu: Callable[..., None]
    kernels: Callable[[Any], list[Config]]
    hard: int = HARD_ATTEMPTS

    def array(self, seed: int) -> Array:
        """A covering array of the fields."""
        return Array(seed, self.legal, self.factors, self.needs, self.hard)


def _weight(case: Any) -> int:
    problem = declared(case).problem
    return problem.m * problem.n * (problem.k + 64) * problem.batch


SETS = {
    False: Set(FACTORS, needs, legal, shortened, _weight, emulated, on_gpu, kernels),
    True: Set(
        group_factors.FACTORS, group_factors.needs, group_runs.legal, group_factors.shortened, group_runs.weight,
        group_runs.emulated, group_runs.on_gpu, group_runs.kernels, 100,
    ),
}  # fmt: skip


def run_entry(
    entry: farm.Entry, told: Callable[[str], None], backend: str, arena: Any, of: Set = SETS[False]
) -> farm.Entry:
    """Run a case; returns its line of results, with the outcome and errors."""
    case = entry["case"] if "case" in entry else drawn(*entry["drawn"])
    found, began = {"case": of.shortened(case)}, time.monotonic()
    # reset the peak memory that the operating system records, if it can (man 5 proc)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    try:
        if backend == "gpu":
            of.on_gpu(case, arena, told)
        elif backend == "none":
            told("compiling")
            for config in of.kernels(case):
                kernel_cache.artifact(config, warn=False)
        else:
            told("emulating")
            of.emulated(case)
    except Wrong as error:
        return found | {"outcome": "wrong", "why": str(error)}
    except CompileError as error:
        return found | {"outcome": "does not compile", "why": str(error)}
    except GemmError as error:
        # a run must not refuse what the planner accepts
        broken = of.legal(case)
        return found | {"outcome": "refused by the run" if broken else REFUSED, "why": str(error)}
    except Exception as error:
        words = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-600:]}"
        return found | {"outcome": "error", "why": words, "fresh": backend == "gpu"}
    return found | {"outcome": OK, "seconds": round(time.monotonic() - began, 1), "peak_mb": _peak_mb()}


def _peak_mb() -> int:
    """The peak memory in MiB since the reset; 0 if unknown."""
    try:
        found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found[1]) >> 10 if found else 0


def worker(folder: Path, backend: str, of: Set) -> None:
    """Run a share of the cases (`farm.work`)."""
    arena = None
    if backend == "gpu":
        import torch

        from benchmarks.combinations.memory import Arena

        torch.zeros(1, device="cuda")
        arena = Arena("cuda")
    farm.work(folder, lambda entry, told: run_entry(entry, told, backend, arena, of))


def summary(lines: Sequence[farm.Entry], wanted: int) -> dict[str, Any]:
    """Counts of outcomes, and the failures."""
    counts = collections.Counter(x["outcome"] for x in lines)
    wrong = [{k: x.get(k) for k in ("id", "outcome", "why", "case")} for x in lines if failed(x)]
    return {
        "cases": wanted, "run": len(lines), OK: counts[OK], REFUSED: counts[REFUSED],
        "failures": sorted(wrong, key=lambda x: str(x["id"])),
    }  # fmt: skip


def failed(line: farm.Entry) -> bool:
    """Whether a case that the planner accepts failed."""
    return line["outcome"] not in (OK, REFUSED)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("combinations", __doc__)
    add = parser.add_argument
    choices = ("gpu", "emulator", "none")
    add(
        "--backend",
        choices=choices,
        default="gpu",
        help="none only compiles kernels into CUTEGEMM_CACHE_DIR",
    )
    add("--groups", action="store_true", help="cases of grouped GEMMs")
    add("--seed", type=int, default=SEED, help=f"of the array; default {SEED}")
    add("--no-array", action="store_true", help="leave the array out")
    add("--array", type=Path, help="file of the array; made if it does not exist")
    add(
        "--extend",
        action="store_true",
        help="add cases to that file for pairs that it lacks, of newer values",
    )
    add("--first", type=int, help="number of cases of the array")
    add("--random", type=int, default=0, help="number of additional random cases")
    add("--random-seed", type=int, default=RANDOM_SEED, help=f"of random cases; default {RANDOM_SEED}")
    add("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    add("--seconds", type=float, default=float("inf"), help="time after which workers are stopped")
    add("--out", type=Path, help="results file")
    add("--lines", type=Path, help="file with a line per case; its cases are not run again")
    add("--share", default="0/1", help="I/N: only every N-th case, from case I")
    add("--commit", default="", help="hash of the commit that runs")
    add("--case", type=json.loads, help="run this case alone, as JSON")
    add("--shrink", action="store_true", help="shrink --case to the fewest fields that fail")
    add("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def single(case: dict[str, Any], backend: str, shrink: bool, of: Set) -> int:
    """Run one case, and shrink it if it fails."""
    from benchmarks.combinations.memory import Arena

    arena = Arena("cuda") if backend == "gpu" else None
    run = lambda x: run_entry({"case": x}, lambda stage: None, backend, arena, of)
    line = run(case)
    if line["outcome"] != OK and shrink:
        fails = lambda x: run(x)["outcome"] == line["outcome"]
        line = run(shrunk(case, fails, accepts=of.legal, short=of.shortened))
    print(json.dumps(line["case"]))
    print(f"{line['outcome']} {line.get('why', '')}")
    return int(line["outcome"] != OK)


def made(array: Array, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The array's cases, from its file if it exists; with --extend also new ones for the pairs that these lack."""
    if args.array is not None and args.array.exists():
        found = json.loads(args.array.read_text())
        array.take(found["cases"], [tuple(x) for x in found["impossible"]])
        if not args.extend:
            return list(array.cases[: args.first])
    for _ in array.make(args.first):
        pass
    if args.array is not None:
        short = SETS[args.groups].shortened
        held = {"cases": [short(x) for x in array.cases], "impossible": array.impossible}
        args.array.write_text(json.dumps(held))
    return array.cases


def weight(entry: farm.Entry, of: Set) -> int:
    """The approximate arithmetic of a case; random cases, which workers draw, come last."""
    if "case" not in entry:
        return 1 << 60
    return of.weight(entry["case"])


def known(path: Path | None, entries: Sequence[farm.Entry]) -> list[farm.Entry]:
    """The lines of cases that ran already."""
    if path is None or not path.exists():
        return []
    wanted = {x["id"]: x.get("case") for x in entries}
    lines = [json.loads(x) for x in path.read_text().splitlines()]
    return [x for x in lines if x["id"] in wanted and wanted[x["id"]] in (None, x["case"])]


def report(
    args: argparse.Namespace, array: Array, entries: Sequence[farm.Entry], lines: Sequence[farm.Entry]
) -> dict[str, Any]:
    """The contents of the results file."""
    found: dict[str, Any] = {"backend": args.backend, "commit": args.commit}
    if args.backend == "gpu":
        from benchmarks import environment

        try:
            found["environment"] = environment.record(args.commit, environment.sensors())
        except Exception as error:
            found["environment"] = {"unknown": f"{type(error).__name__}: {error}"}
    of = lambda kind: [x for x in lines if str(x["id"]).startswith(kind)]
    count = lambda kind: sum(str(x["id"]).startswith(kind) for x in entries)
    if not args.no_array:
        found["array"] = {
            "seed": args.seed, "fields": len(array.factors), "values": sum(map(len, array.factors.values())),
            "pairs": array.pairs, "not_legal": len(array.impossible),
            "covered": array.held(x["case"] for x in of("array") if x["outcome"] == OK),
            **summary(of("array"), count("array")),
        }  # fmt: skip
    if args.random:
        found["random"] = {"seed": args.random_seed, **summary(of("random"), count("random"))}
    if not args.no_array:
        found["pairs_that_no_legal_spec_has"] = [" ".join(map(str, x)) for x in array.impossible]
    return found


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a case failed or is missing."""
    args = parse(arguments)
    if args.worker is not None:
        worker(args.worker, args.backend, SETS[args.groups])
        return 0
    if args.case is not None:
        return single(args.case, args.backend, args.shrink, SETS[args.groups])
    of = SETS[args.groups]
    array = of.array(args.seed)
    if args.array is None and args.seed == SEED:
        args.array = GROUPS_ARRAY if args.groups else DENSE_ARRAY
    entries: list[farm.Entry] = []
    if not args.no_array:
        entries += [{"id": f"array {i}", "case": of.shortened(x)} for i, x in enumerate(made(array, args))]
        print(
            f"{len(entries)} cases hold {array.covered} of {array.pairs} pairs; "
            f"no legal spec has {len(array.impossible)}",
            flush=True,
        )
    entries += [{"id": f"random {i}", "drawn": [args.random_seed, i]} for i in range(args.random)]

    share, shares = (int(x) for x in args.share.split("/"))
    entries = sorted(entries, key=lambda x: weight(x, of))[share::shares]
    before = known(args.lines, entries)
    done = {x["id"] for x in before}
    if args.backend == "emulator":
        # read when torch is first imported; the workers use all cores
        os.environ.setdefault("OMP_NUM_THREADS", "1")

    def told(new: Sequence[farm.Entry]) -> None:
        lines = [*before, *new]
        print(f"{len(lines)} of {len(entries)} run, {sum(map(failed, lines))} failed", flush=True)
        if args.lines is not None:
            files.replace(args.lines, "".join(json.dumps(x) + "\n" for x in lines).encode())
        if args.out is not None:
            held = json.dumps(report(args, array, entries, lines), indent=1)
            files.replace(args.out, f"{held}\n".encode())

    with tempfile.TemporaryDirectory() as folder:
        command = (
            sys.executable, "-m", "benchmarks.combinations", *["--groups"] * args.groups, "--backend", args.backend,
            "--worker",
        )  # fmt: skip
        left = [x for x in entries if x["id"] not in done]
        new = farm.farm(left, args.workers, Path(folder), command=command, seconds=args.seconds, told=told)
    told(new)
    lines = [*before, *new]
    for x in lines:
        if x["outcome"] != OK:
            print(f"{x['id']}: {x['outcome']}: {x.get('why')}\n    {json.dumps(x.get('case'))}")
    return int(any(map(failed, lines)) or len(lines) < len(entries))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
