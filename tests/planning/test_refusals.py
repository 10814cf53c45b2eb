# SPDX-License-Identifier: Apache-2.0
"""What the planner refuses, word for word."""

import dataclasses

import pytest

from cutegemm import DType, GemmSpec, Operand, Problem, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import InputError, PlanError, SpecError
from cutegemm.planning.planner import plan
from tests.support.planned import (
    MISALIGNED_A,
    corrected,
    odd,
)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((None, problem(8, 8, 8)), SpecError, "spec=None: must be a GemmSpec; nearest legal value: GemmSpec()"),
        ((GemmSpec(), (1, 2, 3)), InputError,
         "problem=(1, 2, 3): must be a Problem; cutegemm.problem(m, n, k) makes one"),
        ((GemmSpec(), problem(8, 8, 8), "H200"), InputError,
         "device='H200': must be a Device; cutegemm.arch.records has some"),
    ],
)  # fmt: skip
def test_arguments_of_other_types_are_refused(arguments, kind, message):
    """`plan` says which argument is none of its kind, and what would be."""
    with pytest.raises(kind) as e:
        plan(*arguments)
    assert str(e.value) == message
    with pytest.raises(SpecError, match="^spec=<class .*must be a GemmSpec: call it"):
        plan(GemmSpec, problem(8, 8, 8))


STRIDED_D = Operand(dtype=DType.BF16, rows=256, cols=256, strides=(512, 2, 0))


MATRIX = Operand(dtype=DType.BF16, rows=256, cols=256, strides=(256, 1, 0))


def vector(rows, cols):
    """A contiguous operand of an epilogue."""
    return Operand(dtype=DType.BF16, rows=rows, cols=cols, strides=(cols, 1, 0))


@epi.define
def BIASED(acc, *, bias: epi.Row, scale: epi.Col):  # noqa: N802
    """A row and a column input."""
    return acc * scale + bias


@epi.define
def TWO(acc):  # noqa: N802
    """Two stored matrices."""
    return epi.Output(d=acc, pre=epi.Store(2.0 * acc))


@epi.define(gated="halves")
def GATED(gate, up):  # noqa: N802
    """A gated pair."""
    return epi.silu(gate) * up


