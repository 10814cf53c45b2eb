# SPDX-License-Identifier: Apache-2.0
"""Operands that the producer's threads load: shifted together from aligned words, or copied by cp.async.

On the emulator, with the race detector; operands lie in poisoned memory.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm import epilogue as epi
from cutegemm.emulator import Options
from cutegemm.errors import PlanError
from cutegemm.gemm import build
from cutegemm.planning.planner import plan
from tests.support.epilogues import assert_outputs_close
from tests.support.memory import Layout
from tests.support.numerics import assert_close

pytestmark = pytest.mark.sliced

BF16 = torch.bfloat16
RACES = Options(policy="random", seed=3, races=True)
LAZY = Options(policy="lazy", races=True)
METER = Options(meter=True)
SMALL = Tile(64, 64, 64)
BOTH = {"tile": SMALL, "swap": False, "stages": 4, "sms": 3}
# leading dimensions by what they allow: nothing, cp.async of 4 bytes, of 8
ODD, FOUR, EIGHT = ({"aligned": False, "pad": x} for x in (0, 2, 4))


def layout(kind: dict, row_major: bool, inner: int, offset: int = 0) -> Layout:
    """A layout whose leading dimension is odd, or a multiple of 2 or 4 elements and of no more."""
    step = {0: 1, 2: 2, 4: 4}[kind["pad"]]
    pad = -inner % (2 * step) + step
    return Layout(row_major=row_major, aligned=False, pad=pad, offset=offset)


def operand(shape: tuple, kind: dict, row_major: bool, seed: int, offset: int = 0) -> torch.Tensor:
    """A random operand in poisoned memory."""
    inner = shape[-1] if row_major else shape[-2]
    return layout(kind, row_major, inner, offset).random(shape, BF16, torch.Generator().manual_seed(seed))


def check(spec: GemmSpec, a: torch.Tensor, b: torch.Tensor, options: Options = RACES) -> None:
    """D = 2 A B + C / 2 in place of C, without findings."""
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    d = Layout(aligned=False).make(shape, BF16)
    d.view.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(9)))
    before = d.view.clone()
    run = emulator.run(build(spec), a, b, d.view, alpha=2.0, beta=0.5, out=d.view, options=options)
    assert not run.findings
    assert_close(d.view, a, b, before, 2.0, 0.5)
    assert d.untouched()


MAJORS = [
    *(("shift", ODD, 3, majors) for majors in ("kn", "kk", "mn", "mk")),
    ("shift", EIGHT, 0, "kk"),
    ("cp_async", FOUR, 2, "kn"),
    ("cp_async", FOUR, 0, "mk"),
    ("cp_async", EIGHT, 4, "kk"),
]


@pytest.mark.parametrize("load,kind,offset,majors", MAJORS)
def test_every_major_and_misalignment(load, kind, offset, majors):
    """Rows, columns and K are ragged; the base is off the grid; what surrounds a line, NaNs, reaches no product."""
    a = operand((70, 203), kind, majors[0] == "k", 1, offset)
    b = operand((203, 75), kind, majors[1] == "n", 2, offset)
    check(GemmSpec(**BOTH, a_load=load, b_load=load), a, b)


HOW = {
    "one stage, K in 48, narrow swizzles": {"stages": 1, "tile": Tile(64, 48, 48), "swizzle": "32B"},
    "pingpong": {"schedule": "pingpong", "stages": 4, "sms": 2},
    "parts of K in a cluster": {"split_k": 2, "sms": 2, "stages": 3},
    "streamed, two consumers": {"scheduler": "stream_k", "sms": 3, "stages": 2, "tile": Tile(128, 64, 64)},
    "swapped, deep": {"swap": True, "tile": Tile(24, 64, 128)},
    # each of three warpgroups issues four stages in its turn, and frees none before
    "promoted in turn": {"tile": Tile(192, 64, 16), "promote": 64, "stages": 6},
}


@pytest.mark.parametrize("name", HOW)
def test_every_ring_and_schedule(name):
    """Begun tiles may lie several ahead of ended ones, in the same work or the next ones."""
    fields = {"tile": SMALL, "swap": False, "a_load": "shift", "b_load": "cp_async"} | HOW[name]
    a, b = operand((130, 267), ODD, True, 3), operand((267, 75), FOUR, False, 4)
    check(GemmSpec(**fields), a, b, LAZY if name == "pingpong" else RACES)


@pytest.mark.parametrize("load,other", [("shift", "tma"), ("cp_async", "gather")])
def test_beside_every_other_load(load, other):
    """The other operand arrives its own way on the same barrier."""
    a = operand((70, 136), EIGHT, True, 5)
    b = torch.randn(136, 72, generator=torch.Generator().manual_seed(6)).to(BF16)
    check(GemmSpec(tile=SMALL, swap=False, stages=3, a_load=load, b_load=other), a, b)


def test_a_kernel_without_a_producer_loads_by_tma_alone():
    """Only multistage holds such a tile: threads cannot load, and where loads are open the operand is copied."""
    fields = {"tile": Tile(192, 208, 64), "store": "direct"}
    for role, load in itertools.product("ab", ("shift", "gather")):
        with pytest.raises(PlanError) as caught:
            plan(GemmSpec(**fields, **{f"{role}_load": load}), problem(16, 777, 16))
        assert (caught.value.field, caught.value.nearest) == ("tile.n", 192)
    a, b = operand((16, 16), ODD, False, 17, 3), operand((16, 77), ODD, True, 18, 3)
    made = plan(GemmSpec(**fields), problem(16, 77, 16, a=a, b=b))
    assert made.config.family == "multistage" and not made.config.gathers
    check(GemmSpec(**fields), a, b)


@pytest.mark.parametrize("broadcast", [False, True])
def test_batches_and_no_row_beyond_the_end(broadcast):
    """Batches begin off the grid, tiles are ragged, and reading beyond the end of an operand's memory is a fault."""
    a = operand((3, 70, 71), ODD, True, 16)
    b = operand((71, 75) if broadcast else (3, 71, 75), ODD, False, 17)
    check(GemmSpec(**BOTH, a_load="shift", b_load="shift"), a, b)


