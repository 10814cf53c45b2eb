# SPDX-License-Identifier: Apache-2.0
"""Rules between the fields of a spec that hold for every problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.arch.instructions import EXACT, arithmetic_fault, on_cuda_cores, types_fault
from cutegemm.config.invariants import splits, tiles
from cutegemm.config.simt import EXTENTS
from cutegemm.dtypes import DType
from cutegemm.epilogue import element_types
from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.errors import PlanError, SpecError, field_error
from cutegemm.families import abilities_of, reason
from cutegemm.spec.values import AUTO, TENSOR_CORE_FIELDS, Tile, is_auto


def tile_fault(
    tile: Tile, swap: bool = False, types: tuple[object, object] = (AUTO, AUTO), arithmetic: str = EXACT
) -> SpecError | None:
    """The error of a tile that does not consist of whole warp-level instructions; None if it does.

    Args:
        swap: whether operands are swapped, so that D's columns map to the instruction's 64 rows.
        types: of A and B; an unspecified type allows the smallest step of all types.
    """
    rows, columns = ("n", "m") if swap else ("m", "n")
    for axis, step in zip((rows, columns, "k"), tiles.least_steps(LIMITS, *types, arithmetic), strict=True):
        value = getattr(tile, axis)
        if value % step:
            nearest = max(step, round(value / step) * step)
            return field_error(SpecError, f"tile.{axis}", value, f"must be a multiple of {step}", nearest)
    rule, most = tiles.widest(LIMITS)
    if getattr(tile, columns) > most:
        return field_error(SpecError, f"tile.{columns}", getattr(tile, columns), rule, most)
    return None


def unlisted(given: Tile, legal: Sequence[tuple[int, int, int]], rule: str) -> PlanError:
    """The error of a tile that is not among those that exist; the nearest is the one of most similar extents.

    Args:
        given: elements along M, N and K.
        legal: the same of each tile that exists.
        rule: in which `{}` stands for their list.
    """
    listed = ", ".join("x".join(map(str, x)) for x in legal)
    apart = lambda x: sum(abs(math.log(p / q)) for p, q in zip(x, given, strict=True))
    return field_error(PlanError, "tile", given, rule.format(listed), Tile(*min(legal, key=apart)))


def may_be_fp32(spec: Any) -> bool:
    """Whether a spec may mean exact fp32: its types are unspecified and its tile is one of the CUDA-core kernels."""
    left = (*TENSOR_CORE_FIELDS, "a_dtype", "b_dtype", "schedule", "zero_point_a", "zero_point_b")
    open_ = all(is_auto(getattr(spec, name)) for name in left) and spec.arithmetic == EXACT
    return open_ and isinstance(spec.tile, Tile) and tuple(spec.tile) in EXTENTS


def check_tile(spec: Any) -> None:
    """Tensor-core tiles must consist of whole warp-level instructions, with or without swapped operands."""
    types = (spec.a_dtype, spec.b_dtype)
    cuda_cores = spec.schedule == "simt" or any(on_cuda_cores(x, spec.arithmetic) for x in types)
    if not isinstance(spec.tile, Tile) or cuda_cores or may_be_fp32(spec):
        return
    kinds = (types, spec.arithmetic)
    fault, swap = tile_fault(spec.tile, spec.swap is True, *kinds), spec.swap is True
    if fault is not None and spec.swap == AUTO and tile_fault(spec.tile, True, *kinds) is None:
        fault, swap = None, True
    if fault is not None:
        raise fault
    if isinstance(spec.consumers, int) and spec.schedule != "pingpong":
        axis, step = "n" if swap else "m", tiles.rows_step(LIMITS, spec.consumers)
        value = getattr(spec.tile, axis)
        if value % step:
            rule = f"{spec.consumers} consumer warpgroups need a multiple of {step} {'columns' if swap else 'rows'}"
            raise field_error(SpecError, f"tile.{axis}", value, rule, max(step, value // step * step))


def check_together(spec: Any) -> None:
    """Fields that exclude one another."""
    if (fault := types_fault(spec.a_dtype, spec.b_dtype)) is not None:
        raise field_error(SpecError, *fault)
    for x in (spec.a_dtype, spec.b_dtype):
        if (fault := arithmetic_fault(x, spec.arithmetic)) is not None:
            raise field_error(SpecError, *fault)
        if on_cuda_cores(x, spec.arithmetic) and spec.schedule not in (AUTO, "simt"):
            rule = "fp32 operands run on the CUDA cores"
            raise field_error(SpecError, "schedule", spec.schedule, rule, "simt")
    if spec.arithmetic != EXACT and spec.schedule == "simt":
        rule = f'math="{spec.arithmetic}" runs on tensor cores'
        raise field_error(SpecError, "schedule", spec.schedule, rule, AUTO)
    _check_types(spec)
    _check_abilities(spec)
    _check_parts(spec)
    _check_scales(spec)
    if spec.batch_invariant is True:
        _check_invariant(spec)
    if spec.schedule == "simt":
        _check_simt(spec)


def integers(spec: Any) -> bool | None:
    """Whether the operands are integers; None if the spec does not determine it."""
    for x in (spec.a_dtype, spec.b_dtype):
        if isinstance(x, DType):
            return x.whole
    if spec.arithmetic != EXACT or spec.schedule == "simt":
        # integers are multiplied exactly, on tensor cores
        return False
    return True if any(spec.zero_points) else None


def _check_types(spec: Any) -> None:
    """Check accumulator, C, outputs and zero points against the operands' types."""
    whole = integers(spec)
    if spec.acc_dtype != AUTO:
        if (fault := element_types.sums_fault(spec.acc_dtype, whole)) is not None:
            raise field_error(SpecError, "acc_dtype", spec.acc_dtype, *fault)
        whole = spec.acc_dtype is DType.INT32
    for x, kind in zip("ab", spec.zero_points):
        if kind and whole is False:
            rule = "only int8 and uint8 operands have zero points"
            raise field_error(SpecError, f"zero_point_{x}", kind, rule, AUTO)
    graph = spec.epilogue if isinstance(spec.epilogue, Graph) else None
    given = {"c": ("c_dtype", spec.c_dtype)} if graph is None or "c" in graph.tensors else {}
    given["d"] = "d_dtype", spec.d_dtype
    stores = () if graph is None else graph.stores
    given |= {x.name: (f"epilogue.{x.name}", DType(x.dtype)) for x in stores if x.dtype}
    for name, (field, dtype) in given.items():
        if (
            dtype != AUTO
            and (fault := element_types.fault(graph, name, dtype, whole is not False)) is not None
        ):
            raise field_error(SpecError, field, dtype, *fault)


