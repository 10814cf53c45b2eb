# SPDX-License-Identifier: Apache-2.0
"""One `Gemm` used by several streams, threads and graphs at once on a GPU, and after a run that was abandoned.

CTAs that meet share memory: parts of K, counters of parts, a counter of works. Whatever overlaps, each run has its own.
"""

from __future__ import annotations

import functools
import threading

import pytest
import torch

from cutegemm import GemmSpec, Tile, problem
from cutegemm.compiling import kernel_cache
from cutegemm.gemm import Gemm, representative
from cutegemm.planning.planner import plan
from cutegemm.running.backends import counters
from tests.support.numerics import assert_close

pytestmark = pytest.mark.gpu

BF16 = torch.bfloat16
SMALL = {"tile": Tile(64, 64, 64), "swap": False, "sms": 24}
SPECS = {
    "by a launch": GemmSpec(**SMALL, split_k=9, split_reduction="launch"),
    "by a launch, odd operands": GemmSpec(**SMALL, split_k=3, split_reduction="launch", a_load="relayout"),
    "in clusters": GemmSpec(**SMALL, cluster=(1, 1, 4)),
    "in clusters of two tiles": GemmSpec(**SMALL, cluster=(2, 1, 2)),
    "in clusters, then by a launch": GemmSpec(
        **SMALL, cluster=(1, 1, 2), split_k=8, split_reduction="launch"
    ),
    "in workspace": GemmSpec(**SMALL, split_k=4, split_reduction="workspace"),
    "in clusters, then in workspace": GemmSpec(
        **SMALL, cluster=(1, 1, 2), split_k=4, split_reduction="workspace"
    ),
    "atomic": GemmSpec(**SMALL, split_k=4, split_reduction="atomic"),
    "in clusters, then atomic": GemmSpec(**SMALL, cluster=(1, 1, 2), split_k=4, split_reduction="atomic"),
    "stream-K": GemmSpec(**SMALL, scheduler="stream_k"),
    "dynamic": GemmSpec(**SMALL, scheduler="dynamic"),
}
SHAPE = (200, 264, 2056)
CALLS = 40
THREADS = 4


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Every kernel, compiled in parallel."""
    of = problem(*SHAPE)
    kernel_cache.ensure(
        list(dict.fromkeys(step.config for spec in SPECS.values() for step in plan(spec, of).steps))
    )


@functools.cache
def gemm(name: str) -> Gemm:
    """One for all of a spec's tests."""
    return Gemm(SPECS[name], representative(SPECS[name]))


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and an output."""
    m, n, k = SHAPE
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = (torch.randn(x, generator=generator, device="cuda").to(BF16) for x in ((m, k), (k, n)))
    return a, b, torch.full((m, n), torch.nan, device="cuda", dtype=BF16)


def expected(name: str, seed: int) -> torch.Tensor:
    """What a run that nothing overlaps gives, compared with fp64."""
    a, b, out = drawn(seed)
    torch.cuda.synchronize()
    gemm(name).run(a, b, out=out)
    torch.cuda.synchronize()
    assert_close(out, a, b)
    return out


def assert_same(name: str, out: torch.Tensor, wanted: torch.Tensor) -> None:
    """Every bit; of additions in no order all but the last ones of bf16."""
    if "atomic" in name:
        torch.testing.assert_close(out, wanted, rtol=2**-6, atol=0.5)
    else:
        assert torch.equal(out, wanted)


def assert_counters_zero() -> None:
    """Every launch has left its counters as it found them."""
    torch.cuda.synchronize()
    for kept in counters.owner(torch.cuda.current_device())._kept:
        assert not kept.any()


@pytest.mark.parametrize("name", SPECS)
def test_two_streams(name):
    """Runs on two streams overlap; each gives what it gives alone."""
    wanted = [expected(name, seed) for seed in (1, 2)]
    sets = [drawn(seed) for seed in (1, 2)]
    outs = [[torch.empty_like(wanted[0]) for _ in range(CALLS)] for _ in sets]
    streams = [torch.cuda.Stream() for _ in sets]
    torch.cuda.synchronize()
    for i in range(CALLS):
        for stream, (a, b, _), out in zip(streams, sets, outs, strict=True):
            with torch.cuda.stream(stream):
                gemm(name).run(a, b, out=out[i])
    torch.cuda.synchronize()
    for made, want in zip(outs, wanted, strict=True):
        for out in made:
            assert_same(name, out, want)
    assert_counters_zero()


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("shared", [False, True], ids=["a stream each", "one stream"])
def test_threads(name, shared):
    """Threads launch at once, on streams of their own or all on one."""
    wanted = {seed: expected(name, seed) for seed in range(THREADS)}
    outs: dict[int, list[torch.Tensor]] = {}
    failures: list[BaseException] = []
    one = torch.cuda.Stream()
    ready = threading.Barrier(THREADS)

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(one if shared else torch.cuda.Stream()):
                a, b, _ = drawn(seed)
                ready.wait()
                outs[seed] = [gemm(name).run(a, b) for _ in range(CALLS)]
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    for seed, made in outs.items():
        for out in made:
            assert_same(name, out, wanted[seed])
    assert_counters_zero()


@pytest.mark.parametrize("name", SPECS)
def test_replays_at_once(name):
    """Two graphs of one `Gemm` are replayed on two streams while calls run on a third."""
    wanted = [expected(name, seed) for seed in (1, 2, 3)]
    sets = [drawn(seed) for seed in (1, 2, 3)]
    streams, graphs = [torch.cuda.Stream() for _ in sets], []
    for a, b, out in sets[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                gemm(name).run(a, b, out=out)
        graphs.append(graph)
    torch.cuda.synchronize()
    for _ in range(CALLS):
        for stream, graph in zip(streams, graphs, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            a, b, out = sets[2]
            gemm(name).run(a, b, out=out)
    torch.cuda.synchronize()
    for (_, _, out), want in zip(sets, wanted, strict=True):
        assert_same(name, out, want)
    assert_counters_zero()


@pytest.mark.parametrize("name", SPECS)
def test_after_a_run_that_was_abandoned(name, monkeypatch):
    """An error before a run's last launch, over memory that holds anything, leaves nothing that the next run meets."""
    want = expected(name, 1)
    a, b, out = drawn(1)
    prepared = next(iter(gemm(name)._kinds.values()))
    prepared = getattr(prepared, "prepared", prepared)  # the launches of a call with given outputs
    need = prepared.kind.plan.workspace_bytes
    workspace = torch.full((need,), 255, dtype=torch.uint8, device="cuda") if need else None

    def stop(*arguments):
        raise KeyboardInterrupt

    if prepared.alone is None:
        with monkeypatch.context() as patch:
            patch.setattr(prepared, "launches", [*prepared.launches[:-1], stop])
            for _ in range(3):
                with pytest.raises(KeyboardInterrupt):
                    gemm(name).run(a, b, out=out, workspace=workspace)
    for _ in range(3):
        out.fill_(torch.nan)
        gemm(name).run(a, b, out=out, workspace=workspace)
        torch.cuda.synchronize()
        assert_same(name, out, want)
    assert_counters_zero()
