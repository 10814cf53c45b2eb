# SPDX-License-Identifier: Apache-2.0
"""Products by other libraries, where they are installed: quack-kernels 0.6 (https://github.com/Dao-AILab/quack) by
default and tuned, and what torch.compile makes of torch.mm and torch.bmm.

quack's own tuner launches every candidate 250 times and for a fifth of a second at least. Here its candidates
(`quack.gemm_interface.gemm_tuned.configs`, those with K cut among them) are compiled by its own workers, get one short
sample each, and the best four are timed against each other as every contender of a benchmark is.
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
from cutegemm.tuning.timing import Sampler

QUACK, QUACK_TUNED, COMPILED = "quack", "quack_tuned", "torch_compile"
NAMES = (QUACK, QUACK_TUNED, COMPILED)

# of quack's tuning: the most sets of operands and the seconds of a candidate's one sample, how many are then timed
# again, and how long compiling may take
TUNING_SETS = 16
TUNING_SAMPLE = 0.01
FINALISTS = 4
COMPILE_SECONDS = 120.0

_T = TypeVar("_T")
Run = Callable[[_T, InputSet], Any]


class LeftOut(Exception):
    """A library that is not installed or does not serve a problem."""


def make(name: str, case: Case, *, device: timing.Replayer | None = None, memory: str = "cuda") -> Contender:
    """A library's contender for one problem; its call raises `LeftOut` where the library raises anything.

    Args:
        name: of the contender.
        case: the problem.
        device: what times candidates.
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
    # who refuses a problem refuses it whatever the candidate
    _guarded(default).call(sets[0])
    best, count = _tuned(quack, sets, device or timing.Device())
    plan = f"quack {version}, {label(best)}, best of {count}"
    return _guarded(Contender(QUACK_TUNED, partial(_run, quack, best), plan))


def max_autotune(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile at its fastest; CUDA graphs are left to the timing, which puts every contender in one."""
    compiled: Callable[..., Any] = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
    return compiled


def _compiled(case: Case) -> Contender:
    """torch.compile's product, which returns a D of its own: into a given one it would copy."""
    # torch keeps code for eight shapes a function, then runs it uncompiled
    torch._dynamo.reset()
    product = torch.mm if case.batch == 1 else torch.bmm
    multiply = max_autotune(lambda a, b: product(a, b))
    return Contender(COMPILED, lambda x: multiply(x.a, x.b), f"torch {torch.__version__}, max-autotune")


def _quack() -> Any:
    try:
        return importlib.import_module("quack.gemm_interface")
    # an older DSL or driver shows as any error
    except Exception as error:
        raise LeftOut(f"quack-kernels cannot be imported: {runs.reason(error)}") from error


def _guarded(contender: Contender) -> Contender:
    def call(x: InputSet) -> Any:
        try:
            return contender.call(x)
        # whatever a library dies of, the others are measured
        except Exception as error:
            raise LeftOut(runs.reason(error)) from error

    return Contender(contender.name, call, contender.plan)


def _run(quack: Any, config: Any, x: InputSet) -> None:
    quack.gemm_tuned.fn(x.a, x.b, x.out, config=config, split_k=config.split_k)


def _tuned(quack: Any, sets: list[InputSet], device: timing.Replayer) -> tuple[Any, int]:
    """quack's fastest candidate, and among how many.

    Raises:
        LeftOut: no candidate is right.
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
    """The candidates that run, each asked again while `pending` says that its kernel is being compiled elsewhere."""
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
            # too much shared memory, no such instruction: it is none for this problem
            except Exception:
                continue
        waiting = again
        if waiting:
            sleep(0.05)
    return usable


def fastest(candidates: Sequence[_T], run: Run[_T], sets: list[InputSet], device: timing.Replayer) -> _T:
    """The fastest candidate that is right: one short sample of each, then the best few against each other.

    Raises:
        LeftOut: none is right.
    """
    ranked: list[tuple[float, int]] = []
    for index, candidate in enumerate(candidates):
        try:
            ranked.append((_sample(partial(run, candidate), sets[:TUNING_SETS], device), index))
        # it ran once, but not in a graph
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
    """Microseconds a call, from one short sample."""

    def one_pass() -> None:
        for x in sets:
            call(x)

    sampler = Sampler("", one_pass, len(sets), device, TUNING_SAMPLE)
    sampler.measure(device)
    return sampler.us[0]


def label(config: Any) -> str:
    """A quack config on one line."""
    words = [f"tile {config.tile_m}x{config.tile_n}", f"cluster {config.cluster_m}x{config.cluster_n}"]
    words += ["pingpong" if config.pingpong else "cooperative"]
    words += ["swapped"] if config.swap_ab else []
    words += [f"K in {config.split_k} parts"] if config.split_k > 1 else []
    return ", ".join(words)
