# SPDX-License-Identifier: Apache-2.0
"""Cache hints stand in the PTX where they were asked for, and change no result."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Options
from cutegemm.errors import GemmError, PlanError
from cutegemm.gemm import Gemm
from cutegemm.planning import gemv_tiles
from cutegemm.planning.planner import plan
from cutegemm.spec import AUTO
from tests.support.numerics import assert_close

FIELDS = {"tile": Tile(64, 64, 64), "swap": False, "sms": 2}
OF = problem(136, 136, 136)
CREATED = re.compile(r"createpolicy\.fractional\.L2::evict_(\w+)\.b64 (%\w+)")
COPY = re.compile(r"cp\.async\.bulk\.tensor\S* .*, (%\w+);")


def hints_of(ptx):
    """What each TMA copy of a kernel says, in order: loads of A and of B, then stores."""
    made = {register: how for how, register in CREATED.findall(ptx)}
    return [made.get(register) for register in COPY.findall(ptx)]


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({}, [None, None, None]),
        ({"evict_first": ("a", "d")}, ["first", None, "first"]),
        ({"evict_first": ("a", "b"), "cluster": (2, 1)}, ["first", "first", None]),
    ],
)
def test_hints_are_in_the_ptx_and_change_no_bit(fields, hints):
    """Each copy has the policy that was asked for; D is that of the kernel without any."""
    spec = GemmSpec(**FIELDS, **fields)
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(136, 136, generator=generator).bfloat16() for _ in range(2))
    run = emulator.run(Gemm(spec), a, b, options=Options(policy="random", seed=1, races=True))
    assert not run.findings
    assert_close(run.d, a, b)
    assert hints_of(kernel_cache.artifact(plan(spec, OF).config).ptx) == hints


def test_hints_follow_operands_that_are_swapped():
    """The kernel's A is B's transpose."""
    config = plan(GemmSpec(swap=True, evict_first=("b", "d")), OF).config
    assert sorted(config.evict_first) == ["a", "d"]


def test_what_one_row_of_tiles_reads_goes_first_where_it_is_large():
    """Weights at decode, however operands are swapped; not what displaces little, or tiles share, or what is given."""

    def first(m, n, k, **fields):
        made = plan(GemmSpec(**fields), problem(m, n, k, majors="kk"))
        role = "a" if made.swapped else "b"
        assert set(made.config.evict_first) <= {role}
        return made.config.evict_first == (role,)

    assert first(8, 8192, 8192) and first(8, 8192, 8192, swap=True) and first(8, 8192, 8192, swap=False)
    most = int(DEFAULT.thresholds.displaced * DEFAULT.l2_bytes) // 2048
    assert first(8, 1024, most + 8) and not first(8, 1024, most)
    assert not first(4096, 4096, 4096)
    assert not first(8, 8192, 8192, evict_first=()) and not first(8, 8192, 8192, b_load="gather")


@pytest.mark.parametrize(("m", "k"), [(1, 1032), (3, 1032), (2, 1029)])
@pytest.mark.parametrize("constant", [AUTO, ("b",)])
def test_columns_of_b_that_go_first(monkeypatch, constant, m, k):
    """A few rows on the CUDA cores: every word of B bypasses L1 and has the policy, those of A have none."""
    monkeypatch.setattr(gemv_tiles, "displaces", lambda *_, weights: True)
    n = 83  # a problem of this test alone: plans are kept
    spec = GemmSpec(schedule="simt", tile=Tile(m, 8, 512), constant=constant)
    config = plan(spec, problem(m, n, k, majors="kk")).config
    assert config.evict_first == ("b",)
    ptx = kernel_cache.artifact(config).ptx
    before, after = (
        Counter(re.findall(r"ld\.global(\S*)\.v4\S* ", x)) for x in ptx.split("griddepcontrol.wait;", 1)
    )
    hinted, early = ".cg.L2::cache_hint", config.own * config.words if config.early else 0
    assert before == Counter({hinted: early})
    # a whole block and the rest: of each place the words of B, and of each row one word, or two if unaligned
    blocks = 2 * config.words
    assert after == {
        hinted: blocks * config.own,
        "": blocks * m * (1 if config.aligned else 2) + early // config.own * m,
    }
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(m, 1032, generator=generator)[:, :k], torch.randn(n, k, generator=generator)
    run = emulator.run(Gemm(spec), a.bfloat16(), b.bfloat16().mT, options=Options(races=True))
    assert not run.findings
    assert_close(run.d, a.bfloat16(), b.bfloat16().mT)


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "k"), [(1, 4096), (1, 4097), (2, 5000), (4, 4095)])
@pytest.mark.parametrize("constant", [AUTO, ("b",)])
def test_columns_that_go_first_on_a_gpu(constant, m, k):
    """Launches in a row, of which the second multiplies what the first has written."""
    n = 4096
    spec = GemmSpec(schedule="simt", constant=constant)
    assert plan(spec, problem(m, n, k, majors="kk")).config.evict_first == ("b",)
    gemm, generator = Gemm(spec), torch.Generator("cuda").manual_seed(1)
    few = torch.zeros(m, k + 8 - k % 8, device="cuda", dtype=torch.bfloat16)[:, :k]
    few.copy_(torch.randn(m, k, generator=generator, device="cuda"))
    b = torch.randn(n, k, generator=generator, device="cuda").bfloat16().mT
    first, second = (torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gemm.run(few, b, out=first)
    few[:, : min(n, k)].copy_(first[:, : min(n, k)] / k**0.5)
    gemm.run(few, b, out=second)
    assert_close(second, few, b)


def test_few_rows_have_the_hint_where_b_is_large():
    """As operands that TMA loads."""
    most = int(DEFAULT.thresholds.displaced * DEFAULT.l2_bytes) // 2048
    spec = GemmSpec(schedule="simt")
    below, above = (plan(spec, problem(1, 1024, k, majors="kk")).config for k in (most, most + 8))
    assert (below.evict_first, above.evict_first) == ((), ("b",))


def test_a_goes_first_from_half_of_l2_on():
    """It may be an activation that is read again; with few columns, on the CUDA cores, too."""
    most = DEFAULT.l2_bytes // 4096
    for columns, fields, role in (
        (8, {"swap": False}, "a"),
        (8, {"swap": True}, "b"),
        (1, {"schedule": "simt"}, "b"),
    ):
        below, above = (
            plan(GemmSpec(**fields), problem(1024, columns, k, majors="kk")).config for k in (most, most + 8)
        )
        assert (below.evict_first, above.evict_first) == ((), (role,)), fields


@pytest.mark.parametrize(("rows", "schedule"), [(1, "simt"), (1, "cooperative"), (16, "cooperative")])
def test_what_a_batch_shares_stays(rows, schedule):
    """Every product of the batch reads it again."""
    own = problem(rows, 4096, 4096, batch=8, majors="kk")
    shared = dataclasses.replace(own.b, batch=1, strides=(*own.b.strides[:2], 0))
    spec = GemmSpec(schedule=schedule, swap=AUTO if schedule == "simt" else False)
    hints = [plan(spec, dataclasses.replace(own, b=b)).config.evict_first for b in (own.b, shared)]
    assert hints == [("b",), ()]


def test_only_b_goes_first_of_a_few_rows():
    """All CTAs read A."""
    config = plan(GemmSpec(schedule="simt"), problem(1, 512, 512, majors="kk")).config
    with pytest.raises(PlanError, match="only B is read once"):
        dataclasses.replace(config, evict_first=("a",))


def test_a_hint_that_nobody_can_give_is_refused():
    """Loads through registers have none."""
    with pytest.raises(PlanError) as caught:
        plan(GemmSpec(**FIELDS, a_load="gather", evict_first=("a", "b")), OF)
    assert (caught.value.field, caught.value.nearest) == ("evict_first", ("b",))


def test_the_hint_that_went_names_its_successor():
    """A spec with `evict_last` is refused; the nearest field is the hint that is left."""
    with pytest.raises(GemmError) as caught:
        GemmSpec(evict_last=("b",))
    assert (caught.value.field, caught.value.nearest) == ("evict_last", "evict_first")