def _check_abilities(spec: Any) -> None:
    """Refuse features that the specified schedule does not support; `_check_simt` checks CUDA-core kernels."""
    if spec.schedule in (AUTO, "simt"):
        return
    row = abilities_of(spec.schedule)
    lacking = {
        "cluster": ("multicast", row.multicast or spec.plane in (None, (1, 1))),
        "a_load": ("loads", spec.a_load in (AUTO, "relayout", *row.loads)),
        "b_load": ("loads", spec.b_load in (AUTO, "relayout", *row.loads)),
        "consumers": ("consumers", spec.consumers in (AUTO, *row.consumers)),
        "scheduler": ("schedulers", spec.scheduler in (AUTO, *row.schedulers)),
    }
    for field, (what, able) in lacking.items():
        if not able:
            raise field_error(SpecError, field, getattr(spec, field), *reason(what, getattr(spec, field)))
    if (spec.depth or 1) > 1 and row.reductions == ("none",):
        raise field_error(SpecError, "schedule", spec.schedule, reason("reductions")[0], "cooperative")


def _check_parts(spec: Any) -> None:
    """Check splits of K, a cluster's CTAs along K, and the reduction of splits."""
    depth, parts = spec.depth or 1, spec.split_k
    if spec.scheduler == "stream_k":
        own = 'scheduler="stream_k" chooses its own splits along K'
        rules = {"split_k": own, "split_reduction": 'scheduler="stream_k" reduces its splits in workspace'}
        for field, only in splits.STREAMED.items():
            if getattr(spec, field) not in (AUTO, only):
                raise field_error(SpecError, field, getattr(spec, field), rules[field], only)
        if depth > 1:
            raise field_error(SpecError, "cluster", spec.cluster, own, spec.plane)
    if isinstance(parts, int) and not splits.whole(parts, depth):
        rule = f"must be a multiple of the {depth} splits that a cluster reduces"
        raise field_error(SpecError, "split_k", parts, rule, splits.nearest_whole(parts, depth))
    if spec.split_reduction == "cluster" and spec.depth is not None and parts not in (AUTO, depth):
        rule = f'split_reduction="cluster" reduces {depth} splits in a cluster of {spec.cluster}'
        raise field_error(SpecError, "split_k", parts, rule, depth)


def _check_invariant(spec: Any) -> None:
    """Refuse fields that make a row's bits depend on M or on the row's index."""
    for field, nearest in (("scheduler", "persistent"), ("split_reduction", "workspace")):
        if getattr(spec, field) in ("stream_k", "atomic"):
            rule = "the order of additions along K depends on M or on timing, which batch_invariant=True excludes"
            raise field_error(SpecError, field, getattr(spec, field), rule, nearest)
    if isinstance(spec.epilogue, Graph) and any(x.block > 1 for x in spec.epilogue.blocks):
        rule = "blocks of 128 rows share a scale, so a row's bits depend on other rows"
        raise field_error(SpecError, "batch_invariant", True, rule, False)
    if isinstance(spec.epilogue, Graph) and any(x.op == "random" for x in spec.epilogue.nodes):
        rule = "the epilogue's random numbers depend on an element's index in D"
        raise field_error(SpecError, "batch_invariant", True, rule, False)


def _check_scales(spec: Any) -> None:
    """Block scales multiply the partial sums of as many elements of K as a block has."""
    if isinstance(spec.epilogue, Graph) and spec.epilogue.scales and spec.promote not in (AUTO, K_BLOCK):
        rule = f"block scales multiply partial sums of {K_BLOCK} elements of K"
        raise field_error(SpecError, "promote", spec.promote, rule, K_BLOCK)


def _check_simt(spec: Any) -> None:
    """Refuse fields that only tensor-core kernels have."""
    for name in TENSOR_CORE_FIELDS:
        if not is_auto(getattr(spec, name)):
            rule = 'has no meaning for schedule="simt"'
            raise field_error(SpecError, name, getattr(spec, name), rule, AUTO)
