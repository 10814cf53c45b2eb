# SPDX-License-Identifier: Apache-2.0
"""The planner: it honours every given field or refuses in the standard words, and what it plans fits the hardware."""

import dataclasses
import itertools
import json
import math
import os
import re
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutegemm import DType, GemmSpec, Operand, Problem, Tile, plan, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import H200
from cutegemm.config import ClearConfig, FinishConfig, KernelConfig, RelayoutConfig, SimtConfig
from cutegemm.epilogue.graph import linear_combination
from cutegemm.errors import InputError, PlanError, SpecError
from cutegemm.families import FAMILIES
from cutegemm.planning import budget, swap
from cutegemm.planning.kernel import accumulators
from cutegemm.planning.request import Request
from cutegemm.problems import output_extent
from tests.support.strategies import for_problem, fused_problems, problems, specs

MESSAGE = re.compile(
    r"^(?P<field>\w+(\.[mnk])?)=(?P<value>.+?): (?P<rule>.+?)(; nearest legal value: (?P<nearest>.+))?$"
)


def attempt(spec, of):
    """The plan, or the error."""
    try:
        return plan(spec, of)
    except PlanError as error:
        return error


def corrected(spec, error):
    """The spec with the error's field set to the nearest legal value it names."""
    name, value = error.field, error.nearest
    assert name and value is not None, f"no nearest legal value in: {error}"
    if "." in name:
        return dataclasses.replace(spec, tile=dataclasses.replace(spec.tile, **{name[-1]: value}))
    return dataclasses.replace(spec, **{name: value})


def schedule_of(config):
    """The spec's name for how a tensor-core kernel's warpgroups work together."""
    if config.family == "multistage":
        return "multistage"
    return "pingpong" if config.pingpong else "cooperative"


def as_multiplied(spec, p):
    """The spec and the plan of the product that the kernel multiplies: that of the transposes if they are swapped."""
    if not p.steps or not p.swapped:
        return spec, p
    given_epilogue = p.config.epilogue.transposed()
    turned = swap.transposed(Request(spec=spec, problem=p.problem, epilogue=given_epilogue, device=p.device))
    return turned.spec, swap.in_d(p, turned)


def check_honoured(spec, p):
    """Every given field stands in the plan."""
    assert spec.swap in ("auto", p.swapped) or p.config.family == "simt"
    spec, p = as_multiplied(spec, p)
    config = p.config
    given_fields = spec.given()
    stored = dict(zip((x.name for x in config.epilogue.stores), config.outputs, strict=True))
    matrices = {"a": config.a, "b": config.b, **config.input_of, **stored}
    for name in ("a", "b", "c", "d"):
        operand = getattr(p.problem, name)
        if operand is not None and f"{name}_dtype" in given_fields:
            assert operand.dtype is given_fields[f"{name}_dtype"]
            assert matrices[name].dtype is operand.dtype
    if isinstance(config, SimtConfig):
        open_fields = {"a_dtype", "b_dtype", "c_dtype", "d_dtype", "acc_dtype", "a_major", "b_major", "c_major",
                       "d_major", "schedule", "epilogue"}  # fmt: skip
        assert p.problem.k == 0 or set(given_fields) <= open_fields
        return
    direct = {
        "tile": lambda: Tile(*config.tile), "cluster": lambda: config.cluster, "stages": lambda: config.stages,
        "consumers": lambda: config.consumers, "raster": lambda: p.raster,
        "epilogue_stages": lambda: config.epilogue_stages, "input_stages": lambda: config.input_stages,
        "scheduler": lambda: (
            config.walk if config.walk != "static" else "persistent" if config.persistent else "per_tile"
        ),
        "split_k": lambda: config.splits, "ctas_per_sm": lambda: config.ctas_per_sm,
        "trigger": lambda: config.trigger,
        "schedule": lambda: schedule_of(config),
        "epilogue": lambda: config.epilogue,
    }  # fmt: skip
    for name, value in given_fields.items():
        if name in direct:
            assert direct[name]() == value, name
    if "store" in given_fields:
        assert {x.store for x in config.outputs} <= {spec.store}
    if "swizzle" in given_fields:
        assert {x.swizzle for x in config.operands} == {spec.swizzle}
    if "sms" in given_fields:
        assert p.clusters * config.cluster_size <= spec.sms
    copied = {step.operand for step in p.steps if isinstance(step.config, RelayoutConfig)}
    for name in ("a", "b"):
        load = given_fields.get(f"{name}_load")
        kernel_load = getattr(config, name).load
        if load is not None:
            assert (load == "relayout") == (name in copied)
            assert kernel_load == ("gather" if load == "gather" else "tma")
    for name, axes in {"a": "mk", "b": "kn", "c": "mn", "d": "mn"}.items():
        major, operand = given_fields.get(f"{name}_major"), getattr(p.problem, name)
        if major is not None and operand is not None:
            along = axes.index(major)
            vacuous = (operand.rows, operand.cols)[along] <= 1
            assert vacuous or operand.strides[along] == 1
            assert vacuous or matrices[name].major == major or 1 in (operand.rows, operand.cols)


