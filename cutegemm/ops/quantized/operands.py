# SPDX-License-Identifier: Apache-2.0
"""8-bit operands of `matmul` and `linear`: the kinds of their scales and zero points, by shape.

They have no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cutegemm.epilogue.graph import Graph
from cutegemm.epilogue.scales import BLOCKS, K_BLOCK, PADDED, ROW, SINGLE, TENSOR, Kind, single
from cutegemm.epilogue.scales import NAMES as SCALES
from cutegemm.errors import InputError, field_error
from cutegemm.ops.agreement import check_tensor
from cutegemm.ops.fallback import address, constant, found_at
from cutegemm.running.arguments import zero_points
from cutegemm.running.recorded import recording
from cutegemm.spec import AUTO

# Names of kinds, because torch.compile passes only text to a `constant` function.
KINDS: dict[str, Kind] = {TENSOR: TENSOR, ROW: ROW, "1x128": BLOCKS[0], "128x128": BLOCKS[1]}
# kinds of the scales of A and B, of their zero points (`FIELDS` of a spec), then optionally D's type; "" is none
Kinds = tuple[str, ...]
NONE: Kinds = ("", "", "", "")
FIELDS = (*SCALES, *zero_points.NAMES)
NO_GRADIENT = "8-bit operands and their scales have no gradient; use torch.no_grad() or detach()"


def operand_scales(
    form: str, a: Tensor, b: Tensor, epilogue: Any, spec: Any, inputs: dict[str, Any], free: Any = None
) -> tuple[Kinds, dict[str, Any]]:
    """The kinds of a call's scales and zero points, and these tensors by name. Removes them from `inputs`.

    Scales that the epilogue reads itself, or whose kinds the spec specifies, stay in `inputs`.

    Args:
        form: "matrix" or "linear", as in `Program`.
        a, b: the operands, at least one with 8 bits.
        epilogue, spec: as the caller gave them.
        inputs: by name, as the caller gave them.
        free: for groups, the extents of A and of B without K; None takes them from the shapes. Groups have no zero
            points. Groups along K, of two matrices, share scales of blocks.

    Raises:
        InputError: an operand or a scale needs a gradient, or a scale or a zero point has a wrong type or shape.
    """
    points, read = _points(form, a, b, spec, inputs) if free is None else (("", ""), {})
    names = ("x", "weight") if form == "linear" else ("a", "b")
    for name, x in (*zip(names, (a, b)), *((name, inputs.get(name)) for name in SCALES)):
        if isinstance(x, Tensor) and recording(x):
            raise field_error(InputError, f"{name}.requires_grad", True, NO_GRADIENT)
    given = {name: inputs[name] for name in SCALES if inputs.get(name) is not None}
    own = _read(address(epilogue), address(spec)) if given else ("", "")
    for name, kind in zip(SCALES, own):
        if kind == "scalar" and isinstance(x := given.get(name), Tensor):
            check_tensor(name, x)
            inputs[name] = single(name, x)
    if not given or any(own) or min(a.dim(), b.dim()) < 2 - (form == "linear"):
        return ("", "", *points), read
    for name, x in given.items():
        if isinstance(x, Tensor):
            check_tensor(name, x)
        del inputs[name]
    shared = free is not None and a.dim() == b.dim() == 2
    if free is None:
        free = (a.shape[:-1], b.shape[:-1] if form == "linear" else (*b.shape[:-2], b.shape[-1]))
    kinds = [
        kind_of(name, given[name], rows, a.shape[-1], form == "linear", shared) if name in given else ""
        for name, rows in zip(SCALES, free)
    ]
    given |= {
        x: single(x, given[x])
        for x, kind in zip(SCALES, kinds)
        if kind == TENSOR and isinstance(given[x], Tensor)
    }
    return (kinds[0], kinds[1], *points), given | read


def _points(
    form: str, a: Tensor, b: Tensor, spec: Any, inputs: dict[str, Any]
) -> tuple[tuple[str, str], dict[str, Any]]:
    """The kinds of a call's zero points, and the tensors and integers that the epilogue reads instead."""
    kinds = ("", "") if spec is None else _named(address(spec))
    given = {x: inputs.pop(x) for x in (*zero_points.NAMES, *zero_points.SUMS) if inputs.get(x) is not None}
    if not given and not any(kinds):
        return kinds, {}
    one, two = (
        kind or (zero_points.kind_of(given[name]) if name in given else "")
        for name, kind in zip(zero_points.NAMES, kinds)
    )
    return (one, two), zero_points.read((one, two), a, b.mT if form == "linear" else b, given)


@constant
def _named(spec: int) -> tuple[str, str]:
    """The kinds of zero points that a spec specifies."""
    found: tuple[str, str] = found_at(spec).zero_points
    return found


def kind_of(name: str, scale: Any, rows: Sequence[Any], k: Any, folds: bool, shared: bool = False) -> str:
    """The kind of an operand's scales, by their shape.

    Args:
        name: of the argument, for errors.
        scale: a number or a tensor.
        rows: the operand's extents except K: (M,), (L, M), or those of x in `linear`.
        k: the operand's extent along K.
        folds: whether all extents are rows of one matrix, as in `linear`; else all but the last are batches.
        shared: whether scales of blocks have no batches.

    Raises:
        InputError: no kind has this shape.
    """
    if not isinstance(scale, Tensor) or scale.dim() == 0:
        return TENSOR
    shape, lead = tuple(scale.shape), tuple(rows)
    blocks = -(-k // K_BLOCK)
    # a batch may share its scales
    legal = (lead,) if folds else (lead, lead[-1:])
    if shape in legal:
        return ROW
    if shared:
        lead = lead[-1:]
        legal = (lead,)
    m = math.prod(lead) if folds else lead[-1]
    above = -(-m // K_BLOCK)
    if blocks <= shape[-1] <= -(-blocks // PADDED) * PADDED:
        if shape[:-1] in legal:
            return "1x128"
        if len(shape) > 1 and shape[-2] == above and (len(shape) == 2 or shape[:-2] == lead[:-1]):
            return "128x128"
    if shape in SINGLE:
        return TENSOR
    shapes = f"{tuple(rows)}, {(*lead, blocks)} or {(above, blocks)}"
    rule = f"must be a number, {shapes}: per tensor, row, 1 x 128 or 128 x 128"
    raise field_error(InputError, f"{name}.shape", shape, rule)


def reads(epilogue: Any, spec: Any) -> bool:
    """Whether a call's epilogue reads scales by these names, or its spec specifies their kinds."""
    return any(_read(address(epilogue), address(spec)))


@constant
def _read(epilogue: int, spec: int) -> tuple[str, str]:
    """The kinds of input of `scale_a` and `scale_b` that a call's epilogue or spec reads; "" for none."""
    graph, given = found_at(epilogue), found_at(spec)
    if given is not None and given.epilogue != AUTO:
        graph = given.epilogue if graph is None or given.scale_a != AUTO or given.scale_b != AUTO else graph
    if not isinstance(graph, Graph):
        return "", ""
    kinds = {**graph.tensors, **graph.numbers}
    return kinds.get(SCALES[0], ""), kinds.get(SCALES[1], "")


__all__ = ["FIELDS", "KINDS", "NONE", "NO_GRADIENT", "Kinds", "kind_of", "operand_scales", "reads"]
