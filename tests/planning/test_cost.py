# SPDX-License-Identifier: Apache-2.0
"""The generator's table and the cost model: legal configs, units, and laws that every prediction follows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cutegemm import GemmSpec, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import DEFAULT, H100, H200
from cutegemm.errors import PlanError
from cutegemm.planning import choose, cost, generator, ranking, ways
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.seen import Seen
from cutegemm.request.requirements import requested
from tests.support.costs import LARGE, counted, table


@epi.define
def ROW_SUMS(acc):  # noqa: N802
    """A sum of each row."""
    return epi.Output(d=acc, sums=epi.Sum(acc, axis=1))


# of the cost model, with units
RATES = ("port", "l2", "void", "store", "sum_rate", "part_store", "add_rate", "watts")
PLAIN = GemmSpec(), problem(4096, 4096, 4096, majors="kk")


def ns(of, *candidates, device=DEFAULT):
    """Predicted nanoseconds of candidates."""
    return cost.nanoseconds(counted(of, *candidates, device=device), device.cost)


@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_more_work_never_costs_less(axis):
    """Along each extent, in whole tiles."""
    extents = {"m": 1024, "n": 1024, "k": 1024}
    times = [float(ns(problem(**extents | {axis: x}), LARGE)[0]) for x in (1024, 2048, 4096, 8192, 16384)]
    assert times == sorted(times)


def test_padding_costs_what_its_tiles_do():
    """A row more than whole tiles have costs a further row of tiles: as many operations as a full one."""
    whole, more, full = (counted(problem(x, 2048, 4096), LARGE) for x in (2048, 2049, 2304))
    assert more.flops == full.flops > whole.flops and more.traffic == full.traffic


def test_zeros_outside_an_operand_cost_time():
    """What TMA fills in of a tile of few rows takes time where CTAs share it; a box of the rows there are has none."""
    alone, pair = (Candidate((64, 48, 128), x, "cooperative", 1) for x in ((1, 1), (1, 2)))
    few, full = problem(16, 5376, 8192), problem(64, 5376, 8192)
    voids = [counted(of, alone, pair).void.tolist() for of in (few, full)]
    # the second CTA's slice, 32 rows of 128 elements of two bytes
    assert voids == [[0, 32 * 128 * 2], [0, 0]]
    free = dataclasses.replace(DEFAULT, cost=dataclasses.replace(DEFAULT.cost, void=1e9))
    assert ns(few, pair)[0] > 1.02 * ns(few, pair, device=free)[0]
    # the second CTA's columns are all outside, and 8 of the first's
    (outside,) = counted(problem(64, 40, 8192, majors="kk"), pair).void
    assert outside == (8 + 48) / 2 * 128 * 2


def test_clusters_that_request_the_same_bytes_delay_them():
    """Each further one less, and the operand that waits longer counts; a cluster requests what its CTAs share once."""
    alone, pair = (Candidate((64, 64, 64), x, "cooperative", 1) for x in ((1, 1), (1, 2)))
    a = 64 * 4096 * 2
    # A has 64 rows, which all clusters along N request; one along M requests B
    delays = [counted(problem(64, 64 * x, 4096), alone, pair).asked / a for x in range(1, 21)]
    first, paired = np.array(delays).T
    steps = np.diff(first)
    assert first[0] == 0 and steps[0] == 1 and (np.diff(steps[:7]) < 0).all() and not steps[7:].any()
    assert paired[1::2].tolist() == first[:10].tolist()
    # three clusters request B, as many bytes as all 24 request of A's 3 x 64 rows
    (both,) = counted(problem(192, 64 * 24, 4096), alone).asked / a
    assert both == max(3 * first[-1], 24 * first[2])


def test_a_gpu_twice_as_fast_takes_half_the_time():
    """Every rate doubled and every time halved: the units agree."""
    same = ("dram", "straddle", "mma_turn", "in_use", "least_free", "partial", "fill", "fill_beneath", "asked",
            "asked_alone", "asked_power", "short_rows", "bare_dram", "early_fill", "flop", "flop_eight", "lift",
            "l2_energy", "dram_energy", "slows")  # fmt: skip
    old = dataclasses.asdict(DEFAULT.cost)
    new = {x: v * (2 if x in RATES else 1 if x in same else 0.5) for x, v in old.items()}
    device = dataclasses.replace(DEFAULT, cost=type(DEFAULT.cost)(**new), dram_gbs=2 * DEFAULT.dram_gbs)
    split = Candidate((64, 64, 64), (1, 1), "cooperative", 1, 4, 1, "launch")
    for of in (problem(4096, 4096, 4096), problem(128, 256, 16384), problem(8, 4096, 4096)):
        before, after = ns(of, LARGE, split), ns(of, LARGE, split, device=device)
        assert after == pytest.approx(before / 2)


def test_every_figure_counts_and_in_its_direction():
    """Somewhere each figure of the model changes a prediction; higher rates lengthen none, others shorten none."""
    one = Candidate((64, 8, 64), (1, 1), "cooperative", 1)
    candidates = [
        LARGE, one, Candidate((192, 128, 64), (1, 2), "cooperative", 3),
        Candidate((128, 256, 128), (1, 1), "cooperative", 2),
        Candidate((64, 128, 64), (1, 1), "pingpong", 2), Candidate((64, 128, 64), (1, 1), "multistage", 1),
        *(one._replace(splits=4, depth=4 if x == "cluster" else 1, reduction=x)
          for x in ("launch", "workspace", "cluster")),
    ]  # fmt: skip
    shapes = (8192, 8192, 8192), (16, 264, 8200), (4001, 4001, 4001), (64, 1 << 20, 64)
    cases = [problem(*x) for x in shapes] + [problem(256, 5376, 1024, majors="mn", c_dtype="bf16")]
    more = [(x, {}) for x in cases] + [
        (cases[1], {"constant": True, "scaled": True, "read": 1}),
        (problem(8192, 8192, 8192, dtype="fp8_e4m3"), {"promoted": 128}),
    ]

    def times(model):
        device = dataclasses.replace(DEFAULT, cost=model)
        works = [counted(x, *candidates, device=device, **fields) for x, fields in more]
        return np.concatenate([cost.nanoseconds(x, model) for x in works])

    before = times(DEFAULT.cost)
    # `dram` is the share of a rate, `slows` an exponent of both energy and time
    faster = (*RATES, "dram", "least_free")
    for name, value in dataclasses.asdict(DEFAULT.cost).items():
        change = times(dataclasses.replace(DEFAULT.cost, **{name: 2 * value or 1.0})) / before - 1
        assert (abs(change) > 1e-9).any(), name
        assert name == "slows" or ((-change if name in faster else change) > -1e-9).all(), name


def test_few_tiles_of_deep_k_take_less_time_in_splits():
    """Each split has its share of the k tiles."""
    whole = Candidate((128, 128, 64), (1, 1), "cooperative", 2)
    splits = [whole, *(whole._replace(splits=x, reduction="launch") for x in (2, 4, 8))]
    times = ns(problem(128, 256, 16384), *splits).tolist()
    assert times == sorted(times, reverse=True) and times[0] > 2 * times[-1]


def test_only_threads_load_stages_of_few_elements_and_only_for_as_deep_a_k():
    """TMA's stages are of whole swizzle rows, also where K is not."""
    gathered = GemmSpec(a_load="gather", b_load="gather")
    depths = [
        set(table(spec, problem(1024, 1024, k)).k)
        for spec, k in ((GemmSpec(), 32), (gathered, 4096), (gathered, 32))
    ]
    assert depths == [{64, 128}, {64, 128}, {32}]