def expected_regions(config):
    """Region -> bytes of a tensor-core kernel's shared memory, from its config alone."""
    piece = 64 * config.consumers * config.epi_n
    sizes = {"A": config.tile[0], "B": config.tile[1]}
    sizes = {
        name: rows * config.tile[2] * config.a.dtype.bytes * config.stages for name, rows in sizes.items()
    }
    for result, x in zip(config.epilogue.stores, config.outputs, strict=True):
        if x.store != "direct":
            sizes[f"{result.name} staging"] = config.epilogue_stages * piece * x.dtype.bytes
    fetched = {name: x for name, x in config.input_of.items() if x.load == "tma"}
    sizes |= {f"{name} pieces": config.input_stages * piece * x.dtype.bytes for name, x in fetched.items()}
    if fetched:
        sizes["piece barriers"] = 8 * config.consumers * config.input_stages
    rows = list(config.epilogue.tensors.values()).count("row")
    if rows:
        sizes["rows"] = 4 * rows * config.stored_columns * config.consumers
    sizes |= {"barriers": 2 * 8 * config.stages}
    if config.cluster_parts > 1:
        sizes["parts of K"] = 4 * config.splits * config.tile[0] * config.tile[1] // config.slices
        sizes["sum barriers"] = 16
    elif config.adds_up:
        sizes["count"] = 4
    if config.dynamic:
        sizes["works"] = 4 * (2 * 8 + 4)
    return sizes


def check_epilogue(p):
    """Inputs and outputs are those of the graph, in its order; pieces divide the tile, buffers the pieces."""
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
    assert config.stored_columns * config.slices == config.columns and config.slices <= config.cluster_parts
    assert config.stored_columns % config.epi_n == 0
    widest = [x.dtype.bytes for x in config.outputs] + [
        x.dtype.bytes for x in config.inputs if x.load == "tma"
    ]
    assert config.epi_n * max(widest, default=2) <= 128
    assert config.pieces == config.passes * config.stored_columns // config.epi_n
    assert config.pieces % config.input_stages == 0 and 1 <= config.epilogue_stages <= config.pieces


