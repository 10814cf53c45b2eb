# SPDX-License-Identifier: Apache-2.0
"""How often fp8 sums are promoted: never for short K and rounded outputs, by a rule that every plan follows."""

import dataclasses

import numpy as np
import pytest
import torch

from cutegemm import GemmSpec, Tile, plan, problem
from cutegemm.arch.instructions import INSTRUCTIONS, instruction
from cutegemm.arch.records import DEFAULT
from cutegemm.dtypes import DType
from cutegemm.emulator.numbers.tensor_core import Unit, accumulate
from cutegemm.epilogue import library
from cutegemm.errors import PlanError
from cutegemm.ops.groups.grouped import planned
from cutegemm.planning import ranking, ways
from cutegemm.planning.why import predicted_us
from cutegemm.request.requirements import requested
from tests.support.planned import corrected

FP8 = instruction(DType.FP8_E4M3, DType.FP8_E4M3)
WHOLE, BEYOND = FP8.whole, FP8.whole + 1
REGISTERS = 255  # that an instruction can name, of a thread
REASON = f"sums are not promoted: K={WHOLE:,} is at most {WHOLE:,}, and every output is bf16 or fp8"
SQUARES = {"scale_a": ("block", 128, 128), "scale_b": ("block", 128, 128)}


def config(k, m=256, n=256, batch=1, **fields):
    """The config that is planned for fp8 operands with this K."""
    spec = GemmSpec(**fields)
    kind = {"dtype": "fp8", "majors": "kk", "batch": batch, "d_dtype": fields.get("d_dtype", "bf16")}
    graph = None if isinstance(spec.epilogue, str) else spec.epilogue
    return plan(spec, problem(m, n, k, epilogue=graph, **kind)).config


def sums(a, b, every):
    """A @ B.T of e4m3 as the tensor cores add it, promoted after so many elements of K."""
    total = np.zeros((1, a.shape[0], b.shape[0]), np.float32)
    for k in range(0, a.shape[1], every):
        part = (x[None, :, k : k + every].float().numpy() for x in (a, b))
        total = total + accumulate(*part, np.zeros_like(total), Unit("e4m3", "f32", FP8.k))
    return torch.from_numpy(total[0])


def growth(k, positive=False):
    """The relative error of D in bf16 without promotion, over that with promotion."""
    draw = torch.Generator().manual_seed(k)
    a, b = (torch.randn(384, k, generator=draw) for _ in "ab")
    a, b = (x.abs() if positive else x for x in (a, b))
    a, b = (x.to(torch.float8_e4m3fn) for x in (a, b))
    exact = a.double() @ b.double().T
    apart, whole = ((sums(a, b, x).bfloat16() - exact).norm().item() for x in (FP8.coarse, k))
    return whole / apart


def test_the_longest_whole_sum_adds_two_percent():
    """At most, to the error of D in bf16, for normally distributed operands; one promotion later it is more."""
    assert 1.005 < growth(WHOLE) < 1.02 < growth(WHOLE + FP8.coarse)
    # sums of one sign lose much more
    assert 2 < growth(WHOLE, positive=True) < 3


@pytest.mark.parametrize("k", [FP8.k, 512, WHOLE])
@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3", "fp8_e5m2"])
def test_short_sums_of_rounded_outputs_stay_whole(dtype, k):
    """Up to the limit, and the plan says so; longer ones are promoted."""
    assert config(k, d_dtype=dtype).promote == 0
    assert config(BEYOND, d_dtype=dtype).promote == FP8.coarse
    reasons = [
        plan(GemmSpec(), problem(64, 64, x, dtype="fp8", majors="kk")).reasons for x in (WHOLE, BEYOND)
    ]
    assert [REASON in x for x in reasons] == [True, False]


@pytest.mark.parametrize(
    ("fields", "promote"),
    [
        ({"d_dtype": "fp32"}, FP8.promote),
        ({"d_dtype": "fp16"}, FP8.promote),
        ({"epilogue": library.row_max()}, FP8.promote),
        (SQUARES, 128),
        ({"promote": 64}, 64),
        ({"promote": 256}, 256),
    ],
    ids=str,
)
def test_other_short_sums_are_promoted_as_before(fields, promote):
    """Outputs with more bits, reductions, scales of blocks, and specs that give `promote`; no reason is added."""
    found = config(512, **fields)
    assert found.promote == promote
    made = plan(GemmSpec(promote=None), problem(64, 64, 512, dtype="fp8", majors="kk"))
    assert made.config.promote == 0 and not any("not promoted" in x for x in made.reasons)