def test_a_gated_pair_counts_whole():
    """Either way round all of its operand is multiplied, and two accumulators make one result; along M tiles double."""
    asked, _ = requested(
        GemmSpec(epilogue=epi.swiglu()), problem(512, 1024, 256, epilogue=epi.swiglu()), DEFAULT
    )
    for way in ways.ways_of(asked):
        seen = ranking.gemm_of(way)
        assert sorted((seen.a.bytes, seen.b.bytes)) == [2 * 512 * 256, 2 * 1024 * 256]
        assert (seen.gates, seen.halves) == ((1, 2) if way.swapped else (2, 1))
        if way.swapped:
            doubled = generator.table(ways.Kind.of(way))
            plain = table(GemmSpec(), problem(512, 1024, 256))
            assert set(doubled.m) == {2 * x for x in plain.m}


def test_clusters_of_given_splits_are_within_the_limit():
    """CTAs that share operands, times those that add splits up."""
    spec, of = GemmSpec(split_k=8, split_reduction="cluster"), problem(128, 256, 16384)
    found = generator.split(spec, [Seen.of(of)], DEFAULT, table(spec, of))
    assert len(found.m) and (found.across * found.along * found.held <= DEFAULT.limits.max_cluster).all()


def test_every_row_of_a_table_is_a_kernel():
    """Whatever the generator lists for a plain problem the planner can build, but for a few that want more room."""
    asked, _ = requested(GemmSpec(), problem(4096, 4096, 4096), DEFAULT)
    shown = plan(GemmSpec(), asked.problem).why.weighed
    assert sum(x.serves for x in shown) > 0.95 * len(shown)