CORES = "128x128x8, 64x128x16, 64x64x16, 64x64x32, 64x32x64"
# of elements that come one by one along k
ODD_CORES = CORES.replace(" 64x128", " 112x128x8, 64x128", 1)
REFUSALS = [
    ({"a_dtype": "fp16"}, odd(), "a_dtype='fp16': the problem's A is bf16; nearest legal value: 'bf16'"),
    ({"d_dtype": "fp32"}, odd(), "d_dtype='fp32': the problem's D is bf16; nearest legal value: 'bf16'"),
    ({"c_dtype": "fp32"}, problem(64, 64, 64, c_dtype="bf16"),
     "c_dtype='fp32': the problem's C is bf16; nearest legal value: 'bf16'"),
    ({}, odd(b=dataclasses.replace(MISALIGNED_A, dtype=DType.FP16)),
     "b_dtype='fp16': A is bf16, B must be bf16; nearest legal value: 'bf16'"),
    ({"a_major": "m"}, odd(),
     "a_major='m': the problem's A has strides (256, 1) (row, column); nearest legal value: 'k'"),
    ({"b_major": "n"}, problem(64, 128, 64, majors="kk"),
     "b_major='n': the problem's B has strides (1, 64) (row, column); nearest legal value: 'k'"),
    ({"d_major": "n"}, odd(outputs=(("d", STRIDED_D),)),
     "d_major='n': the problem's D has strides (512, 2) (row, column); nearest legal value: 'auto'"),
    ({"a_load": "tma"}, odd(a=MISALIGNED_A),
     "a_load='tma': TMA cannot address A: leading stride is 514 bytes, not a multiple of 16; "
     "nearest legal value: 'relayout'"),
    ({"b_load": "tma"}, odd(b=dataclasses.replace(MISALIGNED_A, strides=(256, 1, 0), align=2)),
     "b_load='tma': TMA cannot address B: base address is aligned to 2 bytes, not 16; "
     "nearest legal value: 'relayout'"),
    ({"store": "tma"}, odd(outputs=(("d", STRIDED_D),)),
     "store='tma': TMA cannot store D: neither dimension has unit stride; nearest legal value: 'staged'"),
    ({"a_load": "gather", "cluster": (2, 2), "swap": False}, odd(),
     "cluster=(2, 2): an operand that threads load cannot be multicast; nearest legal value: (2, 1)"),
    ({"swap": True, "tile": Tile(64, 128, 64), "cluster": (1, 2), "a_load": "gather"}, odd(),
     "cluster=(1, 2): with operands swapped: an operand that threads load cannot be multicast; "
     "nearest legal value: (1, 1)"),
    ({"scheduler": "dynamic", "a_load": "gather"}, odd(),
     "scheduler='dynamic': tiles are taken by a producer warp that loads by TMA, not by threads that load A or B; "
     "nearest legal value: 'persistent'"),
    ({"schedule": "cooperative"}, problem(64, 64, 64, dtype="fp32"),
     "schedule='cooperative': fp32 operands run on the CUDA cores; nearest legal value: 'simt'"),
    ({"cluster": (2, 1)}, problem(64, 64, 64, dtype="fp32"),
     "cluster=(2, 1): has no meaning for fp32 operands, which run on the CUDA cores; nearest legal value: 'auto'"),
    ({"tile": Tile(128, 128, 64)}, problem(64, 64, 64, dtype="fp32"),
     f"tile=Tile(m=128, n=128, k=64): tiles of the CUDA cores are {CORES}, 64x16x32, 16x64x32 for these operands and "
     "this epilogue; nearest legal value: Tile(m=128, n=128, k=8)"),
    ({"tile": Tile(128, 120, 8), "a_dtype": "fp32"}, problem(64, 64, 64, dtype="fp32"),
     f"tile=Tile(m=128, n=120, k=8): tiles of the CUDA cores are {CORES}, 64x16x32, 16x64x32 for these operands and "
     "this epilogue; nearest legal value: Tile(m=128, n=128, k=8)"),
    ({"tile": Tile(16, 64, 32), "schedule": "simt"}, odd(),
     f"tile=Tile(m=16, n=64, k=32): tiles of the CUDA cores are {ODD_CORES} for these operands and this epilogue; "
     "nearest legal value: Tile(m=64, n=64, k=32)"),
    ({"tile": Tile(64, 64, 32), "stages": 3}, problem(64, 64, 64, dtype="fp32"),
     "stages=3: tiles that come through registers have 2; nearest legal value: 2"),
    ({"tile": Tile(64, 16, 32), "stages": 1}, problem(64, 64, 64, dtype="fp32"),
     "stages=1: tiles that come through registers have 2, a ring 2 to 16; nearest legal value: 2"),
    ({"split_k": 3}, problem(64, 64, 64, dtype="fp32"),
     "split_k=3: splits on the CUDA cores are added by a cluster of a power of two, at most 8 CTAs; "
     "nearest legal value: 4"),
    ({"split_k": 2, "schedule": "simt", "epilogue": GATED}, problem(64, 64, 64, epilogue=GATED),
     "split_k=2: gated pairs of 16-bit operands leave no registers for a sum that CTAs share; nearest legal value: 1"),
    ({"cluster": (1, 1, 8)}, problem(256, 256, 48),
     "cluster=(1, 1, 8): K has at most 3 tiles of 16, and each split needs one; nearest legal value: (1, 1, 3)"),
    # given splits are a multiple of a cluster's, and a launch adds those of two clusters
    ({"cluster": (1, 1, 8), "split_k": 16}, problem(256, 256, 112),
     "cluster=(1, 1, 8): K has at most 7 tiles of 16, and each split needs one; nearest legal value: (1, 1)"),
    ({"cluster": (1, 1, 2), "split_k": 4, "split_reduction": "launch"}, problem(256, 256, 48),
     "cluster=(1, 1, 2): K has at most 3 tiles of 16, and each split needs one; nearest legal value: (1, 1)"),
    # also where the instruction does not read A as it lies
    ({"math": "tf32", "a_load": "cp_async"}, problem(256, 256, 256, dtype="fp32", majors="mk"),
     "a_load='cp_async': math=\"tf32\" rounds elements as they are loaded, which copies of bytes do not; "
     "nearest legal value: 'relayout'"),
    ({"tile": Tile(256, 256, 64), "consumers": 2}, odd(),
     "tile.n=256: 2 consumer warpgroups hold 256 accumulators per thread, more than 208; nearest legal value: 208"),
    ({"tile": Tile(192, 256, 64), "schedule": "cooperative", "scheduler": "stream_k"}, odd(),
     "tile.n=256: 3 consumer warpgroups hold 128 accumulators per thread, more than 96; nearest legal value: 192"),
    ({"tile": Tile(256, 192, 64), "a_load": "gather"}, odd(),
     "tile.n=192: 2 consumer warpgroups hold 192 accumulators per thread, more than 128; nearest legal value: 128"),
    ({"tile": Tile(192, 224, 64), "schedule": "cooperative"}, odd(),
     "tile.n=224: three consumer warpgroups take up to 192 columns, or 256 in two halves; nearest legal value: 192"),
    ({"tile": Tile(16384, 256, 64)}, odd(),
     "tile.m=16384: 2 consumer warpgroups hold 16384 accumulators per thread, more than 208; nearest legal value: 128"),
    ({"tile": Tile(128, 32, 64), "swizzle": "128B", "b_major": "n"}, odd(),
     "swizzle='128B': the tile is contiguous over 64 bytes, no multiple of 128; nearest legal value: '64B'"),
    ({"tile": Tile(128, 256, 64), "stages": 9}, odd(),
     "stages=9: each stage takes 49,152 bytes; 232,448 hold 4 beside the epilogue; nearest legal value: 4"),
    ({"tile": Tile(128, 128, 64), "epilogue_stages": 3, "schedule": "cooperative", "consumers": 2}, odd(),
     "epilogue_stages=3: a warpgroup stores 2 subtiles a tile; more buffers than that are never filled; "
     "nearest legal value: 2"),
    ({"scheduler": "per_tile", "sms": 8}, odd(),
     "sms=8: an SM limit needs scheduler=\"persistent\"; nearest legal value: 'auto'"),
    ({"cluster": (2, 2), "sms": 3, "tile": Tile(128, 128, 64)}, odd(),
     "sms=3: a cluster occupies 4 SMs; nearest legal value: 4"),
    ({"epilogue": linear_combination(with_c=True)}, odd(),
     "inputs='none': the epilogue's inputs are c; describe them by problem(..., epilogue=spec.epilogue)"),
    ({"scale_a": "row"}, odd(),
     "inputs='none': the epilogue's inputs are scale_a; describe them by problem(..., epilogue=spec.epilogue)"),
    ({"epilogue": linear_combination(with_c=False)}, problem(64, 64, 64, c_dtype="bf16"),
     "inputs='c': the epilogue's inputs are none"),
    ({"epilogue": BIASED}, problem(64, 64, 64, c_dtype="bf16"), "inputs='c': the epilogue's inputs are bias, scale"),
    ({"epilogue": BIASED}, odd(inputs=(("bias", vector(1, 256)), ("scale", vector(1, 256)))),
     "scale=(1, 256): must be (256, 1), a col of the epilogue"),
    ({"epilogue": TWO}, odd(), "outputs='d': the epilogue's outputs are d, pre"),
    ({"epilogue": TWO}, odd(outputs=(("d", MISALIGNED_A), ("pre", vector(255, 256)))),
     "pre=(255, 256): must be (256, 256), a matrix of the epilogue"),
    ({"epilogue": GATED}, odd(n=255), "n=255: a gated pair needs an even number of columns; nearest legal value: 254"),
    ({"epilogue": GATED, "tile": Tile(128, 40, 64)}, problem(256, 256, 256, epilogue=GATED),
     "tile.n=40: each half of a gated tile must be a multiple of 8 columns; nearest legal value: 48"),
    ({"epilogue": GATED, "tile": Tile(384, 144, 64), "consumers": 2, "schedule": "cooperative"},
     problem(256, 256, 256, epilogue=GATED),
     "tile.n=144: 2 consumer warpgroups hold 216 accumulators per thread, more than 208; nearest legal value: 128"),
    ({"input_stages": 3, "tile": Tile(128, 256, 64)}, problem(256, 256, 256, c_dtype="bf16"),
     "input_stages=3: must divide the 4 subtiles that a warpgroup reads of a tile; nearest legal value: 4"),
    # not the type of sums, whose nearest value a spec for CUDA cores refuses
    ({"schedule": "simt", "acc_dtype": "fp32"}, problem(64, 64, 64, dtype="int8"),
     "schedule='simt': int8 operands run on tensor cores; nearest legal value: 'auto'"),
    ({"store": "tma", "epilogue": TWO}, odd(outputs=(("d", MATRIX), ("pre", MISALIGNED_A))),
     "store='tma': TMA cannot store pre: leading stride is 514 bytes, not a multiple of 16; "
     "nearest legal value: 'staged'"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "of", "message"), REFUSALS, ids=[m.split(":")[0] for *_, m in REFUSALS])
