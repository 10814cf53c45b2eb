# SPDX-License-Identifier: Apache-2.0
"""The combined fields of grouped GEMMs, and the spec and problem of a case (`factors`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.combinations.factors import Meaningless, lying
from benchmarks.combinations.fields import AUTO
from benchmarks.combinations.graphs import GRAPHS, stores
from cutegemm import GemmSpec, Operand, Tile
from cutegemm import epilogue as epi
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue import Graph
from cutegemm.epilogue.graph import linear_combination
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.ops.groups.routing import ROW_WEIGHT, weighed

Value = str | int | bool
Case = Mapping[str, Value]


@epi.define
def reduces(acc: Any, *, bias: epi.Row) -> Any:
    """D, and the sum and log-sum-exp of each of its rows."""
    h = acc + bias
    return epi.Output(d=h, total=epi.Sum(h, axis=1), lse=epi.LogSumExp(h, axis=1))


@epi.define
def reduces_columns(acc: Any, *, bias: epi.Col) -> Any:
    """The same for columns."""
    h = acc + bias
    return epi.Output(d=h, total=epi.Sum(h, axis=0), lse=epi.LogSumExp(h, axis=0))


# name -> graph, for the epilogues that grouped GEMMs support
EPILOGUES: dict[str, Graph | None] = {
    **{
        name: GRAPHS[name]
        for name in (
            "plain",
            "row_vector",
            "both_vectors",
            "matrix",
            "gated_halves",
            "gated_interleaved",
            "random",
        )
    },
    "stores": stores,
    "reduces": reduces,
}
# replacements for groups of columns, where a group has only parts of rows
COLUMNS = {"reduces": reduces_columns}
# spec fields whose values are used as they are
PLAIN: dict[str, tuple[Value, ...]] = {
    "stages": (AUTO, 1, 2, 4),
    "schedule": (AUTO, "cooperative", "pingpong", "multistage"),
    "scheduler": (AUTO, "persistent", "dynamic"),
    "consumers": (AUTO, 1, 2, 3),
    "a_load": (AUTO, "tma", "gather", "shift", "cp_async"),
    "b_load": (AUTO, "tma", "gather", "shift", "cp_async"),
    "store": (AUTO, "tma", "staged", "direct"),
    "epilogue_stages": (AUTO, 1, 2, 4),
    "input_stages": (AUTO, 1, 2),
    "swizzle": (AUTO, "128B", "64B", "32B", "none"),
    "trigger": (AUTO, "never", "start", "loads", "mainloop"),
    "ctas_per_sm": (AUTO, 1, 2),
    "sms": (4, 1, 2),
    "swap": (AUTO, True, False),
}
# spec fields that are parsed as in `fields.READ`
READ: dict[str, tuple[Value, ...]] = {
    "tile": (AUTO, "64x64x64", "128x64x64", "192x64x64", "64x128x64", "16x64x64", "256x64x64", "64x64x32", "64x64x128",
             "128x64x128", "192x88x128", "64x256x64"),
    "cluster": (AUTO, "1x1", "2x1", "1x2", "2x2"),
    "raster": (AUTO, "m1", "n3"),
    "evict_first": (AUTO, "none", "a", "b", "d", "a+b+d"),
    "promote": (AUTO, "never", 64, 128),
}  # fmt: skip
LIES = ("aligned", "by_8", "by_4", "odd")
PROBLEM: dict[str, tuple[Value, ...]] = {
    "kind": ("rows", "depth", "masked", "columns"),
    "told": ("offs", "cu_seqlens"),
    "index": ("int32", "int64"),
    "sizes": ("uneven", "one_row", "skewed", "empty", "hostile", "tail", "many", "whole"),
    "tail": ("zero", "undefined"),
    # type of the row indices
    "gather": ("none", "int32", "int64"),
    "dtype": ("bf16", "fp16", "tf32", "fp8_e4m3", "fp8_e5m2", "int8", "uint8"),
    "scales": ("none", "tensor", "row", "block"),
    # whether each group has its own row and column vectors and scales of B
    "own": (False, True),
    "d_dtype": ("as_a", "fp32", "bf16", "fp8_e4m3", "int8", "int32"),
    "a_major": ("k", "m"),
    "b_major": ("k", "n"),
    "d_major": ("n", "m"),
    "a_lies": LIES,
    "b_lies": LIES,
    "out": ("new", "given", "odd", "in_place"),
    "c": ("none", "as_a", "fp32", "fp8_e4m3"),
    # whether each row of D has a weight; whether rows are then summed by index
    "weight": (False, True),
    "scatter": (False, True),
    "epilogue": tuple(EPILOGUES),
    "columns": ("ragged", "tile", "waves"),
    "length": ("few", "one_stage", "odd"),
}
FACTORS: dict[str, tuple[Value, ...]] = {**PLAIN, **READ, **PROBLEM}
NOMINAL = (64, 64, 64)
# rows of A from which indices select
TOKENS = 37
WHOLE = ("int8", "uint8")
EIGHTS = ("fp8_e4m3", "fp8_e5m2", *WHOLE)


@dataclass(frozen=True)
class Declared:
    """The spec and tensors of a case.

    Attributes:
        case: the fields without their default.
        spec: without an epilogue.
        graph: the epilogue; the plain one has a graph too.
        ends: contents of the tensor that describes the groups.
        extent: of the grouped axis; for masked groups, of each batch.
        tensors: layouts of a, b, the epilogue's inputs and the outputs, with batch 1 if not batched.
        outputs: names of the outputs.
    """

    case: dict[str, Value]
    spec: GemmSpec
    graph: Graph
    ends: tuple[int, ...]
    extent: int
    tensors: dict[str, Operand]
    outputs: tuple[str, ...]


def value_of(case: Case, name: str) -> Any:
    """A field's value in a case."""
    return case.get(name, FACTORS[name][0])


