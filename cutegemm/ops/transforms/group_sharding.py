# SPDX-License-Identifier: Apache-2.0
"""Grouped GEMMs of DTensors: each process multiplies its local part. The call is sharded as B is, else as A is.

Every tensor of a call has axes, named by letters. Along a mesh dimension a call is sharded along at most one of them:

    n, m   columns of B, rows of A: D is sharded likewise
    g      groups: D is a partial sum, with zeros for other processes' groups; masked groups shard D
    k      D is a partial sum, if the epilogue is linear; the first process adds the epilogue's inputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, field_error
from cutegemm.ops.transforms.sharding import homogeneous
from cutegemm.running.arguments.results import Outputs
from cutegemm.running.groups import TOLD, Groups, agree, check_tail
from cutegemm.running.numerics.group_reference import bounds

# axes of A, B and D by form, and those along which a call may be sharded
FORMS = {
    "rows": (("r", "k"), ("g", "k", "n"), ("r", "n"), "gkn"),
    "columns": (("g", "m", "k"), ("k", "r"), ("m", "r"), "gkm"),
    "masked": (("g", "c", "k"), ("g", "k", "n"), ("g", "c", "n"), "gkn"),
    "depth": (("m", "k"), ("k", "n"), ("g", "m", "n"), "mn"),
}
OF_ROWS = ("rows", "scatter", "weight")  # arguments with one element per row
Axes = tuple[str, ...]
# per mesh dimension, the axis along which a call is sharded; "" is none
Cuts = list[str]


def sharded(x: Any) -> bool:
    """Whether something is a DTensor."""
    return type(x).__name__ == "DTensor"


def check_unsharded(tensors: Mapping[str, Any]) -> None:
    """Refuse a DTensor beside a `b` that is an ordinary tensor.

    Raises:
        InputError: there is one.
    """
    for name, x in tensors.items():
        if x is not None and type(x) is not Tensor and sharded(x):
            raise field_error(InputError, name, "...", "must be an ordinary tensor, as b is")


def part(x: Any, axes: Axes, cuts: Cuts) -> Tensor:
    """The local part of a DTensor. Along axes that it lacks it is replicated, and its gradients are partial sums."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    kept = [Shard(axes.index(c)) if c and c in axes else Replicate() for c in cuts]
    grads = [Partial() if c and c not in axes else p for c, p in zip(cuts, kept)]
    found: Tensor = x.redistribute(x.device_mesh, kept).to_local(grad_placements=grads)
    return found