def test_tables_are_small_and_made_once():
    """Six thousand rows at most, none twice, and the same object for the same facts."""
    made = table(*PLAIN)
    rows = np.array(made)
    assert rows.shape[1] <= 6000 and len(set(map(tuple, rows.T))) == rows.shape[1]
    assert table(*PLAIN) is made


def test_splits_are_for_few_tiles():
    """None where tiles fill the SMs; never more than K has steps for; a cluster adds up all of them or none."""
    made = table(*PLAIN)
    spec = GemmSpec()
    assert generator.split(spec, [Seen.of(problem(8192, 8192, 8192))], DEFAULT, made) is made
    found = generator.split(spec, [Seen.of(problem(128, 256, 8192))], DEFAULT, made)
    split = found.splits > 1
    assert split.any() and (found.splits * found.k <= 8192).all()
    assert ((found.held == found.splits) | (found.held == 1)).all()
    assert (found.schedule[split] == cost.COOPERATIVE).all()


def test_candidates_and_rows_are_the_same():
    """A row made of a candidate gives it back."""
    for one in (LARGE, Candidate((64, 24, 128), (1, 2), "cooperative", 1, 8, 8, "cluster"),
                Candidate((128, 200, 64), (1, 1), "pingpong", 2)):  # fmt: skip
        assert generator.candidate(generator.rows([one]), 0) == one


def test_options_come_by_time_and_keep_to_what_is_given():
    """Both ways round in one order; a given schedule, team, cluster or way leaves the others out."""
    of = problem(1200, 8192, 4096)
    asked, _ = requested(GemmSpec(), of, DEFAULT)
    found = list(ranking.options(asked))
    assert [x.ns for x in found] == sorted(x.ns for x in found)
    assert {x.way.swapped for x in found} == {False, True}
    spec = GemmSpec(schedule="cooperative", consumers=2, cluster=(2, 1), swap=True)
    for x in ranking.options(dataclasses.replace(asked, spec=spec)):
        assert x.way.swapped and (x.candidate.schedule, x.candidate.consumers) == ("cooperative", 2)
        assert x.candidate.cluster == (1, 2)