def check_fits(p):
    """The plan is within the hardware's limits and its parts agree with one another."""
    _, p = as_multiplied(p.spec, p)
    assert 1 <= p.clusters
    check_epilogue(p)
    if not isinstance(p.config, KernelConfig):
        assert p.clusters == math.prod(p.tiles) <= H200.limits.max_grid
        return
    config = p.config
    assert p.clusters * config.cluster_size <= H200.limits.max_grid
    assert config.threads <= H200.limits.max_threads
    assert config.ctas_per_sm * (p.smem_bytes + 1024) <= H200.limits.smem_bytes + 1024
    assert p.smem == budget.shared_memory(config)
    assert {x.name: x.size for x in p.smem} == expected_regions(config)
    for before, after in zip(p.smem, p.smem[1:], strict=False):
        assert before.offset + before.size <= after.offset
    assert p.smem_bytes == p.smem[-1].offset + p.smem[-1].size
    for region in p.smem:
        align = {"barriers": 8, "piece barriers": 8, "rows": 16, "count": 16, "sum barriers": 8, "works": 8}
        assert region.offset % align.get(region.name, H200.limits.smem_align) == 0 and region.size > 0
    assert p.accumulators == accumulators(config.tile, config.team, H200.limits)
    if p.registers is None:
        per_thread = min(H200.limits.registers_per_thread, H200.limits.registers_per_sm // config.threads)
    else:
        producer, per_thread = p.registers
        assert producer % H200.limits.register_step == per_thread % H200.limits.register_step == 0
        assert (
            producer + config.consumers * per_thread
        ) * H200.limits.warpgroup <= H200.limits.registers_per_sm
    roles = FAMILIES[config.family].roles
    shared = roles.most(config.consumers, laden=config.gathers or config.adds_up)
    most = roles.turns[config.gathers] if config.pingpong else shared
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
        assert p.clusters * config.cluster_size == math.prod(p.tiles)


def check_workspace(p):
    """Copies, which TMA can address, then partial results lie one after another in the workspace, aligned."""
    _, p = as_multiplied(p.spec, p)
    end, names = 0, [step.name for step in p.steps]
    gemm = names.index("gemm")
    for step in p.steps[:gemm]:
        if isinstance(step.config, ClearConfig):
            assert (p.config.adds_up and p.config.cluster_parts == 1) or p.config.dynamic
            continue
        assert isinstance(step.config, RelayoutConfig)
        assert step.offset >= end and step.offset % 256 == 0
        target = step.target
        assert target.tma_reason() is None
        last = sum(
            (n - 1) * s for n, s in zip((target.rows, target.cols, target.batch), target.strides, strict=True)
        )
        end = step.offset + (last + 1) * target.dtype.bytes
    graph = p.config.epilogue
    finished = [x for x in graph.reductions if not x.partial]
    assert names[gemm + 1 :] == [f"finish {x.name}" for x in finished]
    assert [offset is None for offset in p.partials] == [x.partial for x in graph.reductions]
    for step, result in zip(p.steps[gemm + 1 :], finished, strict=True):
        assert step.config == FinishConfig(kind=result.kind, across=result.axis is not None)
        assert step.offset >= end and step.offset % 256 == 0
        assert step.offset == p.partials[graph.reductions.index(result)]
        height, width = output_extent(graph, p.problem.m, p.problem.n)
        assert step.results == p.problem.batch * {0: width, 1: height, None: 1}[result.axis]
        assert step.parts == p.parts[{0: 0, 1: 1, None: 2}[result.axis]] > 0
        end = step.offset + 4 * step.parts * step.results * (2 if result.kind == "logsumexp" else 1)
    assert end <= p.workspace_bytes
    assert bool(p.workspace_bytes) == (len(p.steps) > 1)


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
        assume("grid=" not in str(attempt(GemmSpec(), of)))
    spec, result = settle(for_problem(spec, of), of)
    if result.steps:
        check_honoured(spec, result)
        check_fits(result)
        check_workspace(result)


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
    """A spec that plans still plans when any of its fields are left open: only given fields can refuse it."""
    spec, _ = settle(for_problem(spec, of), of)
    assume(len(spec.given()) > 1)
    kept = data.draw(st.lists(st.sampled_from(sorted(spec.given())), unique=True))
    looser = GemmSpec(**{name: value for name, value in spec.given().items() if name in kept})
    result = plan(looser, of)
    if result.steps:
        check_honoured(looser, result)
        check_fits(result)


ALONE = {
    "cluster": ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (8, 1), (1, 8), (4, 2), (2, 4)),
    "stages": range(1, 17),
    "swizzle": ("128B", "64B", "32B", "none"),
    "schedule": ("cooperative", "pingpong", "multistage", "simt"),
    "consumers": (1, 2, 3),
    "a_load": ("tma", "gather", "relayout"),
    "b_load": ("tma", "gather", "relayout"),
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


def test_what_gives_way_is_said():
    """The reasons name a copy, or a store from registers, that the given fields made necessary."""
    spec = GemmSpec(tile=Tile(128, 192, 64), schedule="pingpong")
    tiny = problem(128, 192, 65, majors="kk")
    assert plan(GemmSpec(), tiny).config.a.load == "gather"
    copied = plan(spec, tiny)
    assert copied.config.a.load == "tma" and any("no registers for gathering" in x for x in copied.reasons)
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
    """Of one column every major along it is true, whatever its stride; of one row likewise."""
    m = 1 if fields.get("d_major") == "m" else 256
    of = problem(m, n, k)
    assert plan(GemmSpec(**fields), dataclasses.replace(of, **changes)).steps


def test_a_major_along_a_real_extent_is_checked():
    """A column of D whose elements are apart is not column-major."""
    apart = Operand(dtype=DType.BF16, rows=256, cols=1, strides=(2, 1, 0))
    with pytest.raises(PlanError, match="^d_major='m'"):
        plan(GemmSpec(d_major="m"), dataclasses.replace(problem(256, 1, 8), outputs=(("d", apart),)))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((None, problem(8, 8, 8)), SpecError, "spec=None: must be a GemmSpec; nearest legal value: GemmSpec()"),
        (({}, problem(8, 8, 8)), SpecError, "spec={}: must be a GemmSpec; nearest legal value: GemmSpec()"),
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


def odd(m=256, n=256, k=256, **changes):
    """A problem with the given operands replaced by misaligned ones."""
    base = problem(m, n, k)
    return dataclasses.replace(base, **changes)


MISALIGNED_A = Operand(dtype=DType.BF16, rows=256, cols=256, strides=(257, 1, 0))
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


REFUSALS = [
    ({"a_dtype": "fp16"}, odd(), "a_dtype='fp16': the problem's A is bf16; nearest legal value: 'bf16'"),
    ({"d_dtype": "fp32"}, odd(), "d_dtype='fp32': the problem's D is bf16; nearest legal value: 'bf16'"),
    ({"c_dtype": "fp32"}, problem(64, 64, 64, c_dtype="bf16"),
     "c_dtype='fp32': the problem's C is bf16; nearest legal value: 'bf16'"),
    ({}, odd(b=dataclasses.replace(MISALIGNED_A, dtype=DType.FP16)),
     "b_dtype='fp16': A and B have one dtype; nearest legal value: 'bf16'"),
    ({"a_major": "m"}, odd(),
     "a_major='m': the problem's A has strides (256, 1) (row, column); nearest legal value: 'k'"),
    ({"b_major": "n"}, problem(64, 128, 64, majors="kk"),
     "b_major='n': the problem's B has strides (1, 64) (row, column); nearest legal value: 'k'"),
    ({"d_major": "n"}, odd(outputs=(("d", STRIDED_D),)),
     "d_major='n': the problem's D has strides (512, 2) (row, column); nearest legal value: 'auto'"),
    ({"a_load": "tma"}, odd(a=MISALIGNED_A),
     "a_load='tma': TMA cannot address A: leading stride is 514 bytes, no multiple of 16; "
     "nearest legal value: 'relayout'"),
    ({"b_load": "tma"}, odd(b=dataclasses.replace(MISALIGNED_A, strides=(256, 1, 0), align=2)),
     "b_load='tma': TMA cannot address B: base address is aligned to 2 bytes, not 16; "
     "nearest legal value: 'relayout'"),
    ({"store": "tma"}, odd(outputs=(("d", STRIDED_D),)),
     "store='tma': TMA cannot store D: neither dimension has unit stride; nearest legal value: 'staged'"),
    ({"a_load": "gather", "cluster": (2, 1)}, odd(),
     "cluster=(2, 1): a gathered operand cannot be multicast; nearest legal value: (1, 1)"),
    ({"schedule": "cooperative"}, problem(64, 64, 64, dtype="fp32"),
     "schedule='cooperative': fp32 operands run on the CUDA cores; nearest legal value: 'simt'"),
    ({"tile": Tile(128, 128, 64)}, problem(64, 64, 64, dtype="fp32"),
     "tile=Tile(m=128, n=128, k=64): has no meaning for fp32 operands, which run on the CUDA cores; "
     "nearest legal value: 'auto'"),
    ({"tile": Tile(256, 256, 64), "consumers": 2}, odd(),
     "tile.n=256: 2 consumer warpgroups hold 256 accumulators per thread, more than 192; nearest legal value: 192"),
    ({"tile": Tile(192, 256, 64), "schedule": "cooperative", "scheduler": "stream_k"}, odd(),
     "tile.n=256: 3 consumer warpgroups hold 128 accumulators per thread, more than 96; nearest legal value: 192"),
    ({"tile": Tile(256, 192, 64), "a_load": "gather"}, odd(),
     "tile.n=192: 2 consumer warpgroups hold 192 accumulators per thread, more than 128; nearest legal value: 128"),
    ({"tile": Tile(192, 224, 64), "schedule": "cooperative"}, odd(),
     "tile.n=224: three consumer warpgroups take up to 192 columns, or 256 in two halves; nearest legal value: 192"),
    ({"tile": Tile(16384, 256, 64)}, odd(),
     "tile.m=16384: 2 consumer warpgroups hold 16384 accumulators per thread, more than 192; nearest legal value: 128"),
    ({"tile": Tile(128, 32, 64), "swizzle": "128B", "b_major": "n"}, odd(),
     "swizzle='128B': the tile is contiguous over 64 bytes, no multiple of 128; nearest legal value: '64B'"),
    ({"tile": Tile(128, 256, 64), "stages": 9}, odd(),
     "stages=9: each stage takes 49,152 bytes; 232,448 hold 4 beside the epilogue; nearest legal value: 4"),
    ({"tile": Tile(128, 128, 64), "epilogue_stages": 3, "schedule": "cooperative", "consumers": 2}, odd(),
     "epilogue_stages=3: a warpgroup stores 2 pieces a tile; more buffers than that are never filled; "
     "nearest legal value: 2"),
    ({"scheduler": "per_tile", "sms": 8}, odd(),
     "sms=8: an SM limit needs scheduler=\"persistent\"; nearest legal value: 'auto'"),
    ({"cluster": (2, 2), "sms": 3, "tile": Tile(128, 128, 64)}, odd(),
     "sms=3: a cluster occupies 4 SMs; nearest legal value: 4"),
    ({"epilogue": linear_combination(with_c=True)}, odd(), "inputs='none': the epilogue's inputs are c"),
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
     "tile.n=144: 2 consumer warpgroups hold 216 accumulators per thread, more than 192; nearest legal value: 128"),
    ({"input_stages": 3, "tile": Tile(128, 256, 64)}, problem(256, 256, 256, c_dtype="bf16"),
     "input_stages=3: must divide the 4 pieces that a warpgroup reads of a tile; nearest legal value: 4"),
    ({"store": "tma", "epilogue": TWO}, odd(outputs=(("d", MATRIX), ("pre", MISALIGNED_A))),
     "store='tma': TMA cannot store pre: leading stride is 514 bytes, no multiple of 16; "
     "nearest legal value: 'staged'"),
    ({}, problem(64, 64, 64, dtype="fp8"),
     "a_dtype='fp8_e4m3': operands are fp16, bf16 or fp32; nearest legal value: 'bf16'"),
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
        PlanError, match=r"^grid=\d+: a launch has at most 2147483647 CTAs; nearest legal value: "
    ):
        plan(GemmSpec(scheduler="per_tile"), big)
    assert plan(GemmSpec(), big).clusters <= H200.sms


