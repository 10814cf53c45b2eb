# SPDX-License-Identifier: Apache-2.0
"""Groups along K of 8-bit operands with scales of blocks of the whole K: on the emulator, races on, beside fp64."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, emulator, problem
from cutegemm import Groups as Ends
from cutegemm.arch.records import DEFAULT
from cutegemm.compiling.compiler import compile_config
from cutegemm.errors import GemmError
from cutegemm.ops.groups.grouped import planned
from cutegemm.planning.grouped import plan_groups
from cutegemm.plans import steps
from cutegemm.request.group_forms import all_groups
from cutegemm.running.grouped_mm import GroupedGemm
from cutegemm.running.numerics.group_reference import bounds
from tests.support.group_scales import close, operand, positive, wide
from tests.support.groups import Groups, drawn
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

M, N, K = 72, 136, 400
BLOCKS = 4  # of K
ONE, SQUARE = ("block", 1, 128), ("block", 128, 128)
# several groups inside a block, empty ones, one that begins and ends with blocks, one over several blocks
ENDS = {
    "inside blocks": [50, 60, 60, 128, 256, 399],
    "over blocks": [1, 300, 300, 301],
    "hostile": [90, -7, 40, 1000, 3],
    "all in one": [0, 0, 400, 400],
}
PAIRS = list(itertools.product((ONE, SQUARE), repeat=2))
KERNELS = {
    "chosen": {},
    "one warpgroup": {"tile": Tile(64, 64, 128), "cluster": (1, 1), "consumers": 1},
    "two": {"tile": Tile(128, 64, 128), "cluster": (1, 1), "consumers": 2},
    "two of two rows each": {"tile": Tile(256, 64, 128), "cluster": (1, 1), "consumers": 2},
    "three": {"tile": Tile(192, 64, 128), "cluster": (1, 1)},
    "pingpong": {"tile": Tile(64, 64, 128), "cluster": (1, 1), "schedule": "pingpong"},
    "one stage": {"tile": Tile(64, 64, 128), "cluster": (1, 1), "stages": 1},
    "pairs share A": {"tile": Tile(128, 64, 128), "cluster": (1, 2), "sms": 4},
    "pingpong, pairs share B": {
        "tile": Tile(64, 64, 128),
        "cluster": (2, 1),
        "sms": 4,
        "schedule": "pingpong",
    },
    "swapped": {"tile": Tile(64, 64, 128), "swap": True},
    "gathered": {"tile": Tile(64, 64, 128), "a_load": "gather"},
}


def scales(rows, kind, exponents=False, blocks=BLOCKS):
    """Scales of an operand with so many rows: fp32, or exponents."""
    shape = (-(-rows // kind[1]), blocks)
    if not exponents:
        return positive(*shape)
    return torch.randint(120, 134, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))


def products(a, b, scaled, ends):
    """A product in fp64 for each group; `scaled` are (scales, rows that share one) of A and of B."""
    left, right = (wide(x, *how) for x, how in zip((a, b), scaled))
    places = itertools.pairwise(bounds(torch.tensor(ends), a.shape[1]).tolist())
    return torch.stack([left[:, x:y] @ right[:, x:y].T for x, y in places])


def check(spec, pair, ends, exponents=(False, False), operands=None, options=RACES):
    """Both backends are right to bf16's rounding, whatever D held, and the run has no findings."""
    a, b = operands or (operand(M, K), operand(N, K))
    scale_a, scale_b = (scales(len(x), *how) for x, *how in zip((a, b), pair, exponents))
    told = products(a, b, ((scale_a, pair[0][1]), (scale_b, pair[1][1])), ends)
    d, ends = torch.full(told.shape, torch.nan).bfloat16(), torch.tensor(ends)
    run = emulator.run(Groups(spec, scale_a=scale_a, scale_b=scale_b), a, b.T, ends, d, options=options)
    assert not run.findings
    close(d, told)
    again = cutegemm.grouped_mm(a, b.T, ends, scale_a=scale_a, scale_b=scale_b, fallback="reference")
    close(again, told)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_every_kind_of_kernel_scales_blocks_of_groups_along_k(name, pair):
    """Groups share a block's scale; a stage is a block, of which elements of other groups are zeroed."""
    check(GemmSpec(**{"sms": 3, "scheduler": "persistent", **KERNELS[name]}), pair, ENDS["inside blocks"])