def shortened(case: Case) -> dict[str, Value]:
    """A case without default values, in the order of fields."""
    return {name: case[name] for name in FACTORS if name in case and case[name] != FACTORS[name][0]}


def needs(name: str, value: Value) -> dict[str, tuple[Value, ...]]:
    """The values of other fields that a value needs by the case's own rules, by field."""
    found: dict[tuple[str, Value], dict[str, tuple[Value, ...]]] = {
        ("told", "cu_seqlens"): {"kind": ("rows", "depth", "columns")},
        ("out", "in_place"): {"c": ("as_a", "fp32", "fp8_e4m3"), "epilogue": ("plain",), "scales": ("none",)},
        ("d_dtype", "int32"): {"dtype": WHOLE},
        ("weight", True): {"kind": ("rows",)},
        ("scatter", True): {"kind": ("rows",), "tail": ("zero",), "out": ("new", "given", "odd")},
        ("input_stages", 2): {"kind": ("depth",)},
        **{("evict_first", x): {"store": ("tma",), "columns": ("tile",)} for x in ("d", "a+b+d")},
        ("tail", "undefined"): {"kind": ("rows", "masked", "columns"), "out": ("given", "odd")},
        ("scales", "block"): {"dtype": ("fp8_e4m3",)},
    }
    if name == "gather" and value != "none":
        return {"kind": ("rows",), "a_load": (AUTO, "cp_async")}
    if name == "c" and value != "none":
        return {"epilogue": ("plain",), "scales": ("none",)}
    if name == "scales" and value in ("tensor", "row"):
        return {"dtype": EIGHTS}
    if name == "dtype" and value in EIGHTS:
        return {"a_major": ("k",), "b_major": ("k",)}
    return found.get((name, value), {})