def test_refusals_word_for_word(fields, of, message):
    """Each contradiction between spec, problem and hardware is refused in its own words."""
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(**fields), of)
    assert str(e.value) == message


def test_a_grid_beyond_the_launch_limit_is_refused():
    """More CTAs than a launch may have are refused; nothing wraps around."""
    big = problem((1 << 31) - 1, (1 << 31) - 1, 8)
    with pytest.raises(
        PlanError,
        match=r"^scheduler='per_tile': needs a launch of [\d,]+ CTAs or more, which has at most 2,147,483,647; "
        "nearest legal value: 'persistent'$",
    ):
        # before any tile is tried
        plan(GemmSpec(scheduler="per_tile"), big, order=lambda *_: pytest.fail("tiles were tried"))
    with pytest.raises(
        PlanError, match=r"^m=2147483647: needs a count of [\d,]+ work tiles .*: split the problem along m$"
    ):
        plan(GemmSpec(), big, order=lambda *_: pytest.fail("tiles were tried"))
    with pytest.raises(PlanError, match=r"^schedule='simt': .* nearest legal value: 'auto'$"):
        plan(GemmSpec(schedule="simt"), big)
    with pytest.raises(PlanError, match=r"^batch=2147483647: .*: split the problem along batch$"):
        plan(GemmSpec(), problem(512, 512, 8, batch=(1 << 31) - 1, dtype="fp32"))


