# SPDX-License-Identifier: Apache-2.0
"""Time on the CPU: one call, the first kernel of a spec, the same from the cache, the import.

python -m benchmarks.host_time --out benchmarks/results/host.json --commit HASH
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console

from benchmarks import command_line, contenders, correctness, environment, inputs, results
from benchmarks.results import Case, Measurement, Results

CALL_SIZE = 256  # M = N = K: the GPU is faster than the host, so the host time is measured
CALLS = 200  # consecutive calls, fewer than the launch queue holds
CALL_ROUNDS = 50
PROCESS_ROUNDS = 5
CORES = 2  # of a compiling process, so that machines can be compared

# Every script prints its seconds; the cores are limited before any thread starts.
_SCRIPT = """\
import os, time
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cores}])
import torch
{before}
start = time.perf_counter()
{timed}
print(time.perf_counter() - start)
"""
_IMPORT = _SCRIPT.format(cores=CORES, before="", timed="import cutegemm")
# From the spec to the first result; tensors and CUDA context exist before.
_KERNEL = _SCRIPT.format(
    cores=CORES,
    before="import cutegemm\n"
    "a, b, d = (torch.zeros(4096, 4096, device='cuda', dtype=torch.bfloat16) for _ in range(3))",
    timed="cutegemm.build(cutegemm.GemmSpec()).run(a, b, out=d)\ntorch.cuda.synchronize()",
)


def time_calls(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    wait: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
    seed: int = 0,
) -> dict[str, Measurement]:
    """Host microseconds per call, interleaved.

    Args:
        calls: functions by name; each has been called before.
        rounds: samples per name, each of `CALLS` calls.
        wait: waits for the GPU; called between samples, outside the timed part.
    """
    order = random.Random(seed)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in order.sample(list(calls), len(calls)):
            call = calls[name]
            wait()
            start = clock()
            for _ in range(CALLS):
                call()
            samples[name].append((clock() - start) / CALLS * 1e6)
    wait()
    return {name: summarize(values) for name, values in samples.items()}


def summarize(us: list[float]) -> Measurement:
    """Median, least and greatest of samples in microseconds."""
    return Measurement(us=statistics.median(us), us_min=min(us), us_max=max(us), rounds=len(us))


def call_time() -> dict[str, Measurement]:
    """Host time of run(a, b, out=d) and of torch.mm on the current CUDA device, results checked first."""
    case = Case(suite="host", dtype="bf16", majors="kk", m=CALL_SIZE, n=CALL_SIZE, k=CALL_SIZE)
    one = inputs.make_sets(case, "cuda", 1)[0]
    chosen = [contenders.make(name, case) for name in contenders.NAMES]
    for contender in chosen:
        correctness.check(contender.call, one)
    calls = {contender.name: (lambda call=contender.call: call(one)) for contender in chosen}
    return time_calls(calls, rounds=CALL_ROUNDS, wait=torch.cuda.synchronize)


def process_time(script: str, cache: str) -> float:
    """The seconds printed by `script` in a new process with its own kernel cache.

    Raises:
        subprocess.CalledProcessError: the script failed.
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"CUTEGEMM_CACHE_DIR": cache},
    )
    return float(done.stdout.split()[-1])


def process_times(progress: Callable[[str], None] = lambda text: None) -> dict[str, Measurement]:
    """Time of the import without torch's; of a spec's first result, with the DSL's import; the same from the cache."""
    samples: dict[str, list[float]] = {"import": [], "first_kernel": [], "from_cache": []}
    for round_number in range(PROCESS_ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            for what, script in (("import", _IMPORT), ("first_kernel", _KERNEL), ("from_cache", _KERNEL)):
                progress(f"{what}, round {round_number + 1} of {PROCESS_ROUNDS}")
                samples[what].append(process_time(script, cache) * 1e6)
    return {what: summarize(us) for what, us in samples.items()}


def main(arguments: list[str]) -> None:
    """Measure and write; the rows of an earlier run are replaced."""
    parser = command_line.parser("host_time", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="results file")
    parser.add_argument("--commit", required=True, help="hash of the commit that is measured")
    args = parser.parse_args(arguments)
    console = Console()
    out = Results(args.out, environment.record(args.commit, environment.sensors()))
    out.put(results.host_rows("call", call_time(), contenders.BASELINE))
    with console.status("processes") as status:
        for what, measured in process_times(status.update).items():
            out.put(results.host_rows(what, {contenders.OURS: measured}, contenders.BASELINE))
    for row in out.rows:
        if row["suite"] == "host":
            console.print(f"{row['what']:14} {row['contender']:10} {row['us']:12.2f} us")


if __name__ == "__main__":
    main(sys.argv[1:])
