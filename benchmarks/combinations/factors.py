# SPDX-License-Identifier: Apache-2.0
"""The fields that are combined, their values, and what a case of them declares.

A case maps each field to one of its values; fields that it does not name have their first value, which asks for
nothing special. Values are words and numbers, so that a case is a line of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.combinations.graphs import GRAPHS
from cutegemm import GemmSpec, Operand, Problem, Tile
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue import Graph
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.errors import GemmError
from cutegemm.problems import round_up

AUTO = "auto"
Value = str | int | bool
Case = Mapping[str, Value]

# fields of the spec whose words stand for themselves
PLAIN: dict[str, tuple[Value, ...]] = {
    "stages": (AUTO, 1, 2, 3, 5),
    "swizzle": (AUTO, "128B", "64B", "32B", "none"),
    "schedule": (AUTO, "cooperative", "pingpong", "multistage", "simt"),
    "consumers": (AUTO, 1, 2, 3),
    "a_load": (AUTO, "tma", "gather", "shift", "cp_async", "relayout"),
    "b_load": (AUTO, "tma", "gather", "shift", "cp_async", "relayout"),
    "store": (AUTO, "tma", "staged", "direct"),
    "epilogue_stages": (AUTO, 1, 2, 4),
    "input_stages": (AUTO, 1, 2, 4),
    "scheduler": (AUTO, "persistent", "per_tile", "stream_k", "dynamic"),
    "sms": (AUTO, 2, 1, 5),
    "swap": (AUTO, True, False),
    "split_k": (AUTO, 1, 2, 3, 4, 8),
    "split_reduction": (AUTO, "cluster", "workspace", "launch", "atomic"),
    "ctas_per_sm": (AUTO, 1, 2),
    "trigger": (AUTO, "never", "start", "loads"),
    "batch_invariant": (AUTO, True, False),
    "math": (AUTO, "tf32", "tf32x3"),
}
# fields of the spec whose words are read: "2x1x2" CTAs, "m4" is ("m", 4), "a+b" is ("a", "b")
READ: dict[str, tuple[Value, ...]] = {
    "cluster": (AUTO, "1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "1x1x2", "1x1x4", "1x1x8", "2x1x2", "1x2x2"),
    "raster": (AUTO, "m1", "m4", "n1", "n3"),
    "constant": (AUTO, "a", "b", "a+b"),
    "evict_first": (AUTO, "none", "a", "b", "d", "a+b+d"),
}
# extents of the CTA tile: all are given, or none is
EXTENTS: dict[str, tuple[Value, ...]] = {
    "tile_m": (AUTO, 16, 40, 64, 112, 128, 192, 256),
    "tile_n": (AUTO, 16, 48, 64, 128, 208, 256),
    "tile_k": (AUTO, 8, 16, 32, 64, 128),
}
LIES = ("aligned", "by_8", "by_4", "by_2", "odd", "stride_0", "strided")
# what is not the spec's
PROBLEM: dict[str, tuple[Value, ...]] = {
    "dtype": ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "fp8_mixed", "int8", "uint8"),
    "scales": ("none", "tensor", "row", "block", "blocks"),
    "d_dtype": ("as_a", "fp32", "fp16", "bf16"),
    # whether the spec says the types and majors that the problem has
    "stated": (False, True),
    "a_major": ("k", "m"),
    "b_major": ("n", "k"),
    "d_major": ("n", "m"),
    "a_lies": LIES,
    "b_lies": LIES,
    "out": ("new", "given", "odd", "by_2", "strided", "in_place"),
    "c": ("none", "as_a", "fp32", "odd"),
    "epilogue": tuple(GRAPHS),
    "inputs": ("as_a", "fp32", "odd", "strided", "other_major"),
    "numbers": ("host", "device"),
    "batch": ("one", "two", "a_shared", "b_shared"),
    "shape": ("tile", "ragged", "waves", "few_rows", "one"),
    "depth": ("few", "one_stage", "odd", "deep", "zero"),
    # what the launch before writes
    "before": ("nothing", "a", "b", "input", "scalar", "out", "itself"),
}
FACTORS: dict[str, tuple[Value, ...]] = {**EXTENTS, **PLAIN, **READ, **PROBLEM}
# extents that a drawn problem has in the place of those of "shape" and "depth"
FREE = ("m", "n", "k")
NOMINAL = (64, 64, 64)
# an extent of a tile from which on one tile and a ragged one are enough
LARGE = 128
EIGHTS = ("fp8_e4m3", "fp8_e5m2", "fp8_mixed", "int8", "uint8")
# kinds of the scales of A and of B
SCALES: dict[str, tuple[Any, Any]] = {
    "none": (AUTO, AUTO),
    "tensor": ("tensor", "tensor"),
    "row": ("row", "row"),
    "block": (("block", 1, K_BLOCK), ("block", K_BLOCK, K_BLOCK)),
    "blocks": (("block", 1, K_BLOCK), ("block", 1, K_BLOCK)),
}


class Meaningless(Exception):
    """A case whose values contradict one another before any planner is asked."""


@dataclass(frozen=True)
class Declared:
    """What a case asks for.

    Attributes:
        case: what is not a field's first value.
        graph: the epilogue, with the operands' scales; None is the plain one.
        fields: of the spec.
        problem: how everything lies.
    """

    case: dict[str, Value]
    graph: Graph | None
    fields: dict[str, Any]
    problem: Problem

    @property
    def spec(self) -> GemmSpec:
        """The spec.

        Raises:
            SpecError: its fields exclude one another.
        """
        return GemmSpec(**self.fields)


def value_of(case: Case, name: str) -> Any:
    """A field's value in a case."""
    return case.get(name, FACTORS[name][0])