GIVEN = {
    "schedule": "pingpong",
    "consumers": 3,
    "cluster": (4, 1),
    "split_k": 2,
    "sms": 8,
    "stages": 6,
    "epilogue_stages": 4,
    "swizzle": "64B",
    "scheduler": "stream_k",
    "split_reduction": "workspace",
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_given_field_prunes_the_table(name):
    """Every option has the value and nearly all are kernels; a value beside the usual axes gets rows of its own."""
    spec = GemmSpec(**{name: GIVEN[name]})
    asked, _ = requested(spec, problem(256, 4096, 4096), DEFAULT)
    found = list(ranking.options(asked))
    served = 0
    for option in found[:24]:
        try:
            config, _ = choose.served(option.way, option.candidate)
        except PlanError:
            continue
        served += 1
        x = option.in_d
        made = x._asdict() | {"split_k": x.splits, "stages": config.stages}
        made |= {"epilogue_stages": config.epilogue_stages}
        assert made.get(name, GIVEN[name]) == GIVEN[name] and config.streamed == (name == "scheduler")
    assert served > 0.8 * len(found[:24]) > 0


ODD = problem(1000, 1501, 2003, majors="kk")


def test_unaligned_operands_have_every_way_in():
    """Copied or loaded by threads, each alone; threads that load share nothing with other CTAs."""
    asked, _ = requested(GemmSpec(), ODD, DEFAULT)
    found = list(ways.ways_of(asked))
    assert {x.loads for x in found} >= {("relayout", "relayout"), ("shift", "shift")}
    for x in found:
        if x.gathers:
            rows = generator.table(ways.Kind.of(x))
            assert len(rows.m) and (rows.across * rows.along == 1).all()


def arriving(of, **fields):
    """What a large tile does whose operands arrive as fields say, not swapped."""
    (way,) = ways.ways_of(requested(GemmSpec(swap=False, **fields), of, DEFAULT)[0])
    deep = LARGE._replace(tile=(128, 256, 128))
    bare = LARGE._replace(cluster=(1, 1), schedule="multistage")
    rows = generator.rows([LARGE, deep, LARGE._replace(cluster=(1, 1)), bare])
    return cost.counts(ranking.gemm_of(way), DEFAULT, rows)


def test_a_copy_costs_its_launch_and_bytes_and_threads_what_they_load():
    """Twice the bytes cost a copy twice the time beside its launch, and twice the depth threads less than twice."""
    single, double = (
        arriving(problem(m, 1024, 1001, majors="kn"), a_load="relayout").once[0] - DEFAULT.loads.relayout
        for m in (1024, 2048)
    )
    assert double == pytest.approx(2 * single) and single > 0
    for how in ("shift", "gather", "cp_async"):
        loaded = arriving(problem(1024, 1024, 1002, majors="kn"), a_load=how).loaded
        assert 0 < loaded[0] < loaded[1] < 2 * loaded[0]
    plain = arriving(problem(1024, 1024, 1024))
    assert not plain.loaded.any() and not plain.once.any()


def test_two_stages_do_not_hide_loads_by_threads():
    """What threads take for a stage adds to what else it takes; of three stages the longer of both counts."""
    of = arriving(problem(4096, 1024, 4096, majors="kn"), a_load="cp_async")
    none = np.zeros_like(of.loaded)

    def times(ring, loaded):
        return cost.nanoseconds(of._replace(ring=none + ring, loaded=loaded), DEFAULT.cost)

    whole = of.waves * of.stages * of.loaded
    shares = [(times(ring, of.loaded) - times(ring, none)) / whole for ring in (2, 3)]
    assert (shares[0] > 0.98).all() and (shares[1] < 0.8).all(), shares


def test_short_rows_and_warps_that_also_multiply_leave_memory_idle():
    """Where memory is all that counts, stages of one line a row take longer, as do kernels without a producer."""
    of = problem(8, 16384, 16384, majors="kk")
    tile = Candidate((64, 128, 128), (1, 1), "cooperative", 1)
    deep, flat, bare = ns(of, tile, tile._replace(tile=(64, 128, 64)), tile._replace(schedule="multistage"))
    assert deep < flat and deep < bare


def test_constant_operands_favour_kernels_that_load_them_early():
    """SMs that the launch before keeps busy begin late, clusters with the last of their SMs; without a producer, or
    after a launch that adds up splits, nothing is loaded early."""
    one = Candidate((64, 64, 64), (1, 1), "cooperative", 1)
    kinds = one, one._replace(cluster=(1, 2)), one._replace(schedule="multistage")
    kinds = *kinds, one._replace(splits=4, reduction="launch")
    of, x = problem(64, 2048, 4096, majors="kk"), DEFAULT.cost
    constant, plain = (counted(of, *kinds, constant=early) for early in (True, False))
    none = dataclasses.replace(x, early_full=0.0, early_cluster=0.0, early_bare=0.0, early_sum=0.0)
    late = cost.nanoseconds(constant, x) - cost.nanoseconds(constant, none)
    kept = constant.share * x.early_full
    assert (
        late - kept == pytest.approx([0, x.early_cluster, x.early_bare, x.early_sum], abs=1e-6)
        and kept[0] < kept[3]
    )
    assert (cost.nanoseconds(plain, x) == cost.nanoseconds(plain, none)).all()
    # every launch begins beneath the one before, and the next one streams little beside it
    assert constant.beneath.all() and not plain.beneath.all()
    rates = dataclasses.replace(none, early_fill=0.0), none
    full, shared = (cost.nanoseconds(constant, rate) for rate in rates)
    assert (shared[:3] > full[:3]).all()


def test_scales_cost_each_stage_what_threads_wait_and_read():
    """A stage that is multiplied in less waits as long; with operands swapped every column has a scale of its own."""
    spec = GemmSpec(scale_a=("block", 1, 128), scale_b=("block", 128, 128))
    fp8 = problem(64, 4096, 8192, dtype="fp8", majors="kk", epilogue=spec.epilogue)
    seen = {x.swapped: ranking.gemm_of(x) for x in ways.ways_of(requested(spec, fp8, DEFAULT)[0])}
    narrow = generator.rows([Candidate((64, n, 128), (1, 1), "cooperative", 1) for n in (16, 32)])
    work = {swapped: cost.counts(x, DEFAULT, narrow) for swapped, x in seen.items()}
    assert work[True].scaled.all() and work[False].scaled.all()
    assert work[True].read.tolist() == [4, 8] and not work[False].read.any()
    model = DEFAULT.cost
    # nanoseconds a stage, beside which whatever else it does takes little
    free, waits = (cost.nanoseconds(work[False], dataclasses.replace(model, scaled=x)) for x in (0, 1000))
    stages = work[False].waves * work[False].stages
    assert (waits - free > 0.8 * stages * 1000).all()


def test_a_sum_of_splits_comes_after_all_that_memory_delivers():
    """Where memory is what counts a cluster's sum takes its whole time, though its SM has time to spare."""
    of = problem(8, 16384, 16384, majors="kk")
    split = Candidate((64, 256, 64), (1, 1), "cooperative", 1, 2, 2, "cluster")
    model = DEFAULT.cost
    longer = dataclasses.replace(DEFAULT, cost=dataclasses.replace(model, sum=model.sum + 1000))
    assert counted(of, split).waves == 1
    assert ns(of, split, device=longer) - ns(of, split) == pytest.approx(1000)


def test_half_of_a_gated_pair_is_stored():
    """Output columns are half of the accumulators'; products and bytes loaded are the same."""
    plain, gated = (counted(problem(4096, 4096, 4096), LARGE, gates=x) for x in (1, 2))
    assert 2 * gated.stored == plain.stored and gated.flops == plain.flops and gated.traffic == plain.traffic


def test_partial_results_along_rows_keep_their_columns():
    """Under `batch_invariant` every config has the same columns, and operands are not swapped."""
    spec = GemmSpec(batch_invariant=True, epilogue=ROW_SUMS)
    for m in (8, 500, 4096):
        asked, _ = requested(spec, problem(m, 1024, 1024, epilogue=ROW_SUMS), DEFAULT)
        found = list(ranking.options(asked))
        assert {(x.candidate.tile[1], x.way.swapped) for x in found} == {(128, False)}


def test_rows_of_the_same_bits_have_no_splits():
    """How many pay depends on M, on which `batch_invariant` lets no sum depend."""
    asked, _ = requested(GemmSpec(batch_invariant=True), problem(128, 256, 8192), DEFAULT)
    assert all(x.candidate.splits == 1 for x in ranking.options(asked))


def test_waves_decide_which_way_a_tile_lies():
    """Rows that nearly fill tiles of some columns, and not of 128 or 256 rows, lie along columns, on either GPU."""
    for device in (H200, H100):
        made = plan(GemmSpec(), problem(1200, 21504, 5376), device)
        across = made.config.tile[1]
        assert made.swapped and -(-1200 // across) * across < 1.03 * 1200


def test_problems_beyond_64_bits_of_bytes_are_planned():
    """Bytes are counted as floating-point numbers: those of the largest extents exceed any integer type."""
    most = 2**31 - 512
    assert plan(GemmSpec(), problem(most, 8, most, batch=64)).config is not None