def test_a_tile_too_large_for_one_stage_is_refused():
    """A tile of which not even one stage fits names the bytes it needs, and a depth that fits."""
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(tile=Tile(256, 128, 512)), problem(512, 512, 512))
    assert "bytes of shared memory, a CTA has 232,448" in str(e.value)
    plan(corrected(GemmSpec(tile=Tile(256, 128, 512)), e.value), problem(512, 512, 512))


def test_the_choices_for_a_large_aligned_problem():
    """4096^3 in bf16: TMA both ways, warp-specialised, persistent, two consumers, one wave of clusters in flight."""
    p = plan(GemmSpec(), problem(4096, 4096, 4096))
    assert p.config.family == "warp_specialized" and p.config.persistent and p.config.consumers == 2
    assert (p.config.a.load, p.config.b.load, p.config.d.store) == ("tma", "tma", "tma")
    assert p.workspace_bytes == 0 and len(p.steps) == 1


@pytest.mark.parametrize(("changed", "steps"), [("a", ["relayout a", "gemm"]), ("b", ["relayout b", "gemm"])])
def test_only_the_misaligned_operand_is_copied(changed, steps):
    """An odd leading dimension costs a re-layout of that operand alone."""
    p = plan(GemmSpec(), odd(**{changed: MISALIGNED_A}))
    assert [step.name for step in p.steps] == steps
    assert p.workspace_bytes == 256 * 256 * 2