def shortened(case: Case) -> dict[str, Value]:
    """A case without the fields that have their first value, in the fields' order."""
    named = {name: case[name] for name in FACTORS if name in case and case[name] != FACTORS[name][0]}
    return named | {name: case[name] for name in FREE if name in case}


def declared(case: Case) -> Declared:
    """What a case asks for.

    Raises:
        Meaningless: its values contradict one another.
        GemmError: an operand cannot lie so.
    """
    get = lambda name: value_of(case, name)
    own = GRAPHS[get("epilogue")]
    graph = _scaled(get, own)
    _check(get, graph)
    m, n, k = _extents(case, get)
    width = 2 * n if graph is not None and graph.gated else n
    types, dtype = _types(get("dtype"))
    whole = types[0].whole and graph is None
    d_dtype = as_dtype(get("d_dtype")) if get("d_dtype") != "as_a" else DType.INT32 if whole else dtype
    batch = 1 if get("batch") == "one" else 2
    row_major = get("d_major") == "n"
    a = lying(
        types[0], (m, k), get("a_major") == "k", get("a_lies"), 1 if get("batch") == "a_shared" else batch
    )
    b = lying(
        types[1], (k, width), get("b_major") == "n", get("b_lies"), 1 if get("batch") == "b_shared" else batch
    )
    how = {"new": "aligned", "given": "aligned", "in_place": "aligned"}.get(get("out"), get("out"))
    scalars: tuple[str, ...] = ()
    inputs: dict[str, Operand] = {}
    if graph is None:
        outputs = {"d": lying(d_dtype, (m, n), row_major, how, batch)}
        c = get("c")
        if get("out") == "in_place":
            inputs = {"c": outputs["d"]}
        elif c != "none":
            kind = DType.FP32 if c == "fp32" else dtype
            inputs = {"c": lying(kind, (m, n), row_major, "odd" if c == "odd" else "aligned", batch)}
    else:
        if get("numbers") == "device":
            scalars = tuple(name for name, kind in graph.numbers.items() if kind == "scalar")
        inputs = {
            name: _scale(graph, name, (m, width, k))
            if name.startswith("scale_")
            else _input(get, kind, dtype, (m, n), batch if kind == "matrix" else 1)
            for name, kind in graph.tensors.items()
        }
        outputs = {
            x.name: lying(
                as_dtype(x.dtype) if x.dtype else d_dtype if x.name == "d" else dtype,
                (m, n),
                row_major if x.name == "d" else x.major != "m",
                how if x.name == "d" else "aligned",
                batch,
            )
            for x in graph.stores
        }
    problem = Problem(
        m=m, n=width, k=k, batch=batch, a=a, b=b, inputs=tuple(inputs.items()), outputs=tuple(outputs.items()),
        device_scalars=scalars,
    )  # fmt: skip
    return Declared(shortened(case), graph, _fields(get, own, problem), problem)


