# SPDX-License-Identifier: Apache-2.0
"""Fit the cost model to the GPU at hand and write its record.

    python -m benchmarks.fit_gpu --out FOLDER --seconds 540 --commit HASH    # on the GPU, again until it is done
    python -m benchmarks.fit_gpu --out FOLDER --gpu NAME --dry-run           # draw and compile only, without a GPU

It draws training problems (`sweep_draws`), compiles and measures their kernels (`sweep_jobs`), and fits rates and
factors of kernels to the table of times (`sweep_table`, `fit_cost`). FOLDER keeps each stage, and the same command
continues. A record has the GPU's own SMs, clusters, bandwidth and L2. Thresholds and rates of fp8 are the default
GPU's. So are rates of CUDA cores and of threads' loads, scaled by clock, until `benchmarks.fit` fits them. A GPU with a
record keeps it unless `--replace` is given. The default GPU's is never replaced, since other records build on it.
Kernels that `--dry-run` compiles travel in CUTEGEMM_CACHE_DIR.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks import command_line, fit_cost, runs, sweep_draws, sweep_jobs, sweep_table
from benchmarks.fit import put, write
from cutegemm import files
from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT, KERNELS_FILE, RECORDS, TIMES_FILE, find

# of a `Device` that are queried rather than fitted
PROPERTIES = ("sms", "clusters", "dram_gbs", "l2_bytes")
SEEDS = [2, 3, 4]


def _current() -> Device:
    from cutegemm.running.backends.launcher import current_device

    with warnings.catch_warnings():
        # a GPU that cannot be queried has the default's properties, which must not become its record
        warnings.filterwarnings("error", "cannot query", RuntimeWarning)
        try:
            index, device = current_device()
        except RuntimeWarning as error:
            raise ValueError(str(error)) from None
    if index is None:
        raise ValueError("there is no Hopper GPU here; --dry-run draws and compiles without one")
    return device


def queried() -> Device:
    """The GPU at hand, queried by another process, since processes that plan are forks of this one.

    Raises:
        ValueError: there is none, or it cannot be queried.
    """
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_current).result()


def drawn(args: argparse.Namespace, device: Device, path: Path) -> None:
    """Write the jobs of a GPU, unless they are there.

    Raises:
        ValueError: they are another GPU's, or drawn with other options.
    """
    options = {x: getattr(args, x) for x in ("seeds", "counts", "configs", "kernels")}
    if not path.exists():
        found: dict[str, Any] = sweep_draws.drawn(args, device)
        files.replace(path, json.dumps({"gpu": device.name, "options": options, **found}).encode())
    known = json.loads(path.read_text())
    if known["gpu"] != device.name:
        raise ValueError(
            f"{path} has jobs of {known['gpu']}, and the GPU is {device.name}: give another --out"
        )
    for name, value in options.items():
        if known["options"][name] != value:
            raise ValueError(f"--{name}: {path} was drawn with {known['options'][name]}: give another --out")


def recorded(device: Device, sweep: Path, folder: Path) -> str:
    """Fit a GPU to a sweep and write its record into a folder. Returns the source of its rates."""
    times, kernels = (folder / x.name for x in (TIMES_FILE, KERNELS_FILE))
    model, factors, table = fit_cost.fitted(device, [sweep])
    runs.console().print(table)
    source = f"fitted by benchmarks.fit_gpu to {sweep.name}"
    write(device.name, model, factors, source, times, kernels)
    if device not in RECORDS:
        for part in ("cores", "loads"):
            put(device.name, part, getattr(device, part), f"those of {DEFAULT.name}, by clock", times)
        data = json.loads(times.read_text())
        note = (
            f"its thresholds, its rates of fp8 and, by clock, of CUDA cores and threads' loads, and factors of kernels "
            f"not measured on it are those of {DEFAULT.name}"
        )
        data[device.name]["properties"] = {x: getattr(device, x) for x in PROPERTIES} | {"note": note}
        times.write_text(json.dumps(data, indent=1) + "\n")
    return source


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 while problems are left."""
    parser = command_line.parser("fit_gpu", __doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of jobs, measured lines and the sweep")
    add(
        "--seconds",
        type=runs.positive_seconds,
        default=540.0,
        help="of measuring; the same command continues",
    )
    add("--commit", default="unknown", help="hash of the commit that is measured")
    add("--dry-run", action="store_true", help="draw and compile, and measure nothing")
    add("--gpu", default=DEFAULT.name, help="with --dry-run: the GPU's name as the driver reports it")
    add("--sms", type=int, default=DEFAULT.sms, help="with --dry-run: SMs of a GPU without a record")
    add("--replace", action="store_true", help="replace the record of a GPU that has one")
    add("--records", type=Path, default=TIMES_FILE.parent, help="folder of the record's files")
    sweep_draws.add_options(parser, SEEDS)
    parser.set_defaults(workers=os.cpu_count() or 1)
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    jobs, lines, sweep = (args.out / x for x in ("jobs.json", "sweep.jsonl", "sweep.json"))
    try:
        device = find(args.gpu, sms=args.sms) if args.dry_run else queried()
        if args.replace and device.name == DEFAULT.name:
            rule = "other records build on it, and fit_cost fits it to more sweeps"
            raise ValueError(f"--replace: does not replace the record of {DEFAULT.name}: {rule}")
        known = next((x for x in RECORDS if x.name == device.name), device)
        if known.sms != device.sms:
            raise ValueError(f"{device.name} with {device.sms} SMs is a part of a GPU, which has no record")
        drawn(args, device, jobs)
    except ValueError as error:
        parser.error(str(error))
    words = ["--jobs", str(jobs), "--out", str(lines), "--workers", str(args.workers)]
    if args.dry_run:
        return sweep_jobs.main([*words, "--only-compile"])
    status = sweep_jobs.main([*words, "--compile", "--commit", args.commit, "--seconds", str(args.seconds)])
    every = json.loads(jobs.read_text())["jobs"]
    if left := len(list(sweep_jobs.left(every, lines))):
        print(f"{left} of {len(every)} problems are left: run the same command again")
        return 1
    if status:
        return status
    files.replace(sweep, sweep_table.text(sweep_table.table(every, sweep_jobs.lines(lines))).encode())
    if device in RECORDS and not args.replace:
        print(f"{device.name} has a record; --replace fits it to {sweep} alone")
        return 0
    try:
        print(f"{device.name}: {recorded(device, sweep, args.records)}, in {args.records}")
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