def test_only_fp8_has_such_a_k():
    """Other instructions keep enough bits, are exact, or multiply parts whose errors are near those of fp32."""
    assert {types for types, x in INSTRUCTIONS.items() if x.whole} == {
        types for types, x in INSTRUCTIONS.items() if x.fraction == FP8.fraction
    }
    made = plan(GemmSpec(), problem(64, 64, 512, dtype="int8", majors="kk"))
    assert made.config.promote == 0 and not any("not promoted" in x for x in made.reasons)


# many tiles with short K: rows of groups, squares, wide and narrow
SHORT = [
    (81920, 2048, 512),
    (65536, 2048, 384),
    (8192, 8192, 512),
    (49152, 1536, 448),
    (4096, 4096, 512),
    (16384, 14336, 256),
]


def accumulators(found):
    """A thread's partial sums and, if they are promoted, as many sums."""
    values = found.tile[0] * found.tile[1] // (128 * (1 if found.pingpong else found.consumers))
    return values * (2 if found.promote else 1)


@pytest.mark.parametrize("of", SHORT, ids=str)
def test_whole_sums_leave_registers_for_larger_tiles(of):
    """Promoted sums need two registers each: the tile that is chosen without promotion is not possible with it, and
    takes less time than the best that is."""
    m, n, k = of
    rows = {"scale_a": "row", "scale_b": "row"}
    spec = GemmSpec(**rows)
    asked = problem(m, n, k, dtype="fp8", majors="kk", epilogue=spec.epilogue, d_dtype="bf16")
    promoted = dataclasses.replace(spec, promote=FP8.coarse)
    whole, apart = plan(spec, asked), plan(promoted, asked)
    assert predicted_us(whole) < predicted_us(apart)
    assert accumulators(whole.config) <= REGISTERS and accumulators(apart.config) <= REGISTERS
    schedule = "pingpong" if whole.config.pingpong else "cooperative"
    larger = dataclasses.replace(
        promoted,
        tile=Tile(*whole.config.tile),
        schedule=schedule,
        consumers=whole.config.consumers,
        swap=whole.swapped,
    )
    with pytest.raises(PlanError, match="accumulators|registers"):
        plan(larger, asked)
    # so does a K beyond the limit
    assert accumulators(config(BEYOND, m, n, **rows)) <= REGISTERS


def test_tables_distinguish_short_sums():
    """K on both sides of the limit: tables, costs and configs differ; a longer K shares the table."""

    def way(k):
        asked, _ = requested(GemmSpec(), problem(512, 512, k, dtype="fp8", majors="kk"), DEFAULT)
        return next(ways.ways_of(asked))

    short, beyond, deep = map(way, (WHOLE, BEYOND, 4096))
    kinds = [ways.Kind.of(x) for x in (short, beyond, deep)]
    assert kinds[0] != kinds[1] == kinds[2]
    assert [ranking.gemm_of(x).promoted for x in (short, beyond, deep)] == [0, 256, 256]


def test_splits_and_batches_have_the_whole_k():
    """K of a split is less than the limit, K of the problem is not; a batch has K of one GEMM."""
    assert config(2 * WHOLE, split_k=4).promote == FP8.coarse
    assert config(WHOLE, split_k=2).promote == 0
    assert [config(k, batch=8).promote for k in (WHOLE, BEYOND)] == [0, FP8.coarse]


@pytest.mark.parametrize("k", [WHOLE, BEYOND])
def test_promotion_does_not_depend_on_rows(k):
    """The bits of a row are the same for every M."""
    found = {config(k, m, batch_invariant=True).promote for m in (1, 17, 256, 4096)}
    assert found == {0 if k == WHOLE else FP8.coarse}


@pytest.mark.parametrize(
    ("form", "short"), [("rows", 0), ("columns", 0), ("masked", 0), ("depth", FP8.coarse)]
)
def test_groups_along_k_are_promoted(form, short):
    """Other groups have the problem's K; how deep a group along K is only the device knows."""

    def promote(k):
        shapes = {
            "rows": ((90, k), (3, 72, k)),
            "columns": ((3, 72, k), (90, k)),
            "masked": ((3, 90, k), (3, 72, k)),
            "depth": ((90, k), (72, k)),
        }
        a, b = (torch.zeros(x).to(torch.float8_e4m3fn) for x in shapes[form])
        return planned(a, b.mT, torch.tensor([20, 40, 80])).config.promote

    assert [promote(k) for k in (WHOLE, 2048)] == [short, FP8.coarse]


@pytest.mark.parametrize("promote", [256, 512])
def test_promotion_beyond_the_stages_of_three_warpgroups(promote):
    """They issue in turn, so all stages between two promotions must fit at once; the error names what was given."""
    spec, of = GemmSpec(math="tf32x3", promote=promote, consumers=3), problem(512, 512, 512, dtype="fp32")
    with pytest.raises(PlanError, match=f"^promote={promote}: three warpgroups that issue in turn") as e:
        plan(spec, of)
    plan(corrected(spec, e.value), of)
