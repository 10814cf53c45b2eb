# SPDX-License-Identifier: Apache-2.0
"""Problems and specs of plans."""

import dataclasses

from cutegemm import DType, Operand, Tile, problem
from cutegemm.config import GemvConfig, RelayoutConfig, SimtConfig
from cutegemm.errors import PlanError
from cutegemm.families import THREAD_LOADS
from cutegemm.planning.planner import plan
from cutegemm.plans.steps import Multiply, Relayout
from cutegemm.request import swap
from cutegemm.request.requirements import Request


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
    (m, n, batch), steps = p.tiles, tuple(map(as_the_kernel_sees, p.steps))
    changed = {"spec": turned.spec, "problem": turned.problem, "tiles": (n, m, batch), "steps": steps}
    return turned.spec, dataclasses.replace(p, **changed)


def as_the_kernel_sees(step):
    """A step of a plan with swapped operands, with A and B exchanged."""
    if isinstance(step, Relayout):
        copies = (dataclasses.replace(x, operand=swap.OTHER[x.operand]) for x in step.copies)
        return dataclasses.replace(step, copies=tuple(copies))
    return dataclasses.replace(step, factors=("a", "b")) if isinstance(step, Multiply) else step


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
    if isinstance(config, SimtConfig | GemvConfig):
        open_fields = {"a_dtype", "b_dtype", "c_dtype", "d_dtype", "acc_dtype", "a_major", "b_major", "c_major",
                       "d_major", "schedule", "epilogue", "tile", "stages", "split_k"}  # fmt: skip
        if p.problem.k:
            # the transposes' spec says that these are not swapped again
            turned = {"swap"} if isinstance(config, GemvConfig) else set()
            assert set(given_fields) - turned <= open_fields
            made = {"tile": Tile(*config.tile)}
            if isinstance(config, SimtConfig):
                made |= {"stages": 2 if config.staged else config.stages, "split_k": config.split}
            else:
                assert not {"stages", "split_k"} & set(given_fields)
            assert all(made[name] == value for name, value in given_fields.items() if name in made)
        return
    cluster = config.cluster if spec.depth is None else (*config.cluster, config.cluster_splits)
    direct = {
        "tile": lambda: Tile(*config.tile), "cluster": lambda: cluster, "stages": lambda: config.stages,
        "consumers": lambda: config.consumers, "raster": lambda: p.raster,
        "epilogue_stages": lambda: config.epilogue_stages, "input_stages": lambda: config.input_stages,
        "scheduler": lambda: {"static": "persistent" if config.persistent else "per_tile"}.get(
            config.tile_scheduler, config.tile_scheduler
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
    copied = {x.operand for step in p.steps if isinstance(step.config, RelayoutConfig) for x in step.copies}
    for name in ("a", "b"):
        load = given_fields.get(f"{name}_load")
        kernel_load = getattr(config, name).load
        if load is not None:
            assert (load == "relayout") == (name in copied)
            assert kernel_load == (load if load in THREAD_LOADS else "tma")
    for name, axes in {"a": "mk", "b": "kn", "c": "mn", "d": "mn"}.items():
        major, operand = given_fields.get(f"{name}_major"), getattr(p.problem, name)
        if major is not None and operand is not None:
            along = axes.index(major)
            vacuous = (operand.rows, operand.cols)[along] <= 1
            assert vacuous or operand.strides[along] == 1
            assert vacuous or matrices[name].major == major or 1 in (operand.rows, operand.cols)


def odd(m=256, n=256, k=256, **changes):
    """A problem with the given operands replaced by misaligned ones."""
    base = problem(m, n, k)
    return dataclasses.replace(base, **changes)


MISALIGNED_A = Operand(dtype=DType.BF16, rows=256, cols=256, strides=(257, 1, 0))
