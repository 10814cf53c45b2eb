# SPDX-License-Identifier: Apache-2.0
"""Interleaved timing on a fake GPU whose clock advances by what is launched."""

import pytest
import torch

from benchmarks import inputs, timing
from benchmarks.results import Case
from benchmarks.timing import Contender, Regime
from cutegemm.tuning.timing import GRAPH_SECONDS
from tests.support.fake_gpu import FakeGpu

FAST, SLOW = 10e-6, 30e-6  # seconds a call of the two contenders takes on the fake GPU


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


def test_orders_alternate():
    """Every second round is the reverse of the one before, and the next pair begins with another contender."""
    first, second, *_ = found = list(timing.orders(["a", "b"], 8))
    assert found == [first, second, second, first] * 2 and first == second[::-1]
    for count in (3, 4, 5):
        rounds = list(timing.orders(range(count), 2 * count))
        assert all(x == y[::-1] for x, y in zip(rounds[::2], rounds[1::2], strict=True))
        for place in range(count):
            assert sorted(order[place] for order in rounds) == sorted(list(range(count)) * 2)


def test_second_of_a_pair_reads_slow_and_does_not_show():
    """Where whoever is timed second takes a tenth longer, two equal contenders still come out equal."""
    gpu = FakeGpu()
    gpu.rest = lambda seconds: None
    contenders = [gpu.contender("one", FAST), gpu.contender("other", FAST)]
    samples = []
    whole = gpu.time

    def time(work, on_wait=None):
        gpu.slowdown = 1.1 if on_wait and len(samples) % 2 else 1.0
        samples.extend([1] if on_wait else [])
        return whole(work, on_wait)

    gpu.time = time
    times = timing.measure(contenders, [1], regime(rounds=8), device=gpu, sensors=FakeSensors())
    assert times["one"].us == pytest.approx(times["other"].us, rel=1e-6)
    assert times["one"].us_max / times["one"].us_min == pytest.approx(1.1)


def test_rounds_interleave_in_changing_order():
    """Each round holds every contender once, in both orders as often."""
    gpu = FakeGpu()
    timing.measure(pair(gpu), [1, 2], regime(rest=0.1, rounds=12), device=gpu)
    samples = [name for name in gpu.log[gpu.log.index("rest") :] if name != "rest"]
    rounds = [tuple(samples[i : i + 2]) for i in range(0, len(samples), 2)]
    assert len(rounds) == 12
    assert rounds.count(("fast", "slow")) == rounds.count(("slow", "fast")) == 6


def test_samples_are_kept_in_the_order_of_rounds():
    """Each round's time of a contender is kept, so that those of one round pair up."""
    gpu = FakeGpu()
    gpu.rest = lambda seconds: setattr(gpu, "slowdown", gpu.slowdown * 1.01)
    times = timing.measure(pair(gpu), [1], regime(rest=1e-3, rounds=4), device=gpu)
    assert len(times["fast"].samples) == 4 and list(times["fast"].samples) == sorted(times["fast"].samples)
    ratios = [s / f for f, s in zip(times["fast"].samples, times["slow"].samples, strict=True)]
    assert ratios == pytest.approx([3, 3, 3, 3], rel=0.02)


def test_samples_are_as_long_as_the_regime_says():
    """A sample lasts at least the regime's time, and not over twice it when a graph is short."""
    gpu = FakeGpu()
    entry = timing.sampler(pair(gpu)[0], [1, 2], gpu, 0.1)
    assert 0.0999 < entry.measure(gpu, None) < 0.2
    assert entry.calls * FAST == pytest.approx(GRAPH_SECONDS)


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
    assert sustained.sample > 10 * burst.sample and burst.rounds % 2 == sustained.rounds % 2 == 0


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
