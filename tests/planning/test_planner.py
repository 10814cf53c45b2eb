# SPDX-License-Identifier: Apache-2.0
"""The planner: it honours every given field or refuses in the standard words, and what it plans fits the hardware."""

import dataclasses
import json
import math
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.config import FinishConfig, GemvConfig, KernelConfig, RelayoutConfig, registers, smem_budget
from cutegemm.config.numbers import round_up
from cutegemm.errors import PlanError, SpecError
from cutegemm.families import FAMILIES
from cutegemm.planning.planner import plan
from cutegemm.problems import output_extent
from tests.support.planned import (
    as_multiplied,
    attempt,
    check_honoured,
    corrected,
)
from tests.support.strategies import eight_bits, for_problem, fused_problems, problems, specs

MESSAGE = re.compile(
    r"^(?P<field>\w+(\.[mnk])?)=(?P<value>.+?): (?P<rule>.+?)(; nearest legal value: (?P<nearest>.+))?$"
)


def epilogue_regions(config, subtile):
    """Shared memory of the epilogue by the region's name; `subtile` elements of a matrix."""
    sizes = {}
    for result, x in zip(config.epilogue.stores, config.outputs, strict=True):
        held = subtile * x.dtype.bytes
        if x.store == "staged" and x.major != "strided":
            # a line has a sector of 32 bytes before it and is an odd number of 16-byte chunks from the next
            lines, length = (64, config.epi_n)[:: -1 if x.major == "m" else 1]
            pitch = length * x.dtype.bytes + 32
            held = (pitch + (16 if pitch % 32 == 0 else 0)) * lines * config.consumers
        if x.store != "direct":
            sizes[f"{result.name} staging"] = config.epilogue_stages * held
    fetched = {name: x for name, x in config.input_of.items() if x.load == "tma"}
    sizes |= {
        f"{name} subtiles": config.input_stages * subtile * x.dtype.bytes for name, x in fetched.items()
    }
    if fetched:
        sizes["subtile barriers"] = 8 * config.consumers * config.input_stages
    rows = list(config.epilogue.tensors.values()).count("row")
    if rows:
        sizes["rows"] = 4 * rows * config.stored_columns * config.consumers
    return sizes


