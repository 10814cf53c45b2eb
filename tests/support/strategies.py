# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies over what a user can ask for: extents, memory layouts, problems, specs, scalars."""

import itertools

from hypothesis import strategies as st

from cutegemm import GemmSpec, Operand, Problem, Tile
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue import Graph
from cutegemm.epilogue.element_types import legal
from cutegemm.epilogue.graph import linear_combination
from cutegemm.epilogue.scales import KINDS
from cutegemm.epilogue.scaling import SUMS, default_type, input_type
from cutegemm.errors import SpecError
from cutegemm.problems import columns
from cutegemm.spec import AUTO, LOADS, SCHEDULERS, SCHEDULES, SPLIT_REDUCTIONS, STORES, SWIZZLES
from tests.support.epilogues import graphs

TILE_EDGES = (16, 64, 128, 192, 256)
HALF_TYPES = (DType.FP16, DType.BF16)
# what is read and stored beside operands of floating point
READ, STORED = (legal(x, False) for x in ("matrix", "stored"))
STORED_WHOLE = legal("stored", True)
_FP8, _INT8 = (DType.FP8_E4M3, DType.FP8_E5M2), (DType.INT8, DType.UINT8)
# types of A and B that no strategy of 16 bits draws; fp32 stands for tf32
EIGHT_BITS = (*itertools.product(_FP8, _FP8), *itertools.product(_INT8, _INT8), (DType.FP32, DType.FP32))


def extents(low: int = 0, high: int = 700) -> st.SearchStrategy[int]:
    """One of M, N, K: anything, odd numbers, tile edges plus and minus one."""
    edges = sorted({x for e in TILE_EDGES for x in (e - 1, e, e + 1, 2 * e + 1) if low <= x <= high})
    odd = st.integers(low // 2, (high - 1) // 2).map(lambda x: 2 * x + 1)
    return st.one_of(odd, st.sampled_from(edges), st.integers(low, high))


def scalars() -> st.SearchStrategy[float]:
    """alpha or beta: 0 and 1 often."""
    return st.one_of(st.sampled_from((0.0, 1.0, 1.0)), st.sampled_from((-1.0, 0.5, 2.0, -0.375)))


@st.composite
def operands(draw, rows: int, cols: int, dtype: DType, batch: int, output: bool = False) -> Operand:
    """How one matrix lies in memory: either major, padded or odd leading dimension, strided, broadcast, misaligned."""
    row_major = draw(st.booleans())
    unit = draw(st.sampled_from((1, 1, 1, 1, 2)))
    inner, outer = (cols, rows) if row_major else (rows, cols)
    leading = max(1, inner * unit) + draw(st.sampled_from((0, 0, 1, 3, 8, 64)))
    if draw(st.booleans()):
        leading = -(-leading // 8) * 8
    step = leading * max(outer, 1) + draw(st.sampled_from((0, 0, 5, 16)))
    own_batch = 1 if batch > 0 and not output and draw(st.booleans()) else batch
    align = draw(st.sampled_from((16, 16, 16, 8, 4, 2)))
    strides = (leading, unit, step) if row_major else (unit, leading, step)
    return Operand(
        dtype=dtype, rows=rows, cols=cols, strides=strides, batch=own_batch, align=max(align, dtype.bytes)
    )


@st.composite
def problems(draw, low: int = 0, high: int = 20_000) -> Problem:
    """Any problem the planner may meet."""
    m, n, k = (draw(extents(low, high)) for _ in range(3))
    batch = draw(st.sampled_from((1, 1, 1, 2, 3, 0 if low == 0 else 1)))
    ab = draw(st.sampled_from((*HALF_TYPES, *HALF_TYPES, DType.FP32)))
    out = DType.FP32 if ab is DType.FP32 else draw(st.sampled_from((ab, ab, *STORED)))
    c = draw(st.none() | operands(m, n, draw(st.sampled_from(READ)), batch))
    return Problem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a=draw(operands(m, k, ab, batch)),
        b=draw(operands(k, n, ab, batch)),
        inputs=() if c is None else (("c", c),),
        outputs=(("d", draw(operands(m, n, out, batch, output=True))),),
    )


@st.composite
def fused_problems(draw, low: int = 1, high: int = 4_000) -> tuple[Graph, Problem]:
    """Any epilogue, gated ones included, and a problem that brings what it reads and stores; some scalars on device."""
    graph = draw(graphs(gated="any"))
    m, n, k = (draw(extents(low, high)) for _ in range(3))
    n = n + n % 2 if graph.gated else n
    width, batch = columns(graph, n), draw(st.sampled_from((1, 1, 2, 3)))
    ab = draw(st.sampled_from((*HALF_TYPES, *HALF_TYPES, DType.FP32)))
    shapes = {"matrix": (m, width), "row": (1, width), "col": (m, 1)}
    read = {
        name: draw(operands(*shapes[kind], draw(st.sampled_from(READ)), batch))
        for name, kind in graph.tensors.items()
    }
    stored = {
        x.name: draw(
            operands(
                m,
                width,
                as_dtype(x.dtype) if x.dtype else draw(st.sampled_from(STORED)),
                batch,
                output=True,
            )
        )
        for x in graph.stores
    }
    scalars_there = tuple(x for x, kind in graph.numbers.items() if kind == "scalar" and draw(st.booleans()))
    return graph, Problem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a=draw(operands(m, k, ab, batch)),
        b=draw(operands(k, n, ab, batch)),
        inputs=tuple(read.items()),
        outputs=tuple(stored.items()),
        device_scalars=scalars_there,
    )