@pytest.mark.parametrize("ends", [x for x in ENDS if x != "inside blocks"])
@pytest.mark.parametrize("name", ["chosen", "three", "pingpong"])
def test_groups_end_anywhere(name, ends):
    """Also ends that decrease or lie outside K, and empty groups."""
    check(GemmSpec(**{"sms": 3, **KERNELS[name]}), (ONE, ONE), ENDS[ends])


@pytest.mark.parametrize("name", ["two", "pingpong", "pairs share A", "pingpong, pairs share B"])
def test_tiles_come_from_a_counter(name):
    """Clusters take tiles of unequal depth."""
    spec = GemmSpec(**{"sms": 3, "scheduler": "dynamic", **KERNELS[name]})
    lazy = emulator.Options(
        policy="lazy", races=True, resident_ctas=max(1, spec.cluster[0] * spec.cluster[1])
    )
    for options in (RACES, lazy):
        check(spec, (ONE, SQUARE), ENDS["inside blocks"], options=options)


@pytest.mark.parametrize("exponents", [(True, True), (True, False), (False, True)], ids=str)
def test_exponents(exponents):
    """Scales that are powers of two, of both operands or of one."""
    spec = GemmSpec(sms=3, tile=Tile(64, 64, 128), schedule="pingpong")
    check(spec, (ONE, SQUARE), ENDS["inside blocks"], exponents)


@pytest.mark.parametrize("name", ["two", "three", "pingpong"])
def test_elements_of_other_groups_do_not_leak(name):
    """NaN in the groups before and behind one, in the same blocks, leaves it as it is."""
    a, b = operand(M, K), operand(N, K)
    ends, nan = [130, 140, 150, 400], torch.zeros(K, dtype=torch.bool)
    nan[:130] = nan[140:150] = True
    for x in (a, b):
        x.view(torch.uint8)[:, nan] = 0x7F
    spec = GemmSpec(**{"sms": 3, **KERNELS[name]})
    scale_a, scale_b = scales(M, ONE), scales(N, SQUARE)
    told = products(a, b, ((scale_a, 1), (scale_b, 128)), ends)
    assert told[::2].isnan().all() and told[1::2].isfinite().all()
    named = {"scale_a": scale_a, "scale_b": scale_b}
    d = torch.empty(told.shape).bfloat16()
    assert not emulator.run(Groups(spec, **named), a, b.T, torch.tensor(ends), d, options=RACES).findings
    for found in (d, cutegemm.grouped_mm(a, b.T, torch.tensor(ends), **named, fallback="reference")):
        assert found[::2].isnan().all()
        close(found[1::2], told[1::2])