def declared(case: Case) -> Declared:
    """The spec and tensors of a case.

    Raises:
        Meaningless: its values contradict each other.
        GemmError: the spec is illegal, or an operand cannot have this layout.
    """
    get = lambda name: value_of(case, name)
    _check(get)
    kind, graph = get("kind"), _graph(get)
    tile = NOMINAL if get("tile") == AUTO else tuple(int(x) for x in str(get("tile")).split("x"))
    ends, extent = _ends(get, tile[2] if kind == "depth" else 64)
    groups = len(ends) - (get("told") == "cu_seqlens")
    columns = {"tile": tile[1], "ragged": max(1, tile[1] - 5), "waves": tile[1] + tile[1] // 2 + 2}[
        get("columns")
    ]
    length = {"one_stage": tile[2], "few": 3 * tile[2] + 8, "odd": 2 * tile[2] + 5}[get("length")]
    # the extents of the other axes
    rows = {"tile": tile[0], "ragged": tile[0] - 3, "waves": tile[0] + 18}[get("columns")]
    m = rows if kind in ("depth", "columns") else extent
    k = extent if kind == "depth" else length
    columns = extent if kind == "columns" else columns
    dtype = DType.FP32 if get("dtype") == "tf32" else as_dtype(get("dtype"))
    default = DType.BF16 if get("dtype") in EIGHTS else dtype
    plain = dtype.result if graph is None and get("scales") == "none" and get("c") == "none" else default
    d_dtype = plain if get("d_dtype") == "as_a" else as_dtype(get("d_dtype"))
    spec = GemmSpec(**_fields(get, graph), **({} if get("out") != "new" else {"d_dtype": d_dtype}))
    # the graph determines the scales
    found = spec.epilogue if isinstance(spec.epilogue, Graph) else linear_combination(get("c") != "none")
    if get("weight"):
        heavier = weighed(found)
        if heavier is None:
            raise Meaningless("rows of one output are weighed")
        found = heavier
    bare = dataclasses.replace(spec, epilogue=AUTO, scale_a=AUTO, scale_b=AUTO)
    batch = groups if kind in ("masked", "depth") else 1
    width = 2 * columns if found.gated else columns
    a_rows = TOKENS if get("gather") != "none" else m
    tensors = {
        "a": lying(
            dtype,
            (a_rows, k),
            get("a_major") == "k",
            get("a_lies"),
            groups if kind in ("masked", "columns") else 1,
        ),
        "b": lying(
            dtype,
            (k, width),
            get("b_major") == "n",
            get("b_lies"),
            groups if kind in ("rows", "masked") else 1,
        ),
    }
    row_major, own = get("d_major") == "n", groups if get("own") else 1
    for name, what in found.tensors.items():
        held = {"c": {"fp32": DType.FP32, "fp8_e4m3": DType.FP8_E4M3}.get(get("c"), default)}.get(
            name, default
        )
        held = DType.FP32 if name.startswith("scale_") or name == ROW_WEIGHT else held
        of_a = groups if kind == "masked" or (kind in ("depth", "columns") and get("own")) else 1
        of_b = 1 if kind == "columns" else groups if kind == "masked" else own
        # blocks of 128 of the weights, rows or columns of the other operand
        blocks = [
            -(-x // K_BLOCK) if weights else x
            for x, weights in ((m, kind == "columns"), (width, kind != "columns"))
        ]
        shape, many = {
            "matrix": ((m, columns), batch),
            "row": ((1, columns), own if kind != "columns" else 1),
            "col": ((m, 1), of_a),
            "blocks_m": (
                (blocks[0], -(-k // K_BLOCK)),
                of_a if kind == "columns" else groups if kind == "masked" else 1,
            ),
            "blocks_n": ((blocks[1], -(-k // K_BLOCK)), 1 if kind == "depth" else of_b),
        }[what]
        tensors[name] = lying(held, shape, what != "matrix" or row_major, "aligned", many)
    how = "odd" if get("out") == "odd" else "aligned"
    for x in found.stores:
        name, major = x.name, row_major if x.name == "d" else x.major != "m"
        asked = as_dtype(x.dtype) if x.dtype else d_dtype if name == "d" else default
        tensors[name] = lying(asked, (m, columns), major, how if name == "d" else "aligned", batch)
    if get("out") == "in_place" and tensors["c"].dtype != d_dtype:
        raise Meaningless("D lies in C where both have one type")
    outputs = tuple(x.name for x in found.stores)
    return Declared(shortened(case), bare, found, ends, extent, tensors, outputs)


def _graph(get: Any) -> Graph | None:
    """The case's epilogue."""
    name = get("epilogue")
    return COLUMNS[name] if get("kind") == "columns" and name in COLUMNS else EPILOGUES[name]


def _ends(get: Any, unit: int) -> tuple[tuple[int, ...], int]:
    """(contents of the tensor that describes the groups, extent of the grouped axis)."""
    sizes, far = get("sizes"), 2**40 if get("index") == "int64" else 2**30
    extent = {
        "one_row": 6,
        "empty": 5,
        "many": 60,
        "whole": 2 * unit,
        "hostile": unit + 30,
        "tail": unit + 20,
    }.get(sizes, 2 * unit + 9)
    if get("kind") == "masked":
        found = {
            "uneven": [1, extent, 0, extent // 2], "one_row": [1, 1, 1], "skewed": [0, extent, 0], "empty": [0, 0],
            "hostile": [-5, far, 3, -far], "tail": [extent - 3, 2], "many": [x % 7 for x in range(12)],
            "whole": [extent, extent],
        }[sizes]  # fmt: skip
        return tuple(found), extent
    found = {
        "uneven": [1, unit + unit // 2 + 3, unit + unit // 2 + 3, extent],
        "one_row": [1, 2, 3, 4, 5, 6],
        "skewed": [0, 0, extent, extent],
        "empty": [0, 0, 0],
        "hostile": [unit, -7, 20, far, -far],
        "tail": [10, unit],
        "many": [*range(0, 40), 30, *range(40, 58, 2)],
        "whole": [unit, 2 * unit],
    }[sizes]
    begin = {"tail": 3, "hostile": -far, "many": 1, "whole": 0}.get(sizes, 0)
    return ((begin, *found) if get("told") == "cu_seqlens" else tuple(found)), extent


def _check(get: Any) -> None:
    """Check the fields against each other.

    Raises:
        Meaningless: names the contradiction.
    """
    kind, eight = get("kind"), get("dtype") in EIGHTS
    if kind == "masked" and get("told") != "offs":
        raise Meaningless("batches have counts")
    if kind != "rows" and (get("gather") != "none" or get("weight") or get("scatter")):
        raise Meaningless("indices and weights are those of rows of groups")
    if get("scatter") and (get("tail") != "zero" or get("out") == "in_place"):
        raise Meaningless("what is added elsewhere is finished, and lies apart")
    if get("tail") == "undefined" and (kind == "depth" or get("out") not in ("given", "odd")):
        raise Meaningless("what stays as it was is seen in an output that is given")
    if get("c") != "none" and (get("epilogue") != "plain" or get("scales") != "none"):
        raise Meaningless("C is an input of the plain epilogue")
    if get("out") == "in_place" and get("c") == "none":
        raise Meaningless("D lies in C where there is one")
    if get("scales") != "none" and not eight:
        raise Meaningless("operands of 8 bits have scales")
    if get("own"):
        graph = _graph(get)
        kinds = () if graph is None else tuple(graph.tensors.values())
        # groups along K share scales of blocks
        scaled = get("scales") in (("row",) if kind == "depth" else ("row", "block"))
        if ("col" if kind == "columns" else "row") not in kinds and not scaled:
            raise Meaningless("there is no vector that a group could have of its own")


def _fields(get: Any, graph: Graph | None) -> dict[str, Any]:
    """The spec's fields."""
    fields: dict[str, Any] = {name: get(name) for name in PLAIN if get(name) != AUTO}
    if get("tile") != AUTO:
        fields["tile"] = Tile(*(int(x) for x in str(get("tile")).split("x")))
    if get("cluster") != AUTO:
        fields["cluster"] = tuple(int(x) for x in str(get("cluster")).split("x"))
    if get("raster") != AUTO:
        fields["raster"] = (str(get("raster"))[0], int(str(get("raster"))[1:]))
    if get("evict_first") != AUTO:
        fields["evict_first"] = (
            () if get("evict_first") == "none" else tuple(str(get("evict_first")).split("+"))
        )
    if get("promote") != AUTO:
        fields["promote"] = None if get("promote") == "never" else get("promote")
    if get("dtype") == "tf32":
        fields["math"] = "tf32"
    if graph is not None:
        fields["epilogue"] = graph
    scales = {
        "none": (AUTO, AUTO), "tensor": ("tensor", "tensor"), "row": ("row", "row"),
        "block": (("block", 1, K_BLOCK), ("block", K_BLOCK, K_BLOCK)),
    }[get("scales")]  # fmt: skip
    scales = scales[::-1] if get("kind") == "columns" else scales
    return fields | dict(zip(("scale_a", "scale_b"), scales, strict=True))


__all__ = ["FACTORS", "TOKENS", "Declared", "declared", "needs", "shortened", "value_of"]