@st.composite
def eight_bits(draw, low: int = 1, high: int = 4_000) -> tuple[GemmSpec, Problem]:
    """A spec of 8-bit or tf32 operands, with any scales, zero points and promotion, and a problem that brings them."""
    pair = draw(st.sampled_from(EIGHT_BITS))
    fields = {"promote": st.sampled_from((None, 32, 64, 96, 128, 256))}
    if pair[0] is DType.FP32:
        fields["math"] = st.sampled_from(("tf32", "tf32x3"))
    else:
        fields |= dict.fromkeys(("scale_a", "scale_b"), st.sampled_from(KINDS))
    if pair[0].whole:
        fields |= dict.fromkeys(("zero_point_a", "zero_point_b"), st.sampled_from(("tensor", "row")))
    own = draw(st.lists(st.sampled_from(sorted(fields)), unique=True))
    spec = draw(specs({**_FREE, **fields}, ("math", *own) if "math" in fields else tuple(own)))
    graph = spec.epilogue if isinstance(spec.epilogue, Graph) else linear_combination(False)
    m, n, k = (draw(extents(low, high)) for _ in range(3))
    batch = draw(st.sampled_from((1, 1, 1, 2, 3)))
    shapes = {"row": (1, n), "col": (m, 1)}
    inputs = []
    for name, kind in graph.tensors.items():
        held, shape = input_type(name, pair[0], None), shapes.get(kind)
        if shape is None:
            scale = next(x for x in graph.scales if x.name == name)
            shape = scale.shape(m, n, k)[:: 1 if kind == "blocks_m" else -1]
            held = draw(st.sampled_from((DType.FP32, DType.UINT8)))
        inputs.append((name, draw(operands(*shape, held, batch))))
    kept = (
        [x for x in STORED_WHOLE if x is not DType.INT32] if pair[0].whole and graph not in SUMS else STORED
    )
    out = draw(st.sampled_from((default_type(graph, pair[0]), *kept)))
    scalars_there = tuple(x for x, kind in graph.numbers.items() if kind == "scalar" and draw(st.booleans()))
    return spec, Problem(
        m=m,
        n=n,
        k=k,
        batch=batch,
        a=draw(operands(m, k, pair[0], batch)),
        b=draw(operands(k, n, pair[1], batch)),
        inputs=tuple(inputs),
        outputs=(("d", draw(operands(m, n, out, batch, output=True))),),
        device_scalars=scalars_there,
    )


def tiles() -> st.SearchStrategy[Tile]:
    """CTA tiles made of whole wgmmas, most of which fit."""
    return st.builds(
        Tile,
        st.sampled_from((64, 128, 128, 192, 256, 384, 512)),
        st.sampled_from((16, 32, 48, 64, 96, 128, 144, 192, 224, 240, 256)),
        st.sampled_from((16, 32, 48, 64, 64, 64, 96, 128)),
    )


_FIELDS = {
    "a_dtype": st.sampled_from(("fp16", "bf16", "fp32")),
    "b_dtype": st.sampled_from(("fp16", "bf16")),
    "c_dtype": st.sampled_from(tuple(x.value for x in DType)),
    "d_dtype": st.sampled_from(tuple(x.value for x in DType)),
    "acc_dtype": st.just("fp32"),
    "a_major": st.sampled_from(("k", "m")),
    "b_major": st.sampled_from(("n", "k")),
    "c_major": st.sampled_from(("n", "m")),
    "d_major": st.sampled_from(("n", "m")),
    "tile": tiles(),
    "cluster": st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (8, 1), (4, 2),
                                (1, 1, 2), (2, 1, 4), (1, 1, 1))),
    "split_k": st.sampled_from((1, 2, 3, 4, 8, 12)),
    "split_reduction": st.sampled_from(SPLIT_REDUCTIONS),
    "stages": st.integers(1, 16),
    "swizzle": st.sampled_from(SWIZZLES),
    "schedule": st.sampled_from(SCHEDULES),
    "consumers": st.integers(1, 3),
    "a_load": st.sampled_from(LOADS),
    "b_load": st.sampled_from(LOADS),
    "store": st.sampled_from(STORES),
    "epilogue_stages": st.integers(1, 6),
    "input_stages": st.integers(1, 8),
    "scheduler": st.sampled_from(SCHEDULERS),
    "raster": st.tuples(st.sampled_from(("m", "n")), st.integers(1, 64)),
    "sms": st.integers(1, 200),
}  # fmt: skip


# without demands on types and majors
_FREE = {name: x for name, x in _FIELDS.items() if not name.endswith(("_dtype", "_major"))}


@st.composite
def specs(draw, of=_FIELDS, must: tuple[str, ...] = ()) -> GemmSpec:
    """A legal spec in which a few fields are given, and those that must be."""
    names = draw(st.lists(st.sampled_from(sorted(of)), unique=True, max_size=6))
    fields = {}
    for name in dict.fromkeys((*must, *names)):
        value = draw(of[name])
        try:
            GemmSpec(**fields, **{name: value})
        except SpecError:
            continue  # this value contradicts the fields before it
        fields[name] = value
    return GemmSpec(**fields)


def for_problem(spec: GemmSpec, problem: Problem) -> GemmSpec:
    """The spec without its demands on types and majors, which any problem but their own contradicts.

    Nor with consumers of a tile that only the CUDA cores of those types have.
    """
    fields = {k: v for k, v in spec.given().items() if not k.endswith(("_dtype", "_major"))}
    try:
        return GemmSpec(**fields)
    except SpecError:
        return GemmSpec(**{k: v for k, v in fields.items() if k != "consumers"})


__all__ = [
    "AUTO",
    "eight_bits",
    "extents",
    "for_problem",
    "fused_problems",
    "operands",
    "problems",
    "scalars",
    "specs",
    "tiles",
]
