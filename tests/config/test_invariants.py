# SPDX-License-Identifier: Apache-2.0
"""Invariants of a config: one text for a config and for many candidates at once, and no way around them."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import assume, given

from cutegemm import GemmSpec, problem
from cutegemm import epilogue as epi
from cutegemm.config import (
    KernelConfig,
    SimtConfig,
    config_from_data,
    registers,
    simt_invariants,
    smem_budget,
)
from cutegemm.config.invariants import ALL, check, satisfied
from cutegemm.errors import PlanError
from cutegemm.planning.planner import plan
from cutegemm.spec import AUTO
from tests.support.drafts import configs, drawn, stacked
from tests.support.strategies import for_problem, problems, specs

CONFIGS = configs()
COUNT = 400


def holds(rule, draft) -> bool:
    """Whether an invariant holds of one draft; what divides by zero does not."""
    try:
        return bool(rule.holds(draft))
    except ZeroDivisionError:
        return False


@pytest.mark.parametrize("name", CONFIGS)
def test_arrays_say_what_numbers_say(name):
    """Every invariant, and the sums of shared memory and accumulators, of many drafts at once as of each alone."""
    drafts = drawn(CONFIGS[name], COUNT, seed=1)
    many = stacked(drafts)
    one_by_one = np.array([[holds(rule, x) for x in drafts] for rule in ALL])
    sound = np.logical_and.accumulate(one_by_one)
    with np.errstate(divide="ignore"):
        at_once = np.array([np.broadcast_to(rule.holds(many), COUNT) for rule in ALL])
    # a rule may say anything of what an earlier one refuses
    asked = np.vstack([np.ones((1, COUNT), bool), sound[:-1]])
    assert (at_once == one_by_one)[asked].all()
    assert (satisfied(many) == sound[-1]).all() and sound[-1].any()
    for figure in (smem_budget.smem_bytes, smem_budget.room, smem_budget.stage_bytes, lambda x: x.held_values,
                   registers.most_accumulators):  # fmt: skip
        with np.errstate(divide="ignore"):
            found = np.broadcast_to(figure(many), COUNT)
        for i in np.flatnonzero(sound[len(ALL) - 2]):
            assert found[i] == figure(drafts[i]), figure


@pytest.mark.parametrize("name", CONFIGS)
def test_what_breaks_an_invariant_cannot_be_made(name):
    """Neither from a draft, nor by replacing a field, nor from data; the refusal has field, value and rule."""
    refused = 0
    for draft in drawn(CONFIGS[name], COUNT, seed=2):
        fields = {f.name: getattr(draft, f.name) for f in dataclasses.fields(draft)}
        try:
            check(draft)
        except PlanError as error:
            refused += 1
            assert error.field and len(error.rule) > 5
            ways = (
                functools.partial(KernelConfig.of, draft),
                functools.partial(dataclasses.replace, CONFIGS[name], **fields),
                functools.partial(config_from_data, draft.to_data()),
            )
            for make in ways:
                with pytest.raises(PlanError) as again:
                    make()
                assert str(again.value) == str(error)
        else:
            assert KernelConfig.of(draft).draft == draft
    assert refused > COUNT // 4


BROKEN = {
    "threads load without a producer": ("multistage, gemm", {"operands": "gather"}, "a_load", "relayout"),
    "a launch has nothing to add": (
        "left, gemm", {"splits": 2, "cluster_splits": 2, "slices": 2}, "split_k", 4,
    ),
    "workspace has nothing to add": (
        "a cluster's splits, gemm", {"split_reduction": "workspace"}, "split_k", None,
    ),
    "atomic additions have nothing to add": (
        "a cluster's splits, gemm", {"split_reduction": "atomic"}, "split_k", None,
    ),
    "splits that nobody adds": ("pingpong, gemm", {"splits": 2, "split_reduction": "workspace"}, "split_k", 1),
    "splits by the wrong number": ("a cluster's splits, gemm", {"splits": 6}, "split_k", 4),
    "a cluster too large": ("a cluster's splits, gemm", {"cluster": (4, 1)}, "split_k", 2),
    "a load that is multicast by threads": ("gathered, gemm", {"cluster": (2, 1)}, "cluster", (1, 1)),
    "too many stages": ("plain, gemm", {"stages": 40}, "stages", None),
    "more accumulators than registers": ("stream_k, gemm", {"tile": (512, 128, 64)}, "tile.n", None),
    "buffers that are never filled": ("plain, gemm", {"epilogue_stages": 99}, "epilogue_stages", None),
    "a swizzle wider than the tile": ("plain, gemm", {"operands": "swizzle", "tile": (128, 128, 32)}, "swizzle", None),
    "tiles dealt out to threads that load": ("shifted, gemm", {"dynamic": True}, "scheduler", "persistent"),
    "groups there and back": ("three that promote, gemm", {"grouped": "m", "serpentine": True}, "grouped", ""),
    "bytes copied that must be rounded": ("tf32, gemm", {"operands": "cp_async"}, "a_load", "relayout"),
    "stages that one warpgroup's turn waits for": ("three that promote, gemm", {"stages": 1}, "stages", 2),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_config_is_refused_by_field_and_nearest(name):
    """Each names the field of the spec that it is about and, where there is one, a legal value."""
    case, fields, field, nearest = BROKEN[name]
    config, fields = CONFIGS[case], dict(fields)
    a, b = config.operands
    if fields.get("operands") in ("gather", "cp_async"):
        load = fields["operands"]
        fields["operands"] = (dataclasses.replace(a, load=load, width=16 * (load == "cp_async")), b)
    if fields.get("operands") == "swizzle":
        fields["operands"] = (dataclasses.replace(a, swizzle="128B"), b)
    with pytest.raises(PlanError) as e:
        dataclasses.replace(config, **fields)
    assert e.value.field == field and nearest in (None, e.value.nearest)


def grouped(axis, epilogue=AUTO, **fields):
    """The fields of a sound kernel of groups along an axis."""
    spec = GemmSpec(
        epilogue=epilogue, swap=False, schedule="cooperative", scheduler="persistent", split_k=1, **fields
    )
    kind = {} if spec.epilogue == AUTO else {"epilogue": spec.epilogue}
    kind |= {"dtype": "fp8"} if fields else {}
    draft = plan(spec, problem(512, 512, 512, majors="kk", **kind)).config.draft
    inputs = tuple(dataclasses.replace(x, load="direct") for x in draft.inputs)
    outputs = tuple(dataclasses.replace(x, store="staged") for x in draft.outputs)
    free = {"serpentine": False, "cluster": (1, 1), "raster": "m", "inputs": inputs, "input_stages": 1}
    operands = tuple(dataclasses.replace(x, load="gather", box_rows=0) for x in draft.operands)
    if axis == "k":
        free["operands"] = operands
    return dataclasses.replace(draft, grouped=axis, outputs=outputs, **free)


BLOCK = ("block", 128, 128)


@epi.define
def ROW_PARTIALS(acc):  # noqa: N802
    """D and its rows' sums, unfinished."""
    return epi.Output(d=acc, sums=epi.Sum(acc, axis=1, partial=True))