def expected_regions(config):
    """Region -> bytes of a tensor-core kernel's shared memory, from its config alone."""
    subtile = 64 * config.consumers * config.epi_n
    sizes = {"A": config.tile[0], "B": config.tile[1]}
    sizes = {
        name: rows * config.tile[2] * config.a.dtype.bytes * config.stages for name, rows in sizes.items()
    }
    for name, x, rows in zip("AB", config.operands, config.tile, strict=False):
        if x.load == "shift":
            # a line of a K-major operand is a row of a half, of another a k; it has one word more than chunks
            lines, length = (rows // x.halves, config.tile[2])[:: 1 if x.k_major else -1]
            # every eighth line is of one class, whose lines lie in whole lines of 128 bytes
            of_class = -(-lines // 8) * (length // 8 + 1) * 16
            sizes[f"{name} words"] = -(-of_class // 128) * 128 * 8 * x.halves * config.stages
            # boxes are of whole classes, of at most 256 elements a line
            if x.width and x.halves == 1 and lines % 8 == 0 and length + 8 <= 256:
                sizes[f"{name} word barriers"] = 4 * 8 * config.stages
    if config.stores:
        sizes |= epilogue_regions(config, subtile)
    sizes |= {"barriers": 2 * 8 * config.stages}
    if config.cluster_splits > 1:
        sizes["partial sums"] = 4 * config.cluster_splits * config.tile[0] * config.tile[1] // config.slices
        sizes["sum barriers"] = 16
    if config.split_reduction in ("workspace", "atomic"):
        sizes["count"] = {"workspace": 4, "atomic": 8}[config.split_reduction]
    if config.dynamic:
        sizes |= {"work barriers": 4 * 2 * 8, "works": 4 * 4}
    return sizes


def check_epilogue(p):
    """Inputs and outputs are those of the graph, in its order; subtiles divide the tile, buffers the subtiles."""
    config = p.config
    graph, inputs, outputs = config.epilogue, dict(p.problem.inputs), dict(p.problem.outputs)
    assert [x.dtype for x in config.inputs] == [inputs[name].dtype for name in graph.tensors]
    assert [x.dtype for x in config.outputs] == [outputs[x.name].dtype for x in graph.stores]
    assert config.device_scalars == p.problem.device_scalars
    if not isinstance(config, KernelConfig):
        assert {x.load for x in config.inputs} <= {"direct"} and {x.store for x in config.outputs} <= {
            "direct"
        }
        return
    for name, x in config.input_of.items():
        assert (x.load == "tma") == (graph.tensors[name] == "matrix" and inputs[name].tma_reason() is None)
    for result, x in zip(graph.stores, config.outputs, strict=True):
        assert x.store != "tma" or outputs[result.name].tma_store_reason() is None
    assert config.columns == config.tile[1] // (2 if graph.gated_axis == "n" else 1)
    assert config.rows == config.tile[0] // (2 if graph.gated_axis == "m" else 1)
    assert config.stored_columns * config.slices == config.columns and config.slices <= config.cluster_splits
    assert config.stored_columns % config.epi_n == 0
    widest = [x.dtype.bytes for x in config.outputs] + [
        x.dtype.bytes for x in config.inputs if x.load == "tma"
    ]
    assert config.epi_n * max(widest, default=2) <= 128
    assert config.subtiles == config.passes * config.stored_columns // config.epi_n
    assert config.subtiles % config.input_stages == 0 and 1 <= config.epilogue_stages <= config.subtiles


def check_fits(p):
    """The plan is within the hardware's limits and its parts agree with one another."""
    _, p = as_multiplied(p.spec, p)
    assert 1 <= p.clusters
    check_epilogue(p)
    if not isinstance(p.config, KernelConfig):
        # CTAs of a few rows' kernel share K by slices; some have no columns
        m, n, batch = p.tiles
        slices = p.config.slices if isinstance(p.config, GemvConfig) else 1
        assert p.clusters == round_up(m * n, slices) * batch <= H200.limits.max_grid
        return
    config = p.config
    assert p.clusters * config.cluster_size <= H200.limits.max_grid
    assert config.threads <= H200.limits.max_threads
    assert config.ctas_per_sm * (p.smem_bytes + 1024) <= H200.limits.smem_bytes + 1024
    assert p.smem == smem_budget.shared_memory(config)
    assert {x.name: x.size for x in p.smem} == expected_regions(config)
    for before, after in zip(p.smem, p.smem[1:], strict=False):
        assert before.offset + before.size <= after.offset
    assert p.smem_bytes == p.smem[-1].offset + p.smem[-1].size
    for region in p.smem:
        align = {
            "barriers": 8,
            "subtile barriers": 8,
            "rows": 16,
            "count": 16,
            "sum barriers": 8,
            "work barriers": 8,
            "works": 4,
        }
        align |= {"A words": 16, "B words": 16, "A word barriers": 8, "B word barriers": 8}
        assert region.offset % align.get(region.name, H200.limits.smem_align) == 0 and region.size > 0
    assert p.accumulators == config.held_values
    if p.registers is None:
        per_thread = min(H200.limits.registers_per_thread, H200.limits.registers_per_sm // config.threads)
    else:
        producer, per_thread = p.registers
        assert producer % H200.limits.register_step == per_thread % H200.limits.register_step == 0
        assert (
            producer + config.consumers * per_thread
        ) * H200.limits.warpgroup <= H200.limits.registers_per_sm
    roles = FAMILIES[config.family].roles
    # a kernel that leaves its sums to the next launch reads nobody's
    reads = config.adds_up and (config.cluster_splits > 1 or config.split_reduction != "launch")
    laden = config.gathers or reads
    shared = roles.most(config.consumers, laden=laden)
    most = roles.turns[config.gathers] if config.pingpong else shared
    if config.consumers == 2 and not laden and registers.plain(config):
        most = max(most, roles.plain_accumulators)
    if config.ctas_per_sm > 1:
        most = roles.shared_accumulators[config.consumers]
    assert p.accumulators <= most <= per_thread - 24
    assert config.mma_columns in (config.tile[1], 128)
    for axis, extent in enumerate((p.problem.m, p.problem.n)):
        step = config.tile[axis] * config.cluster[axis]
        assert p.tiles[axis] * config.tile[axis] == -(-extent // step) * step
    assert p.tiles[2] == p.problem.batch
    if config.persistent:
        assert p.clusters * config.cluster_size <= H200.sms * config.ctas_per_sm
    else:
        assert p.clusters * config.cluster_size == math.prod(p.tiles) * config.splits


def check_adding(p):
    """The launch after a product takes what that left, in slices of whole subtiles, and covers every tile."""
    made, adding = p.config, p.storing.config
    assert made.split_reduction == "launch" and made.trigger == adding.trigger
    assert (adding.tile, adding.epilogue, adding.outputs) == (made.tile, made.epilogue, made.outputs)
    assert adding.splits * made.cluster_splits == made.splits
    assert adding.stored_columns * adding.slices == adding.columns and adding.stored_columns % 8 == 0
    assert adding.stored_columns % adding.epi_n == 0 and adding.subtiles % adding.input_stages == 0
    assert p.storing.clusters == math.prod(p.tiles) * adding.slices * adding.team
    assert adding.threads <= 512


def check_workspace(p):
    """Copies, which TMA can address, then partial results lie one after another in the workspace, aligned."""
    _, p = as_multiplied(p.spec, p)
    end, names = 0, [step.name for step in p.steps]
    gemm = names.index("gemm")
    for step in p.steps[:gemm]:
        assert isinstance(step.config, RelayoutConfig) and step is p.steps[0]
        for copy in step.copies:
            assert copy.offset >= end and copy.offset % 256 == 0
            target = copy.target
            assert target.tma_reason() is None
            extents = (target.rows, target.cols, target.batch)
            last = sum((n - 1) * s for n, s in zip(extents, target.strides, strict=True))
            end = copy.offset + (last + 1) * target.dtype.bytes
    graph = p.config.epilogue
    finished = [x for x in graph.reductions if not x.partial]
    if p.storing is not p.multiply:
        assert names.pop(gemm + 1) == p.storing.name == "add parts"
        check_adding(p)
    assert names[gemm + 1 :] == [f"finish {x.name}" for x in finished]
    assert [offset is None for offset in p.partials] == [x.partial for x in graph.reductions]
    for step, result in zip(p.steps[-len(finished) :] if finished else (), finished, strict=True):
        assert step.config == FinishConfig(kind=result.kind, across=result.axis is not None)
        assert step.offset >= end and step.offset % 256 == 0
        assert step.offset == p.partials[graph.reductions.index(result)]
        height, width = output_extent(graph, p.problem.m, p.problem.n)
        assert step.results == p.problem.batch * {0: width, 1: height, None: 1}[result.axis]
        assert step.parts == p.parts[{0: 0, 1: 1, None: 2}[result.axis]] > 0
        end = step.offset + 4 * step.parts * step.results * (2 if result.kind == "logsumexp" else 1)
    assert end <= p.workspace_bytes
    split = p.config.split_reduction if isinstance(p.config, KernelConfig) else "none"
    meets = split in ("workspace", "atomic")
    assert bool(p.workspace_bytes) == (len(p.steps) > 1 or meets)
    counters = math.prod(p.tiles) * p.config.slices * (1 + (split == "atomic")) if meets else 0
    dynamic = isinstance(p.config, KernelConfig) and p.config.dynamic
    # a dynamic scheduler counts numbers taken, and clusters that take no more
    assert p.counter_bytes == 4 * (counters + 2 * dynamic)


def settle(spec, of):
    """The plan of a spec once every refusal is cured with the value that it names."""
    for _ in range(len(spec.given()) + 2):
        result = attempt(spec, of)
        if not isinstance(result, PlanError):
            return spec, result
        try:
            spec = corrected(spec, result)
        except SpecError as error:
            raise AssertionError(f"{result}\nnames a value that no spec takes: {error}") from error
    raise AssertionError(f"no end of corrections: {result}")


@given(specs(), problems())
def test_any_spec_and_problem_plan_or_are_refused(spec, of):
    """A drawn spec either plans, honoured and within limits, or is refused naming a value that cures the error."""
    if attempt(GemmSpec(), of).__class__ is PlanError:
        assume("split the problem along" not in str(attempt(GemmSpec(), of)))
    spec, result = settle(for_problem(spec, of), of)
    if result.steps:
        check_honoured(spec, result)
        check_fits(result)
        check_workspace(result)


@given(eight_bits())
def test_any_spec_of_8_bits_and_tf32_plans_or_is_refused(drawn):
    """The same for any pair of 8-bit types, with scales, zero points and promotion, and for tf32; plans print, too."""
    spec, of = drawn
    result = attempt(spec, of)
    if isinstance(result, PlanError):
        assert MESSAGE.match(str(result))
        return
    config = result.config
    blocks = [x[1] for x in (spec.scale_a, spec.scale_b) if isinstance(x, tuple)]
    assert (result.problem.a.dtype, result.problem.b.dtype) == (of.a.dtype, of.b.dtype)
    assert result.smem_bytes <= H200.limits.smem_bytes
    if spec.promote != "auto":
        assert config.promote == (spec.promote or 0)
    # scales of blocks multiply the sums of their 128 elements
    assert sorted(x.extent for x in config.epilogue.scales) == sorted(blocks)
    assert not blocks or config.promote == 128
    data = result.to_dict()
    assert json.loads(json.dumps(data)) == data and f"{of.m} x {of.n} x {of.k}" in str(result)


@epi.define(gated="halves")
def GATED(gate, up):  # noqa: N802
    """A gated pair: a slice of 8 output columns is 16 of the accumulators."""
    return gate * up


def parts_of(tile, parts):
    """A spec and a gated problem whose K is that many parts, which meet in a cluster."""
    of = problem(1024, 1024, 16 * parts, dtype="fp16", epilogue=GATED)
    return GemmSpec(tile=Tile(*tile), a_load="tma", split_k=parts), (GATED, of)


# 229,376 bytes of parts of K, which no narrower or flatter tile has fewer of
@example(*parts_of((512, 16, 16), 7))
# the same once the columns that registers hold, 64, are four slices
@example(*parts_of((512, 96, 16), 7))
@given(specs(), fused_problems())
def test_any_fused_epilogue_plans_or_is_refused(spec, fused):
    """The same for any epilogue: rows, columns, matrices, scalars, gated pairs, several outputs, reductions."""
    graph, of = fused
    spec, result = settle(dataclasses.replace(for_problem(spec, of), epilogue=graph), of)
    check_honoured(spec, result)
    check_fits(result)
    check_workspace(result)


@given(specs(), problems(low=1, high=3000), st.data())
def test_what_is_open_gives_way_to_what_is_given(spec, of, data):
    """A spec that plans still plans when any of its fields are left open: only given fields can refuse it.

    A given schedule "simt" stays: the planner never chooses CUDA cores for 16-bit operands, which some tiles need.
    """
    spec, _ = settle(for_problem(spec, of), of)
    assume(len(spec.given()) > 1)
    kept = data.draw(st.lists(st.sampled_from(sorted(spec.given())), unique=True))
    kept += ["schedule"] * (spec.schedule == "simt")
    looser = GemmSpec(**{name: value for name, value in spec.given().items() if name in kept})
    result = plan(looser, of)
    if result.steps:
        check_honoured(looser, result)
        check_fits(result)


@given(fused_problems())
def test_a_spec_of_an_epilogue_alone_serves_every_problem(fused):
    """With all but the epilogue left open there is a plan for any types, strides and alignments."""
    graph, of = fused
    p = plan(GemmSpec(epilogue=graph), of)
    check_fits(p)
    check_workspace(p)


@given(specs(), problems(low=1, high=300))
def test_types_and_majors_are_honoured_or_refused(spec, of):
    """A spec that demands types and majors plans only for a problem that has them."""
    result = attempt(spec, of)
    if isinstance(result, PlanError):
        assert MESSAGE.match(str(result))
    else:
        check_honoured(spec, result)


@given(problems(low=1))
def test_a_bare_spec_serves_every_problem(of):
    """With everything left open there is a plan for any types, strides and alignments."""
    p = plan(GemmSpec(), of)
    check_fits(p)
    check_workspace(p)


@given(
    st.sampled_from(((0, 5, 5, 1), (5, 0, 5, 1), (5, 5, 5, 0), (0, 0, 0, 0))),
    st.sampled_from(("bf16", "fp32")),
)
def test_an_empty_result_needs_no_launch(shape, dtype):
    """M, N or the batch being 0 gives a plan without steps."""
    m, n, k, batch = shape
    p = plan(GemmSpec(), problem(m, n, k, batch=batch, dtype=dtype))
    assert p.steps == () and p.config is None and p.workspace_bytes == 0


@pytest.mark.parametrize("schedule", ["auto", "cooperative", "multistage", "simt"])
def test_no_k_is_served_without_a_mainloop(schedule):
    """K = 0 plans under every schedule, because D = beta * C whoever computes it."""
    p = plan(GemmSpec(schedule=schedule), problem(100, 90, 0, c_dtype="bf16"))
    assert p.config.family == "simt" and list(p.config.input_of) == ["c"]