@pytest.mark.parametrize("shape", [(1, 70, 203), (9, 9, 1), (3, 5, 7)])
def test_vectors_and_tiny_products(shape):
    """Extents of 1 are matrices like any other, and no word before the first element is read."""
    m, n, k = shape
    a, b = operand((m, k), ODD, True, 10), operand((k, n), ODD, False, 11)
    check(GemmSpec(tile=Tile(8, 64, 64), swap=True, stages=3, a_load="shift", b_load="shift"), a, b)


@pytest.mark.parametrize("majors", ["kk", "mn"])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_fewer_lines_than_classes(k, majors):
    """A class without lines brings zeros, of K's lines too: neither another line nor what lies beside the operand."""
    a = operand((19, k), ODD, majors[0] == "k", 14, 3)
    b = operand((k, 27), ODD, majors[1] == "n", 15, 6)
    check(GemmSpec(**BOTH, a_load="shift", b_load="shift"), a, b)


@pytest.mark.parametrize(
    "load,swap,layout",
    [("shift", False, "interleaved"), ("shift", False, "halves"), ("cp_async", True, "interleaved")],
)
def test_gated_pairs(load, swap, layout):
    """Each half of B has lines of its own, and both lie side by side in a stage."""
    graph = epi.swiglu(layout)
    a, b = operand((37, 71), ODD, True, 12), operand((71, 84), ODD if load == "shift" else FOUR, False, 13)
    # halves have two panels of a swizzle row in a stage
    deep, stages = (128, 2) if layout == "halves" else (64, 3)
    fields = {"tile": Tile(40, 128, deep) if swap else Tile(64, 128, deep), "swap": swap, "stages": stages}
    spec = GemmSpec(**fields, epilogue=graph, a_load="shift", b_load=load)
    run = emulator.run(build(spec, problem(37, 84, 71, a=a, b=b, epilogue=graph)), a, b, options=RACES)
    assert not run.findings
    assert_outputs_close({"d": run.d}, graph, a, b, {})