def _types(word: str) -> tuple[tuple[DType, DType], DType]:
    """The types of A and B, and that of everything else whose type is A's; bf16 beside operands of 8 bits."""
    if word == "fp8_mixed":
        return (DType.FP8_E4M3, DType.FP8_E5M2), DType.BF16
    dtype = as_dtype(word)
    return (dtype, dtype), DType.BF16 if word in EIGHTS else dtype


def _scaled(get: Any, graph: Graph | None) -> Graph | None:
    """An epilogue with the scales of the case."""
    if get("scales") == "none":
        return graph
    if get("dtype") not in EIGHTS:
        raise Meaningless("operands of 8 bits have scales")
    a, b = SCALES[get("scales")]
    try:
        spec = GemmSpec(scale_a=a, scale_b=b, epilogue=AUTO if graph is None else graph)
    except GemmError as error:
        raise Meaningless("the epilogue takes no such scales") from error
    assert isinstance(spec.epilogue, Graph)
    return spec.epilogue


def _scale(graph: Graph, name: str, extents: tuple[int, int, int]) -> Operand:
    """The scales of an operand's rows, columns or blocks, in fp32; of B's blocks as of B, (blocks of K, of N)."""
    m, n, k = extents
    shapes = {"row": (1, n), "col": (m, 1)}
    shapes |= {x.kind: x.shape(m, n, k) for x in graph.scales if x.name == name}
    kind = graph.tensors[name]
    rows, cols = shapes[kind][::-1] if kind == "blocks_n" else shapes[kind]
    return lying(DType.FP32, (rows, cols), kind in ("row", "blocks_m"), "aligned", 1)


