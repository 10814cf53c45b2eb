# SPDX-License-Identifier: Apache-2.0
"""The spec and problem of a case of the combined fields (`fields`).

A case maps fields to values; unnamed fields have their first value, the default. Values are words and numbers, so a
case is a line of JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.combinations.fields import (
    AUTO,
    EIGHTS,
    EXTENTS,
    FACTORS,
    FREE,
    LARGE,
    LIES,
    NOMINAL,
    PLAIN,
    POINTS,
    READ,
    SCALES,
    WITH_BLOCKS,
    Case,
    Value,
)  # fmt: skip
from benchmarks.combinations.graphs import GRAPHS
from cutegemm import GemmSpec, Operand, Problem, Tile
from cutegemm.config.numbers import round_up
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue import Graph
from cutegemm.epilogue.graph import linear_combination
from cutegemm.epilogue.scaling import INTEGERS, default_type
from cutegemm.errors import GemmError


class Meaningless(Exception):
    """The values of a case contradict each other, regardless of the planner."""


@dataclass(frozen=True)
class Declared:
    """The spec and problem of a case.

    Attributes:
        case: the fields without their default.
        graph: the epilogue, with the operands' scales; None is the plain one.
        fields: of the spec.
        problem: layouts of all tensors; for zero points, of the sums that a run computes from them.
        points: layouts of zero points per row, by name.
    """

    case: dict[str, Value]
    graph: Graph | None
    fields: dict[str, Any]
    problem: Problem
    points: dict[str, Operand]

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
    """A case without default values, in the order of fields."""
    named = {name: case[name] for name in FACTORS if name in case and case[name] != FACTORS[name][0]}
    return named | {name: case[name] for name in FREE if name in case}


def declared(case: Case) -> Declared:
    """The spec and problem of a case.

    Raises:
        Meaningless: its values contradict each other.
        GemmError: an operand cannot have this layout.
    """
    get = lambda name: value_of(case, name)
    own = GRAPHS[get("epilogue")]
    graph = _with_scales(get, own)
    _check(get, graph)
    m, n, k = _extents(case, get)
    width = 2 * n if graph is not None and graph.gated else n
    types, dtype = _types(get("dtype"))
    d_dtype, c_dtype = _d_type(get, graph), _c_type(get)
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
        if get("out") == "in_place":
            inputs = {"c": outputs["d"]}
        elif c_dtype is not None:
            lies = "odd" if get("c") == "odd" else "aligned"
            inputs = {"c": lying(c_dtype, (m, n), row_major, lies, batch)}
    else:
        if get("numbers") == "device":
            scalars = tuple(name for name, kind in graph.numbers.items() if kind == "scalar")
        for name, kind in graph.tensors.items():
            if name.startswith("scale_"):
                inputs[name] = _scale(get, graph, name, (m, width, k))
            elif name in INTEGERS:
                inputs[name] = _sums(name, kind, a, b)
            else:
                inputs[name] = _input(get, kind, dtype, (m, n), batch if kind == "matrix" else 1)
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
    shapes = {"zero_point_a": (m, 1), "zero_point_b": (1, n)}
    points = {
        name: lying(DType.INT32, shapes[name], True, "aligned", 1) for name in POINTS if get(name) == "row"
    }
    return Declared(shortened(case), graph, _fields(get, own, problem), problem, points)


def _types(word: str) -> tuple[tuple[DType, DType], DType]:
    """The types of A and B, and the default type of other tensors: A's type, or bf16 for 8-bit operands."""
    if word == "fp8_mixed":
        return (DType.FP8_E4M3, DType.FP8_E5M2), DType.BF16
    dtype = as_dtype(word)
    return (dtype, dtype), DType.BF16 if word in EIGHTS else dtype


def _d_type(get: Any, graph: Graph | None) -> DType:
    """The type of D."""
    if get("d_dtype") != "as_a":
        return as_dtype(get("d_dtype"))
    (kind, _), _ = _types(get("dtype"))
    return default_type(graph or linear_combination(get("c") != "none"), kind)


def _c_type(get: Any) -> DType | None:
    """The type of the plain epilogue's C; None without C."""
    if get("c") == "none":
        return None
    return _types(get("dtype"))[1] if get("c") in ("as_a", "odd") else as_dtype(get("c"))