def whole(x: Tensor, axes: Axes, cuts: Cuts, mesh: Any, extents: Mapping[str, int]) -> Any:
    """The DTensor of all local parts: partial sums along axes that it lacks; `extents` are those of its axes."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    kept = [Replicate() if not c else Shard(axes.index(c)) if c in axes else Partial() for c in cuts]
    shape = [*(extents[c] if c in cuts else size for c, size in zip(axes, x.shape)), *x.shape[len(axes) :]]
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(x, mesh, kept, shape=torch.Size(shape), stride=stride)


def begin(axis: str, extent: int, cuts: Cuts, mesh: Any) -> int:
    """The first index of this process's part of an axis."""
    first = 0
    for i in (i for i, cut in enumerate(cuts) if cut == axis):
        each = -(-extent // mesh.size(i))
        skipped = min(each * mesh.get_local_rank(i), extent)
        first, extent = first + skipped, min(each, extent - skipped)
    return first


def by_parts(run: Callable[..., Any], a: Any, b: Any, named: dict[str, Any]) -> Any:
    """Call `run`, which is `grouped_mm`, with DTensors; `named` are its other arguments.

    Raises:
        InputError: `out` is given, or a tensor is not a DTensor.
    """
    given = {"a": a, "b": b} | {name: x for name, x in named.items() if isinstance(x, Tensor)}
    for name, x in given.items():
        if not sharded(x):
            raise field_error(InputError, name, "...", "must be a DTensor, as b is")
    if named["out"] is not None:
        raise field_error(InputError, "out", "...", "must be None for DTensors")
    graph = named["epilogue"] or getattr(named["spec"], "epilogue", None)
    graph = graph if isinstance(graph, Graph) else None
    kinds = {"c": "matrix", "bias": "row"} if graph is None else graph.tensors
    told = next(name for name in TOLD if name in given)
    form = Groups(**{told: given[told]}).how(a, b).form
    axes = {name: _axes(form, name, x, kinds, "rows" in given) for name, x in given.items()}
    mesh, cuts = b.device_mesh, []
    for i in range(mesh.ndim):
        found = [axes[x][given[x].placements[i].dim] for x in "ba" if given[x].placements[i].is_shard()]
        cuts.append(next((c for c in found if _may_cut(c, form, graph, given)), ""))
    parts = {name: part(x, axes[name], cuts) for name, x in given.items()}
    extents = {c: size for name in "ab" for c, size in zip(axes[name], given[name].shape)}
    check_tail(named["tail"])
    if form != "depth":
        ends, count = tuple(given[told].shape), extents["g"] + (told == "cu_seqlens")
        agree(f"{told}.shape", ends, ends == (count,), f"must be ({count},)")
    if "g" in cuts and form != "masked":
        first, rows = begin("g", extents["g"], cuts, mesh), parts.get("rows", parts["a"]).shape[0]
        rows, count = (rows, parts["b"].shape[0]) if form == "rows" else (extents["r"], parts["a"].shape[0])
        places = bounds(parts.pop(told), rows, int(told == "cu_seqlens"))
        parts["cu_seqlens"] = places[first : first + count + 1]
        named = named | {"offs": None, "tail": "zero"}
    if any(c == "k" and mesh.get_local_rank(i) for i, c in enumerate(cuts)):
        # zeros that stay in the autograd graph
        nothing = torch.ones((), dtype=torch.bool, device=parts["a"].device)
        parts |= {name: parts[name].masked_fill(nothing, 0) for name in parts.keys() & kinds.keys()}
    d = run(**named | parts)
    of_d = ("t", "n") if "scatter" in given else FORMS[form][2]
    if isinstance(d, Tensor):
        return whole(d, of_d, cuts, mesh, extents)
    return Outputs(**{name: whole(x, of_d, cuts, mesh, extents) for name, x in vars(d).items()})


def _axes(form: str, name: str, x: Any, kinds: Mapping[str, str], indexed: bool) -> Axes:
    """The axes of one of a call's tensors, without trailing axes that are never sharded."""
    of_a, of_b, of_d, _ = FORMS[form]
    if name in kinds:
        of_col = ("g", "m") if form == "columns" else of_d[:-1]
        return {"matrix": of_d, "row": ("g", of_d[-1]), "col": of_col}.get(kinds[name], ())[-x.dim() :]
    if name in "ab":
        return of_b if name == "b" else ("t", "k") if indexed else of_a
    if name in OF_ROWS:
        return ("r",)
    groups = {
        "counts": True,
        "scale_a": form != "rows" and x.dim() > 1,
        "scale_b": form != "columns" and x.dim() > 1,
    }
    return ("g",) if groups.get(name) else ()


def _may_cut(axis: str, form: str, graph: Graph | None, given: dict[str, Any]) -> bool:
    """Whether a call may be sharded along an axis."""
    drawn = graph is not None and any(x.op == "random" for x in graph.nodes)
    if axis not in FORMS[form][3] or (graph is not None and graph.reductions):
        return False
    if axis == "g":
        return form != "masked" or not drawn
    if "scale_a" in given or "scale_b" in given:
        return False
    return graph is None or (homogeneous(graph) if axis == "k" else not (graph.gated or drawn))


__all__ = ["begin", "by_parts", "check_unsharded", "part", "sharded", "whole"]
