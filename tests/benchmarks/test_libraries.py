# SPDX-License-Identifier: Apache-2.0
"""Other libraries' contenders, with a quack that computes on the CPU and costs what it is said to."""

import contextlib
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch

from benchmarks import contenders, correctness, inputs, libraries
from benchmarks.results import Case
from benchmarks.timing import Contender
from tests.support.fake_gpu import FakeGpu

CASE = Case(suite="custom", dtype="bf16", majors="kk", m=64, n=128, k=64)


class Pending(BaseException):
    """A kernel is being compiled elsewhere."""


@dataclass(frozen=True)
class Config:
    """What quack chooses, beside what this fake makes of it."""

    tile_m: int
    microseconds: float
    fault: str = ""
    tile_n: int = 128
    cluster_m: int = 2
    cluster_n: int = 1
    pingpong: bool = True
    swap_ab: bool = False
    split_k: int = 1


class Quack:
    """Stands for the package, as far as it is used."""

    def __init__(self, gpu, configs):
        self.gpu, self.compiled = gpu, []
        self.gemm_tuned = SimpleNamespace(configs=[SimpleNamespace(kwargs={"config": x}) for x in configs])
        self.gemm_tuned.fn = self.fn

    def gemm(self, a, b, *, out, tuned):
        """By default: 16-byte rows are wanted."""
        assert not tuned
        if out.shape[-1] % 8:
            raise ValueError("Mismatched Tensor on argument #2\nexpected a stride that 8 divides")
        out.copy_(a.float() @ b.float())

    def fn(self, a, b, out, *, config, split_k):
        """One candidate."""
        assert split_k == config.split_k
        if config not in self.compiled:
            self.compiled.append(config)
            raise Pending
        if config.fault == "raises":
            raise RuntimeError("too much shared memory")

        def call(x):
            out.copy_((a.float() @ b.float()) * (2 if config.fault == "wrong" else 1))

        self.gpu.costing(Contender("x", call), config.microseconds * 1e-6).call(None)

    @staticmethod
    def prune_invalid_gemm_configs(configs, named):
        """All, where K may be cut."""
        assert named["split_k"] is None and named["A"].shape == (64, 64)
        return configs


@pytest.fixture
def quack(monkeypatch):
    """Installs a quack with these configs on a fake GPU; its package and that GPU."""

    def install(*configs):
        gpu = FakeGpu()
        found = Quack(gpu, configs)
        cache = SimpleNamespace(pool_scope=contextlib.nullcontext, CompilePending=Pending)
        parts = {"quack": SimpleNamespace(__version__="0.6"), "quack.gemm_interface": found}
        for name, module in (parts | {"quack.cache": cache}).items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(inputs, "set_count", lambda case: 2)
        return found, gpu

    return install


@pytest.mark.parametrize("finalists", [1, 4])
def test_tuning_takes_the_fastest_candidate_that_is_right(quack, monkeypatch, finalists):
    """One that raises or is wrong wins nothing; a kernel that is being compiled is asked for again."""
    monkeypatch.setattr(libraries, "FINALISTS", finalists)
    found, gpu = quack(
        Config(1, 3000.0), Config(2, 500.0, "wrong"), Config(3, 1000.0, split_k=4), Config(4, 1.0, "raises")
    )
    tuned = libraries.make("quack_tuned", CASE, device=gpu, memory="cpu")
    assert len(found.compiled) == 4
    assert tuned.plan == "quack 0.6, tile 3x128, cluster 2x1, pingpong, K in 4 parts, best of 3"
    correctness.check(tuned.call, inputs.make_sets(CASE, "cpu", 1)[0])


def test_nothing_right_is_left_out(quack):
    """Where no candidate is right the reason counts them."""
    _, gpu = quack(Config(1, 1.0, "wrong"), Config(2, 1.0, "raises"))
    with pytest.raises(libraries.LeftOut, match="none of 1 candidates runs and is right"):
        libraries.make("quack_tuned", CASE, device=gpu, memory="cpu")


def test_compiling_ends():
    """A kernel that is never ready is given up after a while."""
    now = [0.0]

    def never(config, x):
        raise Pending

    def sleep(seconds):
        now[0] += seconds

    found = libraries.compiled([1], never, None, Pending, clock=lambda: now[0], sleep=sleep)
    assert found == [] and now[0] >= libraries.COMPILE_SECONDS


@pytest.mark.parametrize("name", ["quack", "quack_tuned"])
def test_refusal_is_one_line(quack, name):
    """A problem whose rows are no multiple of 16 bytes is refused before anything is tuned, in the library's words."""
    found, gpu = quack(Config(1, 1.0))
    odd = Case(suite="odd", dtype="bf16", majors="kk", m=64, n=33, k=64)
    with pytest.raises(libraries.LeftOut, match=r"^ValueError: Mismatched Tensor .* / expected a stride"):
        made = libraries.make(name, odd, device=gpu, memory="cpu")
        made.call(inputs.make_sets(odd, "cpu", 1)[0])
    assert found.compiled == []


def test_default_is_right(quack):
    """quack's default writes D where it is told to."""
    quack()
    made = contenders.make("quack", CASE)
    correctness.check(made.call, inputs.make_sets(CASE, "cpu", 1)[0])
    assert (made.name, made.plan) == ("quack", "quack 0.6, default")


def test_missing_library_is_left_out(monkeypatch):
    """A library that cannot be imported is left out, and the reason names the import error."""
    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", None)
    with pytest.raises(libraries.LeftOut, match="quack-kernels cannot be imported: ModuleNotFoundError"):
        contenders.make("quack", CASE)


@pytest.mark.parametrize("batch", [1, 3])
def test_what_torch_compile_returns_is_checked(monkeypatch, batch):
    """Its D is its own, not the given one, and every problem is compiled anew."""
    case = Case(suite="custom", dtype="bf16", majors="kk", batch=batch, m=16, n=24, k=32)
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(case))
    monkeypatch.setattr(libraries, "max_autotune", lambda function: lambda a, b: function(a, b) * factor)
    (x,) = inputs.make_sets(case, "cpu", 1)
    factor = 1
    made = contenders.make("torch_compile", case)
    correctness.check(made.call, x)
    assert bool(x.out.isnan().all()) and resets == [case]
    factor = 2
    with pytest.raises(correctness.WrongResult, match="Frobenius error"):
        correctness.check(made.call, x)


def test_torch_compile_that_fails_is_left_out(monkeypatch):
    """Whatever the compiler dies of is the reason."""

    def broken(a, b):
        raise RuntimeError("no triton")

    monkeypatch.setattr(libraries, "max_autotune", lambda function: broken)
    with pytest.raises(libraries.LeftOut, match="RuntimeError: no triton"):
        contenders.make("torch_compile", CASE).call(inputs.make_sets(CASE, "cpu", 1)[0])