def lying(dtype: DType, extents: tuple[int, int], row_major: bool, how: str, batch: int) -> Operand:
    """A matrix, or a stack of matrices, that lies in one of the ways.

    Raises:
        GemmError: no element type of that width lies so.
    """
    rows, cols = extents
    outer, inner = (rows, cols) if row_major else (cols, rows)
    size, align, unit = dtype.bytes, 16, 1
    leading = round_up(max(inner, 1), max(1, 16 // size))
    if how.startswith("by_"):
        align = int(how[3:])
        if align < size:
            raise Meaningless(f"{dtype.value} has no address that is a multiple of {align} bytes alone")
        leading = round_up(max(inner, 1), align // size)
    elif how == "odd":
        leading = max(inner, 1) | 1
    elif how == "strided":
        unit, leading = 2, 2 * leading
    step = round_up(leading * max(outer, 1), max(1, align // size)) + (how == "odd")
    if how == "stride_0":
        leading = 0
    strides = (leading, unit, step) if row_major else (unit, leading, step)
    return Operand(dtype=dtype, rows=rows, cols=cols, strides=strides, batch=batch, align=align)


def _input(get: Any, kind: str, dtype: DType, extents: tuple[int, int], batch: int) -> Operand:
    """A tensor that the epilogue reads."""
    how, (m, n) = get("inputs"), extents
    held = DType.FP32 if how == "fp32" else dtype
    row_major = (get("d_major") == "n") != (how == "other_major")
    shape, row_major = {"matrix": ((m, n), row_major), "row": ((1, n), True), "col": ((m, 1), False)}[kind]
    if how == "odd" and kind != "matrix":
        how = f"by_{held.bytes}"
    return lying(held, shape, row_major, how if how in LIES else "aligned", batch)


def _extents(case: Case, get: Any) -> tuple[int, int, int]:
    """M, N of D, and K."""
    if "m" in case:
        return int(case["m"]), int(case["n"]), int(case["k"])
    given = tuple(get(name) for name in EXTENTS)
    m, n, k = NOMINAL if AUTO in given else given
    depth = {"one_stage": k, "few": 3 * k + 8, "odd": 2 * k + 5, "deep": 9 * k + 16, "zero": 0}[get("depth")]
    rows, cols = {
        "tile": (m, n),
        "ragged": (max(1, m - 3), max(1, n - 5)),
        "waves": (_over(m, 2 * m), _over(n, n)),
        "few_rows": (5, n + 8),
        "one": (1, 1),
    }[get("shape")]
    return rows, cols, depth


def _over(tile: int, whole: int) -> int:
    """An extent of whole tiles and half of one; of a large tile, one and a few elements.

    Two tiles in both dimensions are two waves of `sms=2`. The race detector's memory grows with the square of it.
    """
    return whole + tile // 2 + 2 if tile <= LARGE else tile + 18


def _check(get: Any, graph: Graph | None) -> None:
    """What the case's own fields exclude.

    Raises:
        Meaningless: naming them.
    """
    given = [get(name) != AUTO for name in EXTENTS]
    if any(given) and not all(given):
        raise Meaningless("a tile has all extents or none")
    if graph is not None and get("c") != "none":
        raise Meaningless("C is an input of the plain epilogue")
    tensors = (
        ("c",) if graph is None and get("c") != "none" else () if graph is None else tuple(graph.tensors)
    )
    if graph is None and get("inputs") != "as_a":
        raise Meaningless("the plain epilogue reads nothing beside C")
    if graph is not None and not tensors and get("inputs") != "as_a":
        raise Meaningless("the epilogue reads no tensor")
    scalars = graph is not None and "scalar" in graph.numbers.values()
    if get("numbers") == "device" and not scalars:
        raise Meaningless("the epilogue reads no scalar that can lie on the device")
    stored = graph is None or any(x.name == "d" for x in graph.stores)
    fixed = graph is not None and any(x.name == "d" and x.dtype for x in graph.stores)
    if not stored and (get("out") != "new" or get("d_dtype") != "as_a" or get("d_major") != "n"):
        raise Meaningless("the epilogue does not store D")
    if fixed and get("d_dtype") != "as_a":
        raise Meaningless("the epilogue names D's type")
    if get("out") == "in_place":
        if get("c") != "as_a" or get("d_dtype") not in ("as_a", get("dtype")):
            raise Meaningless("D lies in C where both have one type")
    _check_before(get, tensors)


def _check_before(get: Any, tensors: tuple[str, ...]) -> None:
    """What the launch before cannot write.

    Raises:
        Meaningless: it has none of it, or the spec promises that nobody writes it.
    """
    before = get("before")
    promised = () if get("constant") == AUTO else tuple(str(get("constant")).split("+"))
    if before in promised:
        raise Meaningless(f"constant promises that no launch writes {before}")
    if before == "input" and not tensors:
        raise Meaningless("there is no tensor for the launch before to write")
    if before == "scalar" and get("numbers") != "device":
        raise Meaningless("there is no scalar for the launch before to write")
    if before == "out" and get("out") == "new":
        raise Meaningless("a new output is nobody's before")
    if before in ("a", "b") and get(f"{before}_lies") == "stride_0":
        raise Meaningless("rows that are one row are no launch's output")
    if before in ("a", "b", "input") and get("depth") == "zero" and before != "input":
        raise Meaningless("there is nothing to write")


def _fields(get: Any, graph: Graph | None, problem: Problem) -> dict[str, Any]:
    """The spec's fields."""
    fields: dict[str, Any] = {name: get(name) for name in PLAIN if get(name) != AUTO}
    if get("tile_m") != AUTO:
        fields["tile"] = Tile(*(get(name) for name in EXTENTS))
    for name in READ:
        word = str(get(name))
        if word == AUTO:
            continue
        if name == "cluster":
            fields[name] = tuple(int(x) for x in word.split("x"))
        elif name == "raster":
            fields[name] = (word[0], int(word[1:]))
        else:
            fields[name] = () if word == "none" else tuple(word.split("+"))
    if graph is not None:
        fields["epilogue"] = graph
    if get("scales") != "none":
        fields |= dict(zip(("scale_a", "scale_b"), SCALES[get("scales")], strict=True))
    outputs, inputs = dict(problem.outputs), dict(problem.inputs)
    if get("stated"):
        fields |= {"a_dtype": problem.a.dtype, "b_dtype": problem.b.dtype}
        fields |= {} if problem.a.dtype.whole else {"acc_dtype": "fp32"}
        fields |= {"a_major": get("a_major"), "b_major": get("b_major")}
        if "c" in inputs:
            fields |= {"c_dtype": inputs["c"].dtype, "c_major": get("d_major")}
    new = get("out") == "new" and "d" in outputs
    if "d" in outputs and (get("stated") or (new and get("d_dtype") != "as_a")):
        fields["d_dtype"] = outputs["d"].dtype
    if "d" in outputs and (get("stated") or (new and get("d_major") == "m")):
        fields["d_major"] = get("d_major")
    return fields


__all__ = [
    "AUTO",
    "FACTORS",
    "Case",
    "Declared",
    "GemmError",
    "Meaningless",
    "declared",
    "lying",
    "shortened",
]
