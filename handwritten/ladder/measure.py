# SPDX-License-Identifier: Apache-2.0
"""Times stages by CUDA-graph replay, interleaved with cuBLAS through torch, with rotating inputs."""

from __future__ import annotations

import datetime
import math
import platform
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cutegemm.arch.records import H200
from handwritten.ladder import launch, verify
from handwritten.ladder.names import BASELINE
from handwritten.ladder.plans import plan_split_k_atomic, plan_split_k_workspace
from handwritten.ladder.source import source_digest
from handwritten.ladder.stage import Stage

ROTATED_BYTES = 4 * H200.l2_bytes  # of all input sets, so that a launch finds none of its inputs in L2
MAX_SETS = 6
GRAPH_SECONDS = 2e-3  # minimum work of a graph, so that gaps between replays are negligible
SAMPLE_SECONDS = 0.04  # minimum work of a sample
PREHEAT_SECONDS = 0.3  # before the first round: clock and temperature settle ("sustained")
ROUNDS = 7


@dataclass(frozen=True)
class Case:
    """A problem to measure, with row-major operands of one dtype."""

    dtype: str
    m: int
    n: int
    k: int
    beta: float = 0.0

    @property
    def flops(self) -> int:
        """Multiplications and additions of A @ B."""
        return 2 * self.m * self.n * self.k


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # a, b, c and out
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], object]


def stage_call(stage: Stage, case: Case, splits: int | None = None) -> Call:
    """Return a function that enqueues one run of a stage; `splits` fixes the splits of a split-K stage."""

    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, out: torch.Tensor) -> None:
        if splits is None:
            stage.run(a, b, c, 1.0, case.beta, out=out)
            return
        problem = launch.describe(a, b, c, out, alpha=1.0, beta=case.beta)
        planner = {21: plan_split_k_atomic, 22: plan_split_k_workspace}[stage.number]
        launch.execute(stage, planner(stage, problem, splits=splits), problem)

    return call


def cublas_call(case: Case) -> Call:
    """Return a function that enqueues torch's matmul, which is cuBLAS; fp32 without tf32."""
    torch.backends.cuda.matmul.allow_tf32 = False

    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, out: torch.Tensor) -> None:
        if case.beta:
            torch.addmm(c, a, b, beta=case.beta, out=out)
        else:
            torch.mm(a, b, out=out)

    return call


class _Contender:
    """A contender's captured graph over all input sets, and its samples in microseconds per call."""

    def __init__(self, name: str, call: Call, sets: list[Tensors]) -> None:
        def one_pass() -> None:
            for tensors in sets:
                call(*tensors)

        one_pass()  # compiles and loads, which is illegal during capture
        verify.wait()
        passes = max(1, math.ceil(GRAPH_SECONDS / seconds(one_pass)))
        self.name, self.calls = name, passes * len(sets)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(passes):
                one_pass()
        self.graph.replay()  # the first replay uploads the graph
        self.replays = max(1, math.ceil(SAMPLE_SECONDS / seconds(self.graph.replay)))
        self.us: list[float] = []

    def work(self) -> None:
        for _ in range(self.replays):
            self.graph.replay()

    def sample(self) -> None:
        self.work()  # so that the clock settles to this contender's
        self.us.append(seconds(self.work) / (self.replays * self.calls) * 1e6)


def seconds(work: Callable[[], None]) -> float:
    """GPU seconds of the launches that `work` enqueues."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3  # elapsed_time is in milliseconds


def inputs(case: Case) -> list[Tensors]:
    """Return input sets (a, b, c, out) that together exceed L2."""
    dtype = verify.TORCH_DTYPES[case.dtype]
    extents = ((case.m, case.k), (case.k, case.n), (case.m, case.n))
    size = sum(rows * cols for rows, cols in extents) * dtype.itemsize
    count = max(1, min(MAX_SETS, math.ceil(ROTATED_BYTES / size)))
    sets = []
    for seed in range(count):
        a, b, c = (verify.operand(*shape, "r", case.dtype, 3 * seed + i) for i, shape in enumerate(extents))
        sets.append((a, b, c, torch.empty_like(c)))
    return sets


def measure(case: Case, calls: dict[str, Call], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Time cuBLAS and `calls` on one problem, interleaved in a random order per round.

    Returns one row per contender; ratio is cuBLAS's time over the contender's.
    """
    sets = inputs(case)
    contenders = [
        _Contender(name, call, sets) for name, call in {BASELINE: cublas_call(case), **calls}.items()
    ]
    heated = 0.0
    while heated < PREHEAT_SECONDS:
        heated += seconds(contenders[0].work)
    order = random.Random(0)
    for _ in range(rounds):
        for contender in order.sample(contenders, len(contenders)):
            contender.sample()
    baseline = statistics.median(contenders[0].us)
    return [_row(case, contender, baseline) for contender in contenders]


def _row(case: Case, contender: _Contender, baseline: float) -> dict[str, Any]:
    us = statistics.median(contender.us)
    return {
        "suite": "handwritten",
        "dtype": case.dtype,
        "majors": "rr",
        "m": case.m,
        "n": case.n,
        "k": case.k,
        "batch": 1,
        "epilogue": "none",
        "beta": case.beta,
        "contender": contender.name,
        "us": us,
        "us_min": min(contender.us),
        "us_max": max(contender.us),
        "rounds": len(contender.us),
        "regime": "sustained",
        "settled": True,  # every sample follows equal work of the same contender
        "tflops": case.flops / us / 1e6,
        "baseline": BASELINE,
        "baseline_us": baseline,
        "ratio": baseline / us,
    }


def environment(commit: str) -> dict[str, Any]:
    """Return the environment of the measurement; with driver, clocks and power if NVML is installed."""
    from cuda.bindings import nvrtc

    gpu = torch.cuda.get_device_properties(0)
    found = {
        "gpu": gpu.name,
        "sms": gpu.multi_processor_count,
        "cuda": torch.version.cuda,
        "nvrtc": ".".join(map(str, nvrtc.nvrtcVersion()[1:])),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "sources": source_digest(),
    }
    try:
        import pynvml
    except ImportError:
        return found
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return found | {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "sm_mhz_max": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "power_limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