def test_an_odd_d_costs_no_copy():
    """An odd leading dimension of D changes only the store path."""
    p = plan(GemmSpec(), odd(outputs=(("d", MISALIGNED_A),)))
    assert p.config.d.store == "staged" and p.workspace_bytes == 0


def test_shapes_share_a_kernel():
    """Two shapes of one alignment class have equal configs under a given tile."""
    spec = GemmSpec(tile=Tile(128, 128, 64))
    assert plan(spec, problem(128, 256, 512)).config == plan(spec, problem(1000, 1000, 1000)).config


def test_barriers_count_their_participants():
    """Multicast: a stage's empty barrier hears every consumer warp of the CTA's cluster row and column."""
    p = plan(GemmSpec(tile=Tile(128, 128, 64), cluster=(2, 2), stages=3), problem(512, 512, 512))
    barriers = {b.name: (b.count, b.arrivals) for b in p.barriers}
    assert barriers == {"full": (3, 1), "empty": (3, 3 * 2 * 4), "epilogue": (2, 128)}
    gathered = plan(GemmSpec(tile=Tile(128, 128, 64), a_load="gather", stages=3), problem(512, 512, 512))
    assert {b.name: b.arrivals for b in gathered.barriers}["full"] == 1 + 128
    spec = GemmSpec(tile=Tile(128, 128, 64), input_stages=2, schedule="cooperative")
    fetched = plan(spec, problem(512, 512, 512, c_dtype="bf16"))
    assert {b.name: (b.count, b.arrivals) for b in fetched.barriers}["pieces"] == (2 * 2, 1)
    direct = plan(GemmSpec(tile=Tile(128, 128, 64), store="direct"), problem(512, 512, 512))
    assert {b.name for b in direct.barriers} == {"full", "empty"}