MOST = (1 << 31) - 1
TILE = Tile(128, 128, 64)


@pytest.mark.parametrize(
    ("fields", "of", "message"),
    [
        # a persistent CTA ends at a number beyond the last work
        ({}, problem(1, 1, 8, batch=MOST),
         f"batch={MOST}: needs a count of 2,147,483,910 work tiles or more, and a tile scheduler counts to "
         "2,147,483,647: split the problem along batch"),
        ({"scheduler": "per_tile"}, problem(1, 1, 8, batch=MOST),
         "scheduler='per_tile': needs a count of 4,294,967,293 work tiles or more, and a tile scheduler counts to "
         "2,147,483,647; nearest legal value: 'persistent'"),
        ({"tile": TILE, "split_k": 70}, problem(1, 1, MOST - 63),
         "split_k=70: K is 33,554,431 k tiles, and splits times k tiles must be at most 2,147,483,647; "
         "nearest legal value: 64"),
        ({"tile": TILE, "scheduler": "stream_k"}, problem(1280, 1792, 1 << 23),
         "scheduler='stream_k': 132 clusters times 18,350,080 shared k tiles exceed 2,147,483,647; "
         "nearest legal value: 'persistent'"),
    ],
)  # fmt: skip
def test_what_a_tile_scheduler_cannot_count_is_refused(fields, of, message):
    """Its integers have 32 bits: beyond them a kernel would leave tiles or k tiles out, and nothing would say so."""
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(**fields), of)
    assert str(e.value) == message
    if "split_k" in fields:
        plan(corrected(GemmSpec(**fields), e.value), of)