def test_a_block_that_no_group_has_is_not_read():
    """Scales of NaN outside the groups' blocks, also where only empty groups lie, change nothing."""
    a, b, ends = operand(M, K), operand(N, K), torch.tensor([128, 130, 130, 256])
    scale_a, scale_b = scales(M, ONE), scales(N, SQUARE)
    told = products(a, b, ((scale_a, 1), (scale_b, 128)), [128, 130, 130, 256])
    scale_a[:, 2:], scale_b[:, 2:] = torch.nan, torch.nan
    for fallback in ("reference", "emulator"):
        close(
            cutegemm.grouped_mm(a, b.T, ends, scale_a=scale_a, scale_b=scale_b, fallback=fallback).float(),
            told,
        )
    none = torch.tensor([300, 300])
    scale_a[:] = torch.nan
    for fallback in ("reference", "emulator"):
        found = cutegemm.grouped_mm(a, b.T, none, scale_a=scale_a, scale_b=scale_b, fallback=fallback)
        assert found[0].isnan().all() and not found[1].any()


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_a_gradient_that_is_added_to(schedule):
    """D = beta C + alpha times the scaled sums, in place; an empty group's D is beta C."""
    a, b, ends = operand(M, K), operand(N, K), ENDS["inside blocks"]
    scale_a, scale_b = scales(M, ONE), scales(N, ONE)
    told = products(a, b, ((scale_a, 1), (scale_b, 1)), ends)
    c = drawn(len(ends), M, N).float()
    told = 0.5 * told + 2.0 * c
    spec = GemmSpec(tile=Tile(64, 64, 128), schedule=schedule, cluster=(1, 1), sms=3)
    served = Groups(spec, c=c, beta=2.0, alpha=0.5, scale_a=scale_a, scale_b=scale_b)
    assert not emulator.run(served, a, b.T, torch.tensor(ends), c, options=RACES).findings
    close(c, told)