def test_boxes_of_a_multicast():
    """CTAs that share a tile load a slice of it each, cut along its strided axis."""
    p = plan(GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1)), problem(512, 512, 512))
    boxes = {b.operand: (b.extents, b.count) for b in p.boxes}
    assert boxes == {"A": ((64, 128), 1), "B": ((64, 32), 4), "D": ((64, 64), 1)}


@pytest.mark.parametrize(("majors", "b_box"), [("kn", ((64, 64), 4)), ("kk", ((64, 128), 2))])
def test_boxes_of_a_fused_tile(majors, b_box):
    """Each half of a gated B has boxes of its own, each input and output one of a warpgroup's piece."""
    fields = {"majors": majors, "epilogue": GATED_SUM, "input_dtype": "fp32", "d_major": "m"}
    p = plan(GemmSpec(tile=Tile(128, 256, 64), epilogue=GATED_SUM), problem(512, 512, 512, **fields))
    boxes = {b.operand: (b.extents, b.count) for b in p.boxes}
    assert p.config.epi_n == 32 and boxes["A"] == ((64, 128), 1) and boxes["B"] == b_box
    assert boxes["D"] == boxes["pre"] == ((64, 32), 1) and boxes["C"] == ((32, 32), 2)


@epi.define(gated="halves")
def GATED_SUM(gate, up, *, c: epi.Matrix):  # noqa: N802
    """A gated pair with an input and two outputs."""
    h = gate * up
    return epi.Output(d=h + c, pre=epi.Store(h))


