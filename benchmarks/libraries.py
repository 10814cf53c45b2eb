# SPDX-License-Identifier: Apache-2.0
"""GEMMs of other libraries, if installed: quack-kernels 0.6 (https://github.com/Dao-AILab/quack) with default and
tuned configs, and torch.compile of torch.mm and torch.bmm.

quack's own tuner launches every candidate at least 250 times and for at least 0.2 s. Here its candidates
(`quack.gemm_interface.gemm_tuned.configs`, split-K included) are compiled by its own workers and get one short sample
each. The best four are then timed interleaved, like every contender of a benchmark.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from benchmarks import correctness, inputs, runs, timing
from benchmarks.inputs import InputSet
from benchmarks.results import Case
from benchmarks.timing import Contender

QUACK, QUACK_TUNED, COMPILED = "quack", "quack_tuned", "torch_compile"
NAMES = (QUACK, QUACK_TUNED, COMPILED)

# tuning of quack: maximum input sets and seconds of a candidate's sample, candidates timed again, compile time limit
TUNING_SETS = 16
TUNING_SAMPLE = 0.01
FINALISTS = 4
COMPILE_SECONDS = 120.0

_T = TypeVar("_T")
Run = Callable[[_T, InputSet], Any]


class LeftOut(Exception):
    """A library is not installed or does not support a problem."""


def make(name: str, case: Case, *, device: timing.Replayer | None = None, memory: str = "cuda") -> Contender:
    """A library's contender for one problem. Its call turns every exception of the library into `LeftOut`.

    Args:
        name: of the contender.
        case: the problem.
        device: times candidates.
        memory: torch's name of the device that holds their operands.

    Raises:
        LeftOut: the library is not installed or has no kernel for the problem.
    """
    if name == COMPILED:
        return _guarded(_compiled(case))
    quack = _quack()
    version = importlib.import_module("quack").__version__
    default = Contender(
        QUACK,
        lambda x: quack.gemm(x.a, x.b, out=x.out, tuned=False),
        f"quack {version}, default",
    )
    if name == QUACK:
        return _guarded(default)
    sets = inputs.make_sets(case, memory, inputs.set_count(case))
    # a problem that quack refuses is refused for every candidate
    _guarded(default).call(sets[0])
    best, count = _tuned(quack, sets, device or timing.Device())
    plan = f"quack {version}, {label(best)}, best of {count}"
    return _guarded(Contender(QUACK_TUNED, partial(_run, quack, best), plan))


def compiled_anew() -> None:
    """Forget compiled code: torch keeps eight versions of a function, and runs it uncompiled for any other."""
    torch.compiler.reset()


def max_autotune(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile with max-autotune, without CUDA graphs: the timing captures every contender itself."""
    compiled: Callable[..., Any] = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
    return compiled


def default_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile in its default mode: GEMMs are cuBLAS's."""
    compiled: Callable[..., Any] = torch.compile(function, dynamic=False)
    return compiled


def _compiled(case: Case) -> Contender:
    """torch.compile's GEMM. It returns its own D, since writing into a given D would add a copy."""
    compiled_anew()
    product = torch.mm if case.batch == 1 else torch.bmm
    multiply = max_autotune(lambda a, b: product(a, b))
    return Contender(COMPILED, lambda x: multiply(x.a, x.b), f"torch {torch.__version__}, max-autotune")


def _quack() -> Any:
    try:
        return importlib.import_module("quack.gemm_interface")
    # an older DSL or driver can raise any error
    except Exception as error:
        raise LeftOut(f"quack-kernels cannot be imported: {runs.reason(error)}") from error


def _guarded(contender: Contender) -> Contender:
    def call(x: InputSet) -> Any:
        try:
            return contender.call(x)
        # an error of one library must not stop the others
        except Exception as error:
            raise LeftOut(runs.reason(error)) from error

    return Contender(contender.name, call, contender.plan)


def _run(quack: Any, config: Any, x: InputSet) -> None:
    quack.gemm_tuned.fn(x.a, x.b, x.out, config=config, split_k=config.split_k)


def _tuned(quack: Any, sets: list[InputSet], device: timing.Replayer) -> tuple[Any, int]:
    """quack's fastest candidate, and the number of candidates.

    Raises:
        LeftOut: no candidate is correct.
    """
    named = {"A": sets[0].a, "B": sets[0].b, "split_k": None}
    pruned = quack.prune_invalid_gemm_configs(quack.gemm_tuned.configs, named)
    candidates = [entry.kwargs["config"] for entry in pruned]
    run = partial(_run, quack)
    cache = importlib.import_module("quack.cache")
    with cache.pool_scope():
        usable = compiled(candidates, run, sets[0], cache.CompilePending)
    return fastest(usable, run, sets, device), len(usable)


def compiled(
    candidates: Sequence[_T],
    run: Run[_T],
    x: InputSet,
    pending: type[BaseException],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[_T]:
    """The candidates that run. A candidate that raises `pending` is still compiling and is tried again."""
    usable: list[_T] = []
    waiting, deadline = list(candidates), clock() + COMPILE_SECONDS
    while waiting and clock() < deadline:
        again = []
        for candidate in waiting:
            try:
                run(candidate, x)
                usable.append(candidate)
            except pending:
                again.append(candidate)
            # the candidate does not support the problem, as with too much shared memory
            except Exception:
                continue
        waiting = again
        if waiting:
            sleep(0.05)
    return usable


def fastest(candidates: Sequence[_T], run: Run[_T], sets: list[InputSet], device: timing.Replayer) -> _T:
    """The fastest correct candidate: one short sample each, then the best few interleaved.

    Raises:
        LeftOut: none is correct.
    """
    ranked: list[tuple[float, int]] = []
    for index, candidate in enumerate(candidates):
        try:
            ranked.append((_sample(partial(run, candidate), sets[:TUNING_SETS], device), index))
        # it runs, but not in a CUDA graph
        except Exception:
            continue
    finalists: list[Contender] = []
    for _, index in sorted(ranked):
        contender = Contender(str(index), partial(run, candidates[index]))
        try:
            correctness.check(contender.call, sets[0])
        except correctness.WrongResult:
            continue
        finalists.append(contender)
        if len(finalists) == FINALISTS:
            break
    if not finalists:
        raise LeftOut(f"none of {len(candidates)} candidates runs and is right")
    times = timing.measure(finalists, sets, timing.REGIMES["short"], device=device)
    return candidates[int(min(times, key=lambda name: times[name].us))]


def _sample(call: Callable[[InputSet], Any], sets: list[InputSet], device: timing.Replayer) -> float:
    """Microseconds per call, from one short sample."""
    sampler = timing.sampler(Contender("", call), sets, device, TUNING_SAMPLE)
    sampler.measure(device)
    return sampler.us[0]


def label(config: Any) -> str:
    """A quack config on one line."""
    words = [f"tile {config.tile_m}x{config.tile_n}", f"cluster {config.cluster_m}x{config.cluster_n}"]
    words += ["pingpong" if config.pingpong else "cooperative"]
    words += ["swapped"] if config.swap_ab else []
    words += [f"K in {config.split_k} parts"] if config.split_k > 1 else []
    return ", ".join(words)