@pytest.mark.parametrize(
    ("fields", "extents", "kind", "field", "block"),
    [
        ({"tile": TILE, "cluster": (2, 1)}, (MOST, 16, 64), "bf16", "m", 256),
        ({"tile": TILE, "cluster": (1, 1), "swap": False}, (16, MOST - 5, 64), "bf16", "n", 128),
        ({"tile": Tile(128, 64, 64), "cluster": (1, 1), "swap": True}, (MOST, 16, 64), "bf16", "m", 128),
        ({"tile": TILE}, (1, 1, MOST), "bf16", "k", 64),
        ({"tile": Tile(64, 64, 32)}, (1, 1, MOST - 1), "fp32", "k", 32),
        ({"tile": Tile(64, 64, 32), "schedule": "simt"}, (MOST, 1, 8), "fp32", "m", 64),
        ({"tile": Tile(128, 64, 32), "math": "tf32x3"}, (1, 1, 1 << 30), "fp32", "k", 32),
    ],
)
def test_extents_that_cannot_be_rounded_up_are_refused(fields, extents, kind, field, block):
    """Whole tiles beyond 2**31 - 1 wrapped around: rows were left out, and consumers waited for k tiles forever."""
    spec, of = GemmSpec(**fields), problem(*extents, dtype=kind)
    with pytest.raises(PlanError) as e:
        plan(spec, of)
    assert (e.value.field, e.value.value) == (field, getattr(of, field)) and e.value.nearest % block == 0
    legal = dict(zip("mnk", extents, strict=True)) | {field: e.value.nearest}
    plan(spec, problem(**legal, dtype=kind))


@pytest.mark.parametrize(
    ("fields", "extents", "field"),
    [
        ({"a_load": "relayout"}, (MOST - 300, 16, 64), "m"),
        ({"b_load": "relayout", "swap": True}, (16, MOST - 300, 64), "n"),
        ({"b_load": "relayout"}, (1, 8, MOST - 300), "k"),
    ],
)
def test_a_copy_rounds_extents_up_further(fields, extents, field):
    """The kernel that copies operands counts to a whole CTA's rows, and would read and write beside the matrices."""
    with pytest.raises(PlanError, match="rounds it up to a multiple of 512") as e:
        plan(GemmSpec(**fields), problem(*extents))
    assert (e.value.field, e.value.nearest) == (field, MOST - 511)
    plan(GemmSpec(**fields), problem(*(min(x, MOST - 511) for x in extents)))


def test_a_smaller_tile_serves_an_extent_that_a_larger_one_cannot_round_up():
    """64 rows are left below 2**31, where the cost model prefers tiles of 128 and more."""
    made = plan(GemmSpec(), problem(MOST - 63, 16, 64))
    assert made.config.tile[0] * made.config.cluster[0] == 64


@pytest.mark.parametrize("k", [MOST - 63, 1 << 29])
def test_the_longest_sums_are_split_as_far_as_can_be_counted(k):
    """The planner splits K over the SMs, within what the tile scheduler counts."""
    made = plan(GemmSpec(), problem(1, 1, k))
    k_tiles = -(-k // made.config.tile[2])
    assert 64 <= made.config.splits <= MOST // k_tiles


def test_a_tile_too_large_for_one_stage_is_refused():
    """A tile of which not even one stage fits names the bytes it needs, and a depth that fits."""
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(tile=Tile(256, 128, 512)), problem(512, 512, 512))
    assert "bytes of shared memory, a CTA has 232,448" in str(e.value)
    plan(corrected(GemmSpec(tile=Tile(256, 128, 512)), e.value), problem(512, 512, 512))


@pytest.mark.parametrize(("columns", "parts"), [(16, 7), (48, 7), (64, 8)])
def test_a_tile_with_too_many_parts_of_k_is_refused(columns, parts):
    """Where no depth and no width makes room for the parts of K, the rows that do are named, and serve at once."""
    spec = GemmSpec(tile=Tile(512, columns, 16), split_k=parts, epilogue=GATED)
    of = problem(1024, 1024, 1024, epilogue=GATED)
    with pytest.raises(PlanError, match="bytes of shared memory, a CTA has 232,448") as e:
        plan(spec, of)
    assert (e.value.field, e.value.value, e.value.nearest) == ("tile.m", 512, 384)
    plan(corrected(spec, e.value), of)


@pytest.mark.parametrize(("k", "parts"), [(115, 8), (64, 4), (17, 2), (200, 13)])
def test_more_parts_than_k_has_are_refused_with_the_most(k, parts):
    """An open tile may be no deeper than one instruction."""
    of = problem(227, 114, k)
    with pytest.raises(
        PlanError, match=f"^split_k=16: K has at most {parts} tiles of 16, and each split needs one"
    ) as e:
        plan(GemmSpec(split_k=16), of)
    assert e.value.nearest == parts and plan(GemmSpec(split_k=parts), of).config.splits == parts


