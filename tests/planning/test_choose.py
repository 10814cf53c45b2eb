# SPDX-License-Identifier: Apache-2.0
"""What a spec leaves open gives way to what it gives."""

import dataclasses
import itertools

import numpy as np
import pytest

from cutegemm import DType, GemmSpec, Operand, Tile, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.errors import PlanError
from cutegemm.planning import ranking
from cutegemm.planning.planner import plan
from cutegemm.request.requirements import requested
from cutegemm.spec import LOADS
from tests.support.planned import (
    MISALIGNED_A,
    check_honoured,
    corrected,
    odd,
)

ALONE = {
    "cluster": ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (8, 1), (1, 8), (4, 2), (2, 4)),
    "stages": range(1, 17),
    "swizzle": ("128B", "64B", "32B", "none"),
    "schedule": ("cooperative", "pingpong", "multistage", "simt"),
    "consumers": (1, 2, 3),
    "a_load": LOADS,
    "b_load": LOADS,
    "store": ("tma", "staged", "direct"),
    "epilogue_stages": range(1, 17),
    "input_stages": range(1, 17),
    "scheduler": ("persistent", "per_tile", "stream_k", "dynamic"),
    "raster": (("m", 1), ("n", 4096)),
    "sms": (1, 2, 3, 131, 132, 1024),
}


@pytest.mark.parametrize("name", ALONE)
def test_every_value_of_a_field_alone_is_served(name):
    """A single given field contradicts nothing, so each of its values plans, with and without a C, in any layout."""
    for value, majors, c in itertools.product(ALONE[name], ("kn", "mk"), (None, "fp32")):
        spec, of = GemmSpec(**{name: value}), problem(1024, 512, 256, majors=majors, c_dtype=c)
        check_honoured(spec, plan(spec, of))


@pytest.mark.parametrize("name", ["epilogue_stages", "input_stages", "stages", "consumers"])
def test_a_field_beside_scales_of_blocks_is_served_or_refused_by_its_name(name):
    """A stage is then 128 elements deep; buffers that are as many as subtiles of a tile may leave no room for it."""
    refused = []
    for value, kinds in itertools.product(ALONE[name], ("a", "b", "ab")):
        blocks = {f"scale_{x}": ("block", 128 if x == "b" else 1, 128) for x in kinds}
        spec = GemmSpec(**{name: value}, **blocks)
        of = problem(1, 1, 1, dtype="fp8", epilogue=spec.epilogue)
        try:
            check_honoured(spec, plan(spec, of))
        except PlanError as error:
            assert (error.field, error.value) == (name, value)
            plan(corrected(spec, error), of)
            refused.append(value)
    assert set(refused) <= ({16} if name == "input_stages" else set())


def test_splits_of_an_invariant_kernel_with_scales_of_blocks():
    """Their depth is the same for every M without a rule of its own."""
    spec = GemmSpec(scale_a=("block", 1, 128), split_k=2, batch_invariant=True)
    made = [plan(spec, problem(m, 70, 300, dtype="fp8", epilogue=spec.epilogue)).config for m in (1, 33, 500)]
    assert {(x.tile[2], x.splits) for x in made} == {(128, 2)}


@pytest.mark.parametrize(
    "fields",
    [
        {"sms": 1},
        {"sms": 1, "schedule": "pingpong"},
        {"tile": Tile(192, 256, 64)},
        {"tile": Tile(320, 64, 64)},
        {"tile": Tile(128, 128, 64), "epilogue_stages": 4},
        {"tile": Tile(256, 128, 32), "stages": 9},
        {"tile": Tile(128, 128, 64), "stages": 7},
        {"epilogue_stages": 16, "consumers": 2},
        {"schedule": "pingpong", "tile": Tile(128, 192, 64)},
    ],
)
@pytest.mark.parametrize("changed", ["a", "b", "none"])
def test_the_planner_finds_what_fits(fields, changed):
    """Fields that some kernel serves are served, whatever the planner would have chosen first; odd operands too."""
    of = odd() if changed == "none" else odd(m=256, **{changed: MISALIGNED_A})
    check_honoured(GemmSpec(**fields), plan(GemmSpec(**fields), of))