OTHERS = {
    "row": lambda: (positive(M), 1),
    "row of each group": lambda: (positive(4, M), 1),
    "none": lambda: (None, 1),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_one_operand_has_blocks(kind):
    """The other one has scales of rows, which may differ by group, or none."""
    a, b, ends = operand(M, K), operand(N, K), ENDS["over blocks"]
    scale_a, scale_b = OTHERS[kind]()[0], scales(N, SQUARE)
    told = products(a, b, ((torch.ones(M), 1), (scale_b, 128)), ends)
    if scale_a is not None:
        told = told * scale_a.double()[..., None]
    named = {"scale_b": scale_b} | ({} if scale_a is None else {"scale_a": scale_a})
    for fallback in ("reference", "emulator"):
        close(cutegemm.grouped_mm(a, b.T, torch.tensor(ends), **named, fallback=fallback), told)


def test_told_by_cu_seqlens_with_padded_blocks():
    """Elements before the first group are nobody's; blocks of K may be padded to a multiple of four."""
    k = 600
    a, b, ends = operand(M, k), operand(N, k), torch.tensor([70, 130, 520])
    scale_a, scale_b = scales(M, ONE, blocks=8), scales(N, SQUARE, blocks=8)
    scale_a[:, 5:] = torch.nan
    left, right = wide(a, scale_a[:, :5]), wide(b, scale_b, 128)
    told = torch.stack([left[:, x:y] @ right[:, x:y].T for x, y in ((70, 130), (130, 520))])
    for fallback in ("reference", "emulator"):
        named = {"cu_seqlens": ends, "scale_a": scale_a, "scale_b": scale_b}
        close(cutegemm.grouped_mm(a, b.T, **named, fallback=fallback), told)


def test_integers():
    """int8 operands with scales of blocks."""
    a, b = (torch.randint(-9, 10, (x, K), generator=torch.Generator().manual_seed(x)).char() for x in (M, N))
    check(GemmSpec(sms=3), (ONE, SQUARE), ENDS["inside blocks"], operands=(a, b))


@pytest.mark.parametrize("majors", ["kk", "mk", "mn"])
@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_operands_of_16_bits(majors, schedule):
    """Their rows along K may lie apart: whole ones are zeroed then."""
    a, b, ends = drawn(M, K), drawn(N, K), ENDS["inside blocks"]
    scale_a, scale_b = scales(M, ONE), scales(N, SQUARE)
    told = products(a, b, ((scale_a, 1), (scale_b, 128)), ends)
    a, b = (x if major == "k" else x.T.contiguous().T for x, major in zip((a, b), majors))
    spec = GemmSpec(scale_a=ONE, scale_b=SQUARE, tile=Tile(64, 64, 128), schedule=schedule, cluster=(1, 1))
    named, groups = {"scale_a": scale_a, "scale_b": scale_b}, Ends(offs=torch.tensor(ends))
    run = emulator.run(Gemm(spec), a, b.T, groups=groups, **named, options=RACES)
    assert not run.findings
    close(run.d, told)
    close(Gemm(spec).run(a, b.T, groups=groups, **named, backend="reference"), told)


def test_operands_that_quantize_makes():
    """A weight's gradient of quantised rows: blocks along the rows of all groups."""
    above, x, ends = drawn(K, M), drawn(K, N), torch.tensor(ENDS["over blocks"])
    (a, scale_a), (b, scale_b) = (cutegemm.quantize(y.T.contiguous(), ONE) for y in (above, x))
    for fallback in ("reference", "emulator"):
        d = cutegemm.grouped_mm(a, b.T, ends, scale_a=scale_a, scale_b=scale_b, fallback=fallback)
        for group, (first, end) in enumerate(itertools.pairwise([0, *ENDS["over blocks"]])):
            told = above[first:end].double().T @ x[first:end].double()
            assert (d[group].double() - told).norm() <= 0.06 * told.norm()


def blocks_plan(fields=(), kinds=(ONE, SQUARE), k=4096, groups=4, m=512, n=512):
    """The config of a large call."""
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1])
    gemm = GroupedGemm(GemmSpec(**dict(fields)), spec.epilogue)
    named = {"scale_a": scales(m, kinds[0], blocks=k // 128), "scale_b": scales(n, kinds[1], blocks=k // 128)}
    numbers = dict.fromkeys(spec.epilogue.numbers, 1.0)
    ends = Ends(offs=torch.zeros(groups).int())
    return gemm.plan(operand(m, k), operand(n, k).T, ends, named | numbers).config


@pytest.mark.parametrize("kinds", PAIRS, ids=str)
def test_kernels_load_by_tma_and_spill_nothing(kinds):
    """A stage begins at a multiple of 128 elements, where TMA can load rows along K."""
    config = blocks_plan(kinds=kinds)
    assert all(x.load == "tma" for x in config.operands) and config.tile[2] == 128
    assert not compile_config(config).resources.spills


def test_scales_of_rows_leave_loads_to_threads():
    """Without blocks a group's stages begin where it does."""
    a, b, ends = operand(M, K), operand(N, K), torch.tensor([50, 400])
    config = planned(a, b.T, ends, GemmSpec()).config
    assert all(x.load == "gather" for x in config.operands)


def test_fake_tensors_and_compiled_calls():
    """Shapes follow without values, and scales for each group are refused; a compiled call has the same bits."""
    ends = torch.tensor(ENDS["over blocks"])
    given = operand(M, K), operand(N, K), ends, scales(M, ONE), scales(N, SQUARE)

    def call(a, b, ends, scale_a, scale_b):
        return cutegemm.grouped_mm(a, b.T, ends, scale_a=scale_a, scale_b=scale_b, fallback="reference")

    with FakeTensorMode() as mode:
        a, b, *others, scale_b = (mode.from_tensor(x) for x in given)
        found = call(a, b, *others, scale_b)
        assert tuple(found.shape) == (4, M, N) and found.dtype is torch.bfloat16
        with pytest.raises(GemmError, match=r"scale_b\.shape=\(4, 2, 4\): must be a number"):
            call(a, b, *others, scale_b.expand(4, -1, -1))
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*given), call(*given))


def test_a_problem_of_all_groups_shares_scales():
    """What the command line plans: scales of blocks have no batch, and blocks of the whole K."""
    spec = GemmSpec(scale_a=ONE, scale_b=SQUARE)
    batched = problem(M, N, K, batch=3, dtype="fp8", majors="kk", epilogue=spec.epilogue)
    of = all_groups(batched, "depth", spec.epilogue.tensors)
    assert {name: (x.rows, x.cols, x.batch) for name, x in of.inputs} == {
        "scale_a": (M, BLOCKS, 1),
        "scale_b": (BLOCKS, 2, 1),
    }
    made = plan_groups(spec, of, "depth", steps.Ends(width=1), DEFAULT)
    assert made.multiply.extents == (M, N, K, 3) and made.config.tile[2] == 128