@pytest.mark.parametrize("fields", [{}, {"schedule": "cooperative", "stages": 1}], ids=str)
def test_scales_of_blocks_leave_splits_of_their_blocks(fields):
    """A stage is then 128 elements deep, and a flatter one is no nearest value."""
    spec = GemmSpec(scale_a=("block", 128, 128), split_k=7, **fields)
    of = problem(33, 70, 300, dtype="fp8", epilogue=spec.epilogue)
    with pytest.raises(PlanError, match="^split_k=7: K has at most 3 tiles of 128") as e:
        plan(spec, of)
    assert plan(corrected(spec, e.value), of).config.splits == 3


def test_parts_that_a_flatter_tile_holds_are_no_reason():
    """Two tiles of 128 cannot be four parts, nine of 16 can: what is refused is a cluster of four on two SMs."""
    with pytest.raises(PlanError, match="^sms=2: a cluster occupies 4 SMs"):
        plan(GemmSpec(sms=2, split_k=4), problem(5, 1128, 139))


@epi.define
def NARROW(acc):  # noqa: N802
    """A matrix of single bytes."""
    return epi.Output(d=epi.Store(acc, dtype="fp8_e4m3"))


@pytest.mark.parametrize(
    ("fields", "field", "nearest"),
    [
        # parts of K need fewer rows, and the ring less depth
        ({"tile": Tile(512, 16, 4096), "split_k": 7, "epilogue": GATED}, "tile", Tile(384, 16, 64)),
        # one buffer would still be too much
        ({"tile": Tile(128, 184, 64), "cluster": (2, 1, 4), "epilogue_stages": 3}, "tile.n", 176),
        # 200 columns are no whole slices, of which a thread would hold 12.5 accumulators each
        ({"tile": Tile(64, 256, 64), "ctas_per_sm": 2, "split_k": 8}, "tile.n", 192),
        # a stage divides what is added between promotions; 304 would be the deepest that fits
        ({"tile": Tile(128, 128, 96), "promote": 512}, "tile.k", 128),
        ({"tile": Tile(256, 104, 512), "promote": 512}, "tile.k", 256),
        # a spec has at most 16 buffers, though 23 subtiles would hold more
        ({"tile": Tile(64, 184, 64), "input_stages": 16}, "input_stages", 1),
        # of B's tile a row of 16 columns has 32 bytes
        ({"swizzle": "128B", "tile": Tile(64, 16, 32)}, "swizzle", "32B"),
        # 40 columns would be enough for registers, but no row of whole chunks
        ({"tile": Tile(768, 256, 64), "a_load": "gather", "epilogue": NARROW}, "tile.n", 32),
    ],
)
def test_a_nearest_value_obeys_the_other_rules(fields, field, nearest):
    """What a refusal names is not refused in its turn, though several rules meet in it."""
    spec = GemmSpec(**fields)
    of = problem(4096, 4096, 32768, **({"epilogue": spec.epilogue} if "epilogue" in fields else {}))
    with pytest.raises(PlanError) as e:
        plan(spec, of)
    assert (e.value.field, e.value.nearest) == (field, nearest)
    plan(corrected(spec, e.value), of)


def test_a_problem_type_error_is_not_hidden():
    """A spec of one type planned for a `Problem` of another names the spec's field, also when D is empty."""
    with pytest.raises(PlanError, match="^a_dtype='fp16'"):
        plan(GemmSpec(a_dtype="fp16"), problem(0, 4, 4))
    assert isinstance(problem(1, 1, 1), Problem)


def test_device_scalars_are_scalars_of_the_epilogue():
    """A problem says which scalars lie in device memory, and no other name."""
    graph = epi.quantize_fp8()
    spec, (name,) = GemmSpec(epilogue=graph), graph.numbers
    assert plan(spec, problem(64, 64, 64, epilogue=graph, device_scalars=(name,))).config.device_scalars == (
        name,
    )
    with pytest.raises(PlanError, match=rf"^device_scalars='zz': the epilogue's scalars are {name}"):
        plan(spec, problem(64, 64, 64, epilogue=graph, device_scalars=("zz",)))