@pytest.mark.parametrize("name", ["cluster", "schedule", "consumers", "raster"])
def test_few_rows_that_are_swapped_have_what_is_given(name):
    """Tiles of their own are for what a spec leaves open, and for a spec that gives what they have anyway."""
    values = {
        "schedule": ("cooperative", "pingpong", "multistage"),
        "cluster": ((1, 1), (2, 1), (1, 2), (2, 1, 2)),
    }
    for value, shape in itertools.product(values.get(name, ALONE[name]), ((16, 4096, 4096), (33, 640, 504))):
        spec = GemmSpec(swap=True, **{name: value})
        check_honoured(spec, plan(spec, problem(*shape)))
    few = plan(GemmSpec(swap=True, consumers=1), problem(16, 4096, 4096))
    assert few.config == plan(GemmSpec(swap=True), problem(16, 4096, 4096)).config


def test_what_gives_way_is_said():
    """The reasons name a copy of an unaligned operand, or a store from registers that given fields make necessary."""
    spec = GemmSpec(tile=Tile(128, 192, 64), schedule="pingpong")
    copied = plan(spec, problem(128, 192, 65, majors="kk"))
    assert copied.config.a.load == "tma" and any("A is copied" in x for x in copied.reasons)
    direct = plan(GemmSpec(tile=Tile(128, 128, 64), stages=7), odd())
    assert direct.config.d.store == "direct" and any(
        "no shared memory for staging" in x for x in direct.reasons
    )


VACUOUS = [
    (
        {"d_major": "n"},
        {"outputs": (("d", Operand(dtype=DType.BF16, rows=256, cols=1, strides=(1, 1, 0))),)},
        1,
        256,
    ),
    ({"a_major": "k"}, {"a": Operand(dtype=DType.BF16, rows=256, cols=1, strides=(1, 7, 0))}, 256, 1),
    ({"b_major": "n"}, {"b": Operand(dtype=DType.BF16, rows=256, cols=1, strides=(1, 1, 0))}, 1, 256),
    ({"b_major": "k"}, {"b": Operand(dtype=DType.BF16, rows=1, cols=256, strides=(9, 1, 0))}, 256, 1),
    ({"d_major": "m"}, {}, 1, 256),
    ({"a_major": "m", "b_major": "n", "d_major": "m"}, {}, 1, 1),
]


@pytest.mark.parametrize(("fields", "changes", "n", "k"), VACUOUS)
def test_a_major_along_an_extent_of_one_means_nothing(fields, changes, n, k):
    """A matrix of one column has every major along it, whatever its stride, and so has one of one row."""
    m = 1 if fields.get("d_major") == "m" else 256
    of = problem(m, n, k)
    assert plan(GemmSpec(**fields), dataclasses.replace(of, **changes)).steps


def test_a_major_along_a_real_extent_is_checked():
    """A column of D whose elements are apart is not column-major."""
    apart = Operand(dtype=DType.BF16, rows=256, cols=1, strides=(2, 1, 0))
    with pytest.raises(PlanError, match="^d_major='m'"):
        plan(GemmSpec(d_major="m"), dataclasses.replace(problem(256, 1, 8), outputs=(("d", apart),)))


@pytest.mark.parametrize("extents", [(4096, 4096, 4096), (334, 896, 120)])
def test_no_processor_decides_between_equals(extents, monkeypatch):
    """NumPy partitions in another order with AVX-512 and without; configs that cost the same keep theirs."""
    asked, _ = requested(GemmSpec(), problem(*extents), DEFAULT)
    partition, orders = np.argpartition, []
    for shuffle in (np.asarray, np.flip, np.random.default_rng(1).permutation):

        def partitioned(x, at, shuffle=shuffle):
            places = partition(x, at)
            return np.append(shuffle(places[:at]), places[at:])

        monkeypatch.setattr(ranking.np, "argpartition", partitioned)
        found = itertools.islice(ranking.options(asked), 32)
        orders.append([(x.ns, x.way.swapped, x.candidate) for x in found])
    assert len({x[0] for x in orders[0]}) < 32
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("columns", [80, 88, 104, 112, 136, 144, 152, 184, 208])
def test_a_reduction_launch_has_slices_enough_for_the_sms(columns):
    """If no number of slices near the wanted one divides the columns, the next larger is used: few CTAs would spill."""
    made = plan(
        GemmSpec(tile=Tile(64, columns, 64), swap=False, split_k=4, split_reduction="launch"),
        problem(64 * 4, columns * 8, 8192),
    )
    adding = made.steps[-1].config
    wanted = -(-DEFAULT.sms // 32)
    assert adding.family == "add_partials" and 2 * adding.slices > wanted
    assert columns % (8 * adding.slices) == 0