REFUSED = {
    "scales for each group": (
        {"scale_a": positive(3, M, BLOCKS)},
        r"scale_a\.shape=\(3, 72, 4\): must be a number, \(3, 72\), \(72, 4\) or \(1, 4\)",
    ),
    "too few blocks": ({"scale_b": positive(N, BLOCKS - 1)}, r"scale_b\.shape"),
    "too many blocks": ({"scale_b": positive(2, BLOCKS + 1)}, r"scale_b\.shape"),
    "other rows": ({"scale_a": positive(M + 1, BLOCKS)}, r"scale_a\.shape"),
    "another type": ({"scale_a": positive(M, BLOCKS).bfloat16()}, r"scale_a\.dtype"),
}


@pytest.mark.parametrize("fallback", ["reference", "emulator"])
@pytest.mark.parametrize("name", REFUSED)
def test_scales_that_cannot_be(name, fallback):
    """Refused before anything is written."""
    given, message = REFUSED[name]
    d, ends = torch.full((3, M, N), 7.0).bfloat16(), torch.tensor([1, 130, 400])
    with pytest.raises(GemmError, match=message):
        cutegemm.grouped_mm(operand(M, K), operand(N, K).T, ends, out=d, **given, fallback=fallback)
    assert torch.all(d == 7.0)


@pytest.mark.parametrize("backend", ["reference", "emulator"])
def test_a_spec_names_blocks_that_groups_share(backend):
    """`Gemm.run` refuses scales for each group by name, shape and rule."""
    gemm, ends = Gemm(GemmSpec(scale_a=ONE, scale_b=ONE)), Ends(offs=torch.tensor([1, 400]))
    a, b, scale_a, scale_b = operand(M, K), operand(N, K), scales(M, ONE), scales(N, ONE)
    found = gemm.run(a, b.T, groups=ends, scale_a=scale_a, scale_b=scale_b, backend=backend)
    close(found, products(a, b, ((scale_a, 1), (scale_b, 1)), [1, 400]))
    with pytest.raises(
        GemmError, match=r"scale_b\.shape=\(2, 136, 4\): groups along K share scales of blocks"
    ):
        each = scale_b.expand(2, -1, -1)
        gemm.run(a, b.T, groups=ends, scale_a=scale_a, scale_b=each, backend=backend)


@pytest.mark.gpu
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("groups", [1, 8, 64])
@pytest.mark.parametrize("shape", [(136, 264, 1000), (1536, 2048, 8192)])
def test_blocks_of_groups_along_k_on_the_gpu(shape, groups, pair):
    """The planner's kernels, with every ends that are drawn."""
    m, n, k = shape
    draw = torch.Generator("cuda").manual_seed(m + groups)
    a, b = (torch.randn(x, k, generator=draw, device="cuda").to(torch.float8_e4m3fn) for x in (m, n))
    scale_a, scale_b = (
        torch.rand(-(-x // kind[1]), -(-k // 128), generator=draw, device="cuda") + 0.5
        for x, kind in zip((m, n), pair)
    )
    left, right = wide(a, scale_a, pair[0][1]), wide(b, scale_b, pair[1][1])
    for _ in range(2):
        ends = torch.randint(0, k + 1, (groups,), generator=draw, device="cuda").sort().values
        d = cutegemm.grouped_mm(a, b.T, ends, scale_a=scale_a, scale_b=scale_b, fallback="error")
        for group, (x, y) in enumerate(itertools.pairwise([0, *ends.tolist()])):
            close(d[group], left[:, x:y] @ right[:, x:y].T)