@pytest.mark.parametrize(
    ("draft", "fields", "field", "nearest"),
    [
        (lambda: grouped("m"), {"grouped": "l"}, "grouped", ""),
        (lambda: grouped("m"), {"grouped": "", "masked": True}, "masked", False),
        (lambda: grouped("n", scale_a=("block", 1, 128), scale_b=BLOCK), {}, "grouped", ""),
        (lambda: grouped("k", ROW_PARTIALS), {}, "grouped", ""),
        (lambda: grouped("n", epi.swiglu()), {}, "grouped", ""),
        (lambda: grouped("m", ROW_PARTIALS), {}, "grouped", ""),
    ],
)
def test_groups_that_begin_within_something_are_refused(draft, fields, field, nearest):
    """A block's scale, a gated pair or an unfinished reduction; calls are refused by the same rules in their words."""
    with pytest.raises(PlanError) as e:
        KernelConfig.of(dataclasses.replace(draft(), **fields))
    assert (e.value.field, e.value.nearest) == (field, nearest)


def test_groups_beside_such_things_are_legal():
    """Scales of single rows, pairs along the other axis, and finished reductions; blocks of the whole K along K."""
    scaled = grouped("m", scale_a=("block", 1, 128), scale_b=BLOCK)
    for draft in (scaled, grouped("m", epi.swiglu()), dataclasses.replace(scaled, masked=True)):
        assert KernelConfig.of(draft).grouped == "m"
    assert KernelConfig.of(grouped("k", scale_a=BLOCK, scale_b=("block", 1, 128))).grouped == "k"


@given(specs(), problems(low=1))
def test_every_config_of_the_planner_is_sound(spec, of):
    """Whatever is asked, each launch's config satisfies its invariants, asked anew."""
    try:
        made = plan(for_problem(spec, of), of)
    except PlanError:
        assume(False)
    for config in (step.config for step in made.steps):
        if isinstance(config, KernelConfig):
            check(config)
            assert satisfied(config.draft)
        if isinstance(config, SimtConfig):
            simt_invariants.check.__wrapped__(config)