def test_tma_brings_the_words_where_batches_begin_alike():
    """Each operand has a tensor map for every line of eight; cp.async loads where no tensor map reaches all batches."""
    fields = GemmSpec(**BOTH, a_load="shift", b_load="shift")
    a, b = operand((70, 203), ODD, True, 1, 3), operand((203, 75), ODD, False, 2, 3)
    kernel = build(fields, problem(70, 75, 203, a=a, b=b))
    assert kernel.resources.instructions["tma_load"] == 2 * 8 and "cp.async.cg" not in kernel.ptx
    planned = {x.operand: (x.extents, x.count) for x in plan(fields, problem(70, 75, 203, a=a, b=b)).boxes}
    assert planned["A words"] == planned["B words"] == ((64 + 8, 64 // 8), 8)
    a, b = operand((3, 37, 71), ODD, True, 7), operand((3, 71, 41), ODD, False, 8)
    kernel = build(fields, problem(37, 41, 71, batch=3, a=a, b=b))
    assert kernel.resources.instructions["tma_load"] == 0 and "cp.async.cg" in kernel.ptx


def test_what_a_stage_costs_the_producer():
    """Four warps execute 850 instructions for two tiles of 64 rows, and read and write without bank conflicts."""
    counted = []
    for k in (64 * 4 + 3, 64 * 8 + 3):
        a, b = operand((64, k), ODD, True, 1), operand((k, 64), ODD, False, 2)
        run = emulator.run(build(GemmSpec(**BOTH, a_load="shift", b_load="shift")), a, b, options=METER)
        (report,) = run.reports
        counted.append((sum(report.roles[0].instructions.values()), run.counters))
    (few, before), (many, after) = counted
    assert (many - few) / 4 <= 850
    stage = 2 * 64 * 64 * 2
    # a wavefront is 128 bytes; a chunk is read from two words
    assert after["shared_load_wavefronts"] - before["shared_load_wavefronts"] == 4 * 2 * stage // 128
    assert after["shared_store_wavefronts"] - before["shared_store_wavefronts"] == 4 * stage // 128


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    "fields,strides,text",
    [
        ({"a_load": "shift"}, (300, 2), "a_load='shift': neither dimension has unit stride; nearest legal "
         "value: 'gather'"),
        ({"a_load": "cp_async"}, (101, 1), "a_load='cp_async': its lines begin at no multiples of 4 bytes; nearest "
         "legal value: 'shift'"),
    ],
)  # fmt: skip
def test_what_threads_cannot_load_is_refused(fields, strides, text):
    """The error names what the lines lack and the load that serves them."""
    a = torch.zeros(64 * 400, dtype=BF16).as_strided((64, 100), strides)
    with pytest.raises(PlanError) as caught:
        plan(GemmSpec(tile=SMALL, swap=False, **fields), problem(64, 64, 100, a=a))
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("load,kind", [("shift", ODD), ("cp_async", FOUR), ("gather", ODD)])
@pytest.mark.parametrize(
    "fields",
    [{"cluster": (2, 1)}, {"cluster": (4, 1), "schedule": "pingpong"}, {"cluster": (2, 1), "a_load": "tma"}],
    ids=str,
)
def test_the_other_operand_is_multicast(load, kind, fields):
    """A cluster shares what TMA loads, in steps that differ between CTAs, beside an operand of each CTA's own."""
    fields = {**BOTH, "sms": 8, **fields}
    side = "b_load" if fields.get("a_load") else "a_load"
    fields["cluster"] = fields["cluster"] if side == "a_load" else fields["cluster"][::-1]
    odd, even = (lambda x, seed: operand(x, kind, True, seed, 1 if kind is ODD else 2)), Layout().random
    # two clusters, of which one has a single tile, by two tiles
    if side == "a_load":
        a, b = odd((270, 203), 1), even((203, 72), BF16, torch.Generator().manual_seed(2))
    else:
        a, b = even((70, 208), BF16, torch.Generator().manual_seed(2)), odd((208, 263), 1)
    check(GemmSpec(**{**fields, side: load}), a, b)