def test_inputs_take_the_room_that_the_ring_does_not_need():
    """As many pieces of the inputs are held ready as leave the ring its share; what is left makes stages."""
    of = problem(4096, 4096, 4096, c_dtype="fp32", d_dtype="fp32")
    for tile in (Tile(128, 256, 64), Tile(128, 128, 64), Tile(256, 64, 64)):
        spec = GemmSpec(tile=tile, schedule="cooperative", consumers=2, store="tma")
        config = plan(spec, of).config
        ring = min(4, -(-144 * 1024 // budget.stage_bytes(config)))
        legal = [x for x in range(1, config.pieces + 1) if config.pieces % x == 0]
        given = (dataclasses.replace(spec, input_stages=x, stages=ring) for x in legal)
        fits = [x.input_stages for x in given if not isinstance(attempt(x, of), PlanError)]
        assert config.input_stages == max(fits, default=1)
        more = attempt(
            dataclasses.replace(spec, input_stages=config.input_stages, stages=config.stages + 1), of
        )
        assert config.stages == 8 or isinstance(more, PlanError)


def test_partial_results_of_a_plan():
    """A partial result per 16 rows, per tile along N, and per warp and tile; finishes for all but partial ones."""
    p = plan(
        GemmSpec(tile=Tile(128, 128, 64), epilogue=REDUCED), problem(1000, 300, 64, epilogue=REDUCED, batch=2)
    )
    assert p.parts == (63, 3, 8 * 3 * 8)
    assert [(x.name, x.parts, x.results, x.config.kind, x.config.across) for x in p.steps[1:]] == [
        ("finish rows", 3, 2 * 1000, "sum", True),
        ("finish top", 63, 2 * 300, "logsumexp", True),
        ("finish whole", 192, 2, "max", False),
    ]
    sizes = [4 * 3 * 2000, 2 * 4 * 63 * 600]
    offsets = [0, sizes[0] + -sizes[0] % 256]
    offsets.append(offsets[1] + sizes[1] + -sizes[1] % 256)
    assert p.partials == (offsets[0], offsets[1], None, offsets[2])
    assert p.workspace_bytes == offsets[2] + 4 * 192 * 2
    simt = plan(GemmSpec(schedule="simt", epilogue=REDUCED), problem(1000, 300, 64, epilogue=REDUCED))
    # of whichever tile the planner takes
    (tile_m, tile_n, _), (rows, columns) = simt.config.tile, simt.config.partial_width
    whole = -(-1000 // tile_m) * -(-300 // tile_n) * (tile_m // rows) * (tile_n // columns)
    assert simt.parts == (-(-1000 // rows), -(-300 // columns), whole)
    alone = plan(GemmSpec(epilogue=PARTIAL), problem(1000, 300, 64, epilogue=PARTIAL))
    assert (
        [x.name for x in alone.steps] == ["gemm"] and alone.workspace_bytes == 0 and alone.partials == (None,)
    )


@epi.define
def REDUCED(acc):  # noqa: N802
    """Reductions of every kind and axis, one of them partial."""
    return epi.Output(d=acc, rows=epi.Sum(acc, axis=1), top=epi.LogSumExp(acc, axis=0),
                      part=epi.Sum(acc, axis=0, partial=True), whole=epi.Max(acc))  # fmt: skip


@epi.define
def PARTIAL(acc):  # noqa: N802
    """One partial reduction and nothing else."""
    return epi.Output(part=epi.Max(acc, axis=1, partial=True))


def test_multicast_shares_are_whole_swizzle_rows():
    """Four CTAs cannot share the 16 rows of a K-major B tile: a share would cut an 8-row group."""
    with pytest.raises(PlanError) as e:
        plan(GemmSpec(tile=Tile(128, 16, 64), cluster=(4, 1)), problem(512, 512, 512, majors="kk"))
    rule = "4 CTAs share 16 lines of B's tile, which must be a multiple of 32"
    assert str(e.value) == f"cluster=(4, 1): {rule}; nearest legal value: (1, 1)"


@given(problems(low=1, high=4000), specs())
def test_a_plan_is_plain_data(of, spec):
    """`to_dict` survives JSON unchanged, and the text names the problem's shape."""
    result = attempt(for_problem(spec, of), of)
    assume(not isinstance(result, PlanError))
    data = result.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["problem"]["m"] == of.m and len(data["steps"]) == len(result.steps)
    assert f"{of.m} x {of.n} x {of.k}" in str(result)


def test_sms_limits_the_grid():
    """`sms` bounds the CTAs of a persistent grid and changes no kernel."""
    free, limited = (
        plan(GemmSpec(tile=Tile(128, 128, 64), **x), problem(4096, 4096, 64)) for x in ({}, {"sms": 10})
    )
    assert (free.clusters, limited.clusters) == (132, 10) and free.config == limited.config


PURE = (
    "cutegemm",
    "cutegemm.planning.planner",
    "cutegemm.spec",
    "cutegemm.planning.text",
    "cutegemm.layouts",
)


@pytest.mark.parametrize("module", PURE)
def test_planning_imports_neither_torch_nor_the_dsl(module):
    """Specs, plans and layouts work where torch and the DSL are not installed."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'cutlass', 'tvm_ffi', 'llvmlite')));"
        f"import {module}; from cutegemm import GemmSpec, plan, problem;"
        "print(plan(GemmSpec(), problem(4096, 4096, 4095)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "relayout a" in done.stdout, done.stderr


def test_importing_is_fast(tmp_path):
    """`import cutegemm` takes at most 0.3 s of CPU, best of five once compiled; platformdirs is all it takes along."""
    code = (
        "import sys, time; before, t = set(sys.modules), time.process_time(); import cutegemm;"
        "print(time.process_time() - t);"
        "print(*{x.split('.')[0] for x in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    # byte code is kept, whatever this process does with its own
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment
        )
        for _ in range(6)
    ]
    seconds, modules = zip(*(run.stdout.splitlines() for run in runs))
    assert min(map(float, seconds[1:])) <= 0.3
    assert set(modules[0].split()) == {"cutegemm", "platformdirs"}


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
