# SPDX-License-Identifier: Apache-2.0
"""Speed of tile schedulers while another kernel occupies some SMs, as a communication kernel does.

    python -m benchmarks.occupied [--sms 20] [--shapes 8192x8192x8192,4096x4096x4096] [--out FILE --commit HASH]

On each of these SMs a CTA with all of the SM's shared memory spins until the host raises a flag. Meanwhile graphs of
equal GEMMs are timed by events, interleaved in alternating order. The ratio is relative to the persistent kernel under
the same conditions. Each result is compared with cuBLAS's before it is timed.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import cutegemm
from benchmarks import command_line, correctness, environment, gemm, results
from cutegemm import GemmSpec

# The flag in host memory is read 10,000 times a second. Two million reads a second across PCIe slowed every other
# kernel 4 to 20 times, cuBLAS's too.
SOURCE = """
extern "C" __global__ void spin(volatile int* flags) {
  // flags[0]: the host requests the end. flags[1]: CTAs that have started.
  if (threadIdx.x == 0) {
    atomicAdd_system((int*)flags + 1, 1);
    while (flags[0] == 0) __nanosleep(100000);
  }
}
"""
SPIN_THREADS = 32
SPIN_SHARED = 227 * 1024  # bytes: the maximum per CTA, so that no other CTA fits on the SM
CALLS, ROUNDS = 20, 10  # GEMMs per graph, and replays
TOLERANCE = 1e-2  # relative Frobenius error between two bf16 results
SPECS = {
    "persistent": GemmSpec(scheduler="persistent"),
    "dynamic": GemmSpec(scheduler="dynamic"),
    "a CTA per tile": GemmSpec(scheduler="per_tile"),
}
BASELINE = "persistent"
SHAPES = [(8192, 8192, 8192), (4096, 4096, 4096), (2048, 2112, 7168)]
SUITE = "occupied"


def compiled(form: str) -> bytes:
    """The spinning kernel as "PTX" or "CUBIN", compiled by NVRTC.

    Raises:
        RuntimeError: it does not compile; has the log.
    """
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"spin.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90a"])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    size, get = (getattr(nvrtc, f"nvrtcGet{form}{x}") for x in ("Size", ""))
    out = b" " * size(program)[1]
    get(program, out)
    return out


def _done(result: tuple[Any, ...]) -> Any:
    """The result of a driver call.

    Raises:
        RuntimeError: the call failed.
    """
    if result[0].value:
        raise RuntimeError(result[0].name)
    return result[1] if len(result) > 1 else None


class Spinner:
    """The spinning kernel, loaded."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        # makes torch's context current
        torch.empty(0, device="cuda").fill_(0)
        torch.cuda.synchronize()
        self._module = _done(driver.cuModuleLoadData(compiled("CUBIN")))
        self._function = _done(driver.cuModuleGetFunction(self._module, b"spin"))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _done(driver.cuFuncSetAttribute(self._function, limit, SPIN_SHARED))
        self._stream = torch.cuda.Stream()

    @contextlib.contextmanager
    def holding(self, sms: int) -> Iterator[None]:
        """Occupy SMs within the context; 0 occupies none."""
        if not sms:
            yield
            return
        flags = torch.zeros(2, dtype=torch.int32).pin_memory()
        address = ctypes.c_void_p(flags.data_ptr())
        table = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        torch.cuda.synchronize()
        _done(
            self._driver.cuLaunchKernel(
                self._function, sms, 1, 1, SPIN_THREADS, 1, 1, SPIN_SHARED, self._stream.cuda_stream,
                ctypes.addressof(table), 0,
            )
        )  # fmt: skip
        try:
            while flags[1] < sms:
                pass
            yield
        finally:
            flags[0] = 1
            self._stream.synchronize()


def turns(names: list[str], rounds: int) -> Iterator[list[str]]:
    """The order of each round; every second one is reversed."""
    for i in range(rounds):
        yield names if i % 2 == 0 else names[::-1]


def medians(replays: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median result of each replay, interleaved in alternating order."""
    found: dict[str, list[float]] = {name: [] for name in replays}
    for order in turns(list(replays), rounds):
        for name in order:
            found[name].append(replays[name]())
    return {name: statistics.median(x) for name, x in found.items()}


def replay_of(call: Callable[[], object]) -> Callable[[], float]:
    """Capture `CALLS` calls in a graph. Returns a function that replays it and returns microseconds per call."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    def replay() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / CALLS

    return replay


def measure(shape: tuple[int, int, int], sms: int, spinner: Spinner) -> list[results.Row]:
    """A row for each scheduler, alone and with the spinning kernel.

    Raises:
        RuntimeError: a result is wrong.
    """
    m, n, k = shape
    a, b = (torch.randn(x, device="cuda", dtype=torch.bfloat16) for x in ((m, k), (n, k)))
    reference, out = a @ b.T, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    replays = {}
    for name, spec in SPECS.items():
        ours = cutegemm.build(spec, cutegemm.problem(m, n, k, majors="kk"))
        ours.run(a, b.T, out=out)
        error = correctness.relative_error(out, reference)
        if not error <= TOLERANCE:
            raise RuntimeError(f"{name} at {shape}: relative error {error:.1e}")
        replays[name] = replay_of(lambda ours=ours: ours.run(a, b.T, out=out))
    rows = []
    for held in (0, sms):
        with spinner.holding(held):
            times = medians(replays)
        rows += [row_of(shape, held, name, us, times[BASELINE]) for name, us in times.items()]
    return rows


def row_of(
    shape: tuple[int, int, int], held: int, scheduler: str, us: float, baseline_us: float
) -> results.Row:
    """A row of a results file: a scheduler's time with `held` occupied SMs."""
    case = results.Case(suite=SUITE, dtype="bf16", majors="kk", m=shape[0], n=shape[1], k=shape[2])
    times = {"us": us, "baseline": BASELINE, "baseline_us": baseline_us, "ratio": baseline_us / us}
    return {**asdict(case), "what": f"{held} SMs held", "held": held, "contender": scheduler, **times}


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = command_line.parser("occupied", __doc__)
    parser.add_argument("--sms", type=int, default=20, help="SMs that the other kernel occupies")
    parser.add_argument("--shapes", type=gemm.shapes_of, default=SHAPES, help="MxNxK, comma-separated")
    parser.add_argument("--out", type=Path, help="results file")
    parser.add_argument("--commit", default="", help="hash of the commit that is measured")
    given = parser.parse_args(arguments)
    spinner, rows = Spinner(), []
    for shape in given.shapes:
        for row in measure(shape, given.sms, spinner):
            rows.append(row)
            print(
                f"{row['m']}x{row['n']}x{row['k']}, {row['held']} SMs held: {row['contender']:15} "
                f"{row['us']:9.2f} us, {row['ratio']:.3f} of {BASELINE}'s speed"
            )
    if given.out:
        record = environment.record(given.commit, environment.sensors())
        results.save(given.out, {"schema": results.SCHEMA, "environment": record, "rows": rows})


if __name__ == "__main__":
    main(sys.argv[1:])
