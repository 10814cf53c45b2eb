# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing on a fake GPU whose clock advances by what is launched."""

import pytest
import torch

from benchmarks import inputs, timing
from benchmarks.results import Case
from benchmarks.timing import Contender, Regime

FAST, SLOW = 10e-6, 30e-6  # seconds a call of the two contenders takes on the fake GPU


class FakeGpu:
    """Launches cost seconds on its clock; replays of a captured graph cost what was captured."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []  # contender or "rest", run after run
        self.touched: list[int] = []
        self.slowdown = 1.0

    def contender(self, name: str, seconds: float) -> Contender:
        def call(inputs: int) -> None:
            self.now += seconds * self.slowdown
            self.touched.append(inputs)
            if self.log[-1:] != [name]:
                self.log.append(name)

        return Contender(name, call)

    def capture(self, launch):
        return launch  # a replay launches the same again

    def time(self, work, on_wait=None):
        start = self.now
        work()
        for _ in range(4 if on_wait else 0):
            on_wait()
        return self.now - start

    def rest(self, seconds):
        self.now += seconds
        self.log.append("rest")


class FakeSensors:
    """Reads high at first and low from the third reading of a sample on."""

    def __init__(self) -> None:
        self.count = 0

    def read(self):
        self.count += 1
        return (1900, 300.0) if self.count % 4 in (1, 2) else (1500, 690.0)


def regime(**changes) -> Regime:
    """A short regime with some fields changed."""
    return Regime(**({"name": "r", "preheat": 0.0, "rest": 0.0, "sample": 2e-3, "rounds": 5} | changes))


def pair(gpu: FakeGpu) -> list[Contender]:
    """A fast and a slow contender."""
    return [gpu.contender("fast", FAST), gpu.contender("slow", SLOW)]


def test_times_are_per_call():
    """Microseconds a call come out as the fake GPU takes, whatever sets, passes and replays there were."""
    gpu = FakeGpu()
    times = timing.measure(pair(gpu), [1, 2, 3], regime(), device=gpu)
    assert list(times) == ["fast", "slow"]
    assert times["fast"].us == pytest.approx(10) and times["slow"].us == pytest.approx(30)
    assert (times["fast"].rounds, times["fast"].sm_mhz, times["fast"].watts) == (5, None, None)


def test_drift_falls_on_all_alike():
    """A GPU that slows down from sample to sample leaves the ratio of contenders near the truth."""
    gpu = FakeGpu()
    gpu.rest = lambda seconds: setattr(gpu, "slowdown", gpu.slowdown * 1.01)
    times = timing.measure(pair(gpu), [1, 2], regime(rest=1e-3, rounds=21), device=gpu)
    assert times["slow"].us / times["fast"].us == pytest.approx(3, rel=0.03)
    assert times["fast"].us_max / times["fast"].us_min > 1.3, "the drift was there"


def test_every_set_is_used_equally():
    """Inputs rotate: consecutive launches never share a set and all sets are used as often."""
    gpu = FakeGpu()
    timing.measure(pair(gpu), [1, 2, 3], regime(), device=gpu)
    assert all(x != y for x, y in zip(gpu.touched, gpu.touched[1:], strict=False))
    assert len({gpu.touched.count(i) for i in (1, 2, 3)}) == 1


def test_rounds_interleave_in_changing_order():
    """Each round holds every contender once, and the order within rounds is not always the same."""
    gpu = FakeGpu()
    timing.measure(pair(gpu), [1, 2], regime(rest=0.1, rounds=12), device=gpu)
    samples = [name for name in gpu.log[gpu.log.index("rest") :] if name != "rest"]
    rounds = [tuple(samples[i : i + 2]) for i in range(0, len(samples), 2)]
    assert len(rounds) == 12 and set(rounds) == {("fast", "slow"), ("slow", "fast")}


def test_samples_are_as_long_as_the_regime_says():
    """A sample lasts at least the regime's time, and not over twice it when a graph is short."""
    gpu = FakeGpu()
    entry = timing._Entry(pair(gpu)[0], [1, 2], gpu, 0.1)
    assert 0.0999 < entry.measure(gpu, None) < 0.2
    assert entry.calls * FAST == pytest.approx(timing.GRAPH_SECONDS)


def test_preheat_comes_before_the_first_sample():
    """The work before round one is at least the preheat, and the same without it is shorter by that."""
    cold, hot = FakeGpu(), FakeGpu()
    timing.measure(pair(cold), [1], regime(), device=cold)
    timing.measure(pair(hot), [1], regime(preheat=0.3), device=hot)
    assert 0.3 <= hot.now - cold.now < 0.32


def test_first_half_of_readings_is_dropped():
    """Clock and power are medians of each sample's second half, when what ran before no longer shows."""
    gpu = FakeGpu()
    times = timing.measure(pair(gpu), [1, 2], regime(), device=gpu, sensors=FakeSensors())
    assert (times["slow"].sm_mhz, times["slow"].watts) == (1500, 690.0)


def test_regimes():
    """Burst rests and does not preheat; sustained is the other way round and samples longer."""
    burst, sustained = timing.REGIMES["burst"], timing.REGIMES["sustained"]
    assert burst.rest > 0 == burst.preheat and sustained.preheat >= 0.3 and sustained.rest == 0
    assert sustained.sample > 10 * burst.sample and burst.rounds % 2 == sustained.rounds % 2 == 1


@pytest.mark.gpu
def test_on_the_gpu():
    """Replayed matmuls on a GPU take less the smaller they are, and computing D is what was captured."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    times = {}
    for size in (512, 4096):
        sets = inputs.make_sets(
            Case(suite="square", dtype="bf16", majors="kk", m=size, n=size, k=size), "cuda", 2
        )
        call = Contender("mm", lambda x: torch.matmul(x.a, x.b, out=x.out))
        times[size] = timing.measure([call], sets, regime(), device=timing.Device())["mm"]
        assert torch.equal(sets[1].out, sets[1].a @ sets[1].b)
    assert times[512].us * 5 < times[4096].us