def _with_scales(get: Any, graph: Graph | None) -> Graph | None:
    """An epilogue with the scales and zero points of the case."""
    fields = {name: get(name) for name in POINTS if get(name) != "none"}
    if fields and get("dtype") not in ("int8", "uint8"):
        raise Meaningless("operands of integers have zero points")
    if get("scales") != "none":
        if get("dtype") not in EIGHTS:
            raise Meaningless("operands of 8 bits have scales")
        fields |= dict(zip(("scale_a", "scale_b"), SCALES[get("scales")], strict=True))
    if get("scale_type") != "fp32" and get("scales") not in WITH_BLOCKS:
        raise Meaningless("scales of blocks alone may be exponents")
    if not fields:
        return graph
    try:
        spec = GemmSpec(**fields, epilogue=AUTO if graph is None else graph)
    except GemmError as error:
        raise Meaningless("the epilogue takes no such scales or zero points") from error
    assert isinstance(spec.epilogue, Graph)
    return spec.epilogue


def _scale(get: Any, graph: Graph, name: str, extents: tuple[int, int, int]) -> Operand:
    """The scales of an operand's rows, columns or blocks; those of B's blocks are (blocks of K, blocks of N).

    They are fp32, or bytes that hold exponents.
    """
    m, n, k = extents
    shapes = {"row": (1, n), "col": (m, 1)}
    shapes |= {x.kind: x.shape(m, n, k) for x in graph.scales if x.name == name}
    kind = graph.tensors[name]
    rows, cols = shapes[kind][::-1] if kind == "blocks_n" else shapes[kind]
    held = DType.UINT8 if kind.startswith("blocks") and get("scale_type") == "ue8m0" else DType.FP32
    return lying(held, (rows, cols), kind in ("row", "blocks_m"), "aligned", 1)


def _sums(name: str, kind: str, a: Operand, b: Operand) -> Operand:
    """The inputs that replace zero points: sums of an operand along K per batch, or the zero points."""
    (m, n), batches = (
        (a.rows, b.cols),
        {"zero_a": b.batch, "sums_b": b.batch, "zero_b": a.batch, "sums_a": a.batch},
    )
    return lying(DType.INT32, (1, n) if kind == "row" else (m, 1), True, "aligned", batches.get(name, 1))


def lying(dtype: DType, extents: tuple[int, int], row_major: bool, how: str, batch: int) -> Operand:
    """A matrix or batch of matrices with one of the layouts.

    Raises:
        Meaningless: the element type is too wide for the alignment.
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
    """An extent of full tiles and half a tile; for a large tile, one tile and a few elements.

    Two tiles in both dimensions are two waves with `sms=2`. The race detector's memory grows with their product.
    """
    return whole + tile // 2 + 2 if tile <= LARGE else tile + 18


def _check(get: Any, graph: Graph | None) -> None:
    """Check the fields against each other.

    Raises:
        Meaningless: names the contradiction.
    """
    given = [get(name) != AUTO for name in EXTENTS]
    if any(given) and not all(given):
        raise Meaningless("a tile has all extents or none")
    if graph is not None and get("c") != "none":
        raise Meaningless("C is an input of the plain epilogue")
    read = () if graph is None else tuple(x for x in graph.tensors if x not in INTEGERS)
    tensors = ("c",) if graph is None and get("c") != "none" else read
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
        if get("c") in ("none", "odd") or graph is not None or _d_type(get, graph) is not _c_type(get):
            raise Meaningless("D lies in C where both have one type")
    _check_before(get, tensors)


def _check_before(get: Any, tensors: tuple[str, ...]) -> None:
    """Check the tensor that the previous launch writes.

    Raises:
        Meaningless: the tensor does not exist, or the spec promises that no launch writes it.
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
        elif name == "promote":
            fields[name] = None if word == "never" else int(word)
        elif name == "raster":
            fields[name] = (word[0], int(word[1:]))
        else:
            fields[name] = () if word == "none" else tuple(word.split("+"))
    if graph is not None:
        fields["epilogue"] = graph
    if get("scales") != "none":
        fields |= dict(zip(("scale_a", "scale_b"), SCALES[get("scales")], strict=True))
    fields |= {name: get(name) for name in POINTS if get(name) != "none"}
    outputs, inputs = dict(problem.outputs), dict(problem.inputs)
    if get("stated"):
        fields |= {"a_dtype": problem.a.dtype, "b_dtype": problem.b.dtype}
        fields |= {"a_major": get("a_major"), "b_major": get("b_major")}
        if "c" in inputs:
            fields |= {"c_dtype": inputs["c"].dtype, "c_major": get("d_major")}
    new = get("out") == "new" and "d" in outputs
    if "d" in outputs and (get("stated") or (new and get("d_dtype") != "as_a")):
        fields["d_dtype"] = outputs["d"].dtype
    if "d" in outputs and (get("stated") or (new and get("d_major") == "m")):
        fields["d_major"] = get("d_major")
    return fields


__all__ = ["Declared", "GemmError", "Meaningless", "declared", "lying", "shortened"]
