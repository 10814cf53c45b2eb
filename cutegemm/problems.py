# SPDX-License-Identifier: Apache-2.0
"""`Problem`: one GEMM to solve, as shapes and memory layouts; no tensors, no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm import checks
from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.arch.instructions import types_fault
from cutegemm.config.numbers import round_up
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue import element_types
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.epilogue.scaling import default_type, input_type
from cutegemm.errors import InputError, SpecError, field_error

# largest stride that a launch passes to a kernel, in elements
MOST_STRIDE = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class Operand(checks.Named):
    """The memory layout of one matrix: strides of (row, column, batch) in elements, and the alignment of its address.

    `batch` is the extent of the batch mode: 1 if all batches share one matrix. `align` is the largest
    power of two, at most 16, that divides the base address, in bytes. Numbers may have any integer type.

    Raises:
        InputError: a field has another type or an illegal value.
    """

    dtype: DType
    rows: int
    cols: int
    strides: tuple[int, int, int]
    batch: int = 1
    align: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        for name in ("rows", "cols", "batch"):
            value = checks.integer(InputError, name, getattr(self, name), 0, LIMITS.max_extent)
            object.__setattr__(self, name, value)
        object.__setattr__(
            self, "align", checks.integer(InputError, "align", self.align, 1, LIMITS.tma_align)
        )
        if self.align & (self.align - 1):
            nearest = 1 << self.align.bit_length() - 1
            raise field_error(InputError, "align", self.align, "must be a power of two, in bytes", nearest)
        strides = checks.integers(self.strides)
        if strides is None or len(strides) != 3:
            rule = "must be three integers: the strides of row, column and batch in elements"
            raise field_error(InputError, "strides", self.strides, rule)
        if max(map(abs, strides)) > MOST_STRIDE:
            rule = f"must be from -{MOST_STRIDE} to {MOST_STRIDE}, because kernels take 64-bit strides"
            raise field_error(InputError, "strides", self.strides, rule)
        object.__setattr__(self, "strides", _canonical(self, strides))

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.rows * self.cols * self.batch * self.dtype.bytes

    @property
    def unit_row(self) -> bool:
        """Consecutive rows are adjacent (column-major)."""
        return self.strides[0] == 1

    @property
    def transposed(self) -> Operand:
        """The same memory with rows and columns exchanged."""
        row, col, batch = self.strides
        return dataclasses.replace(self, rows=self.cols, cols=self.rows, strides=(col, row, batch))

    @property
    def unit_col(self) -> bool:
        """Consecutive columns are adjacent (row-major)."""
        return self.strides[1] == 1

    def tma_reason(self) -> str | None:
        """Why a tensor map cannot address this matrix, or None if it can (PTX ISA, tensor maps).

        The base and every non-unit stride must be multiples of 16 bytes and one stride must be 1.
        """
        if not (self.unit_row or self.unit_col):
            return "neither dimension has unit stride"
        if self.align % LIMITS.tma_align:
            return f"base address is aligned to {self.align} bytes, not {LIMITS.tma_align}"
        leading = self.strides[0] if self.unit_col else self.strides[1]
        for name, stride in (("leading stride", leading), ("batch stride", self.strides[2])):
            size = stride * self.dtype.bytes
            if size % LIMITS.tma_align:
                return f"{name} is {size} bytes, not a multiple of {LIMITS.tma_align}"
            if not 0 < size < LIMITS.tma_max_stride:
                return f"{name} of {size} bytes is outside (0, 2**40)"
        return None

    def tma_store_reason(self) -> str | None:
        """Why TMA cannot store this matrix, or None if it can.

        Besides the rules of a tensor map, the contiguous extent must be a multiple of 16 bytes: a TMA load clips
        its box to the tensor by elements, a TMA store by 16-byte chunks (measured on an H200: storing 3
        columns of bf16 into rows of 8 writes all 8).
        """
        reason = self.tma_reason()
        if reason is not None:
            return reason
        size = (self.cols if self.unit_col else self.rows) * self.dtype.bytes
        if size % LIMITS.tma_align:
            return f"its contiguous extent is {size} bytes, not a multiple of {LIMITS.tma_align}"
        return None


def _canonical(x: Operand, strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Replace the strides of extents 0 and 1, which address nothing, by values that TMA accepts.

    A row vector becomes row-major and a column vector column-major if its one real stride allows it.
    """
    row, col, batch = strides
    step = LIMITS.tma_align // x.dtype.bytes
    if x.cols <= 1 and x.rows <= 1:
        row, col = step, 1
    elif x.rows <= 1:
        row, col = (round_up(x.cols, step), 1) if col == 1 else (1, col)
    elif x.cols <= 1:
        row, col = (1, round_up(x.rows, step)) if row == 1 else (row, 1)
    if x.batch <= 1:
        batch = min(round_up(max(row * x.rows, col * x.cols, 1), step), MOST_STRIDE // step * step)
    return row, col, batch


@dataclass(frozen=True, kw_only=True)
class Problem(checks.Named):
    """D[l, m, n] = epilogue(A[l, m, k] @ B[l, k, n], inputs); `batch` is L.

    `a` is M x K and `b` is K x N. `inputs` are the tensors that the epilogue reads, by name: matrices of
    M x N, rows of 1 x N, columns of M x 1; "c" is the C of the plain GEMM. `outputs` are the matrices it
    stores, M x N, including "d". Under a gated epilogue inputs and outputs have N / 2 columns.
    `device_scalars` are the epilogue's scalars in device memory. `inputs` and `outputs` may be given as
    mappings.

    Raises:
        InputError: an extent is negative or too large, or a field has another type.
    """

    m: int
    n: int
    k: int
    batch: int
    a: Operand
    b: Operand
    inputs: tuple[tuple[str, Operand], ...] = ()
    outputs: tuple[tuple[str, Operand], ...]
    device_scalars: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            value = checks.integer(InputError, name, getattr(self, name), 0, LIMITS.max_extent)
            object.__setattr__(self, name, value)
        for name in ("a", "b"):
            if not isinstance(getattr(self, name), Operand):
                raise field_error(InputError, name, getattr(self, name), "must be an Operand")
        for name in ("inputs", "outputs"):
            object.__setattr__(self, name, _named(name, getattr(self, name)))
        object.__setattr__(
            self, "device_scalars", checks.names(InputError, "device_scalars", self.device_scalars)
        )

    @property
    def shape(self) -> str:
        """M x N x K as text, with the batch unless it is 1."""
        return f"{self.m} x {self.n} x {self.k}" + f", batch {self.batch}" * (self.batch != 1)

    @property
    def types(self) -> str:
        """The types of A and B as text, such as "bf16" or "int8 x uint8"."""
        return " x ".join(dict.fromkeys((self.a.dtype.value, self.b.dtype.value)))

    @property
    def c(self) -> Operand | None:
        """The input named c; None if no C is read."""
        return dict(self.inputs).get("c")

    @property
    def d(self) -> Operand | None:
        """The output named d; None if there are only others."""
        return dict(self.outputs).get("d")

    @property
    def flops(self) -> int:
        """Multiplications plus additions of the GEMM."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def min_bytes(self) -> int:
        """Bytes if every operand is read once and every output is written once."""
        mats = [self.a, self.b, *dict(self.inputs).values(), *dict(self.outputs).values()]
        return sum(x.bytes for x in mats)


def _named(field: str, value: object) -> tuple[tuple[str, Operand], ...]:
    """Operands by name, from a mapping or pairs."""
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    listed = isinstance(pairs, (tuple, list)) and all(isinstance(x, (tuple, list)) for x in pairs)
    found = tuple(tuple(x) for x in pairs) if listed else None  # type: ignore[attr-defined]
    kinds = (str, Operand)
    if found is None or any(len(x) != 2 or not all(map(isinstance, x, kinds)) for x in found):
        raise field_error(InputError, field, value, "must be pairs of a name and an Operand")
    return found


@checks.keywords()
def problem(
    m: int,
    n: int,
    k: int,
    *,
    batch: int = 1,
    dtype: object = "bf16",
    b_dtype: object = None,
    d_dtype: object = None,
    c_dtype: object = None,
    majors: str = "kn",
    d_major: str = "n",
    epilogue: Graph | None = None,
    input_dtype: object = None,
    device_scalars: tuple[str, ...] = (),
    a: object = None,
    b: object = None,
) -> Problem:
    """The problem of freshly allocated tensors: contiguous and 16-byte aligned.

    Args:
        m, n, k, batch: extents.
        dtype: of A and B.
        b_dtype: of B if it differs: any two types of fp8, or of int8 and uint8; None is the type of A.
        d_dtype: of D; None is the type of A, bf16 for 8-bit operands, and int32 for plain integer sums.
        c_dtype: of C; None reads no C. Only for the plain epilogue.
        majors: unit-stride axes of A and B: "kn" is row-major A and B; BLAS calls "kk" TN.
        d_major: "n" (row-major) or "m" (column-major), for every M x N input and output.
        epilogue: the graph that names the inputs and outputs; None is the plain one.
        input_dtype: of the epilogue's inputs; None is the type of A, or fp32 for scales.
        device_scalars: the epilogue's scalars that will be passed as 0-d tensors.
        a, b: an operand with another layout: a tensor (such as one from `cutegemm.pack`) or an `Operand`.

    Raises:
        InputError: an extent, a major or a name is not legal.
        SpecError: a dtype is not legal by itself or with the operands' types.

    Example:
        >>> problem(64, 64, 100).a.tma_reason()
        'leading stride is 200 bytes, not a multiple of 16'
    """
    ab = as_dtype(dtype)
    of_b = ab if b_dtype is None else as_dtype(b_dtype, "b_dtype")
    if of_b is not ab and (mixed := types_fault(ab, of_b)) is not None:
        raise field_error(SpecError, mixed[0].replace("a_dtype", "dtype"), *mixed[1:])
    m, n, k, batch = (
        checks.integer(InputError, name, value, 0, LIMITS.max_extent)
        for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch))
    )
    checks.choice(InputError, "majors", majors, ("kn", "kk", "mn", "mk"))
    checks.choice(InputError, "d_major", d_major, ("n", "m"))
    if epilogue is not None and not isinstance(epilogue, Graph):
        raise field_error(InputError, "epilogue", epilogue, "must be an epilogue graph")

    def matrix(rows: int, cols: int, kind: DType, row_major: bool) -> Operand:
        strides = (max(cols, 1), 1) if row_major else (1, max(rows, 1))
        return Operand(dtype=kind, rows=rows, cols=cols, strides=(*strides, rows * cols), batch=batch)

    graph = epilogue or linear_combination(c_dtype is not None)
    d_kind = default_type(graph, ab) if d_dtype is None else as_dtype(d_dtype, "d_dtype")
    kind = None if input_dtype is None else as_dtype(input_dtype, "input_dtype")
    row_major = d_major == "n"
    if epilogue is None:
        inputs = {} if c_dtype is None else {"c": matrix(m, n, as_dtype(c_dtype, "c_dtype"), row_major)}
        outputs = {"d": matrix(m, n, d_kind, row_major)}
    else:
        width = columns(epilogue, n)
        shapes = {"matrix": (m, width), "row": (1, width), "col": (m, 1)}
        inputs = {
            name: dataclasses.replace(
                matrix(
                    *shapes[shape],
                    input_type(name, ab, kind),
                    row_major if shape == "matrix" else shape == "row",
                ),
                batch=batch if shape == "matrix" else 1,
            )
            for name, shape in epilogue.tensors.items()
            if shape in shapes
        }
        for x in epilogue.scales:
            column = dataclasses.replace(matrix(*x.shape(m, n, k), DType.FP32, False), batch=1)
            inputs[x.name] = column if x.axis == "m" else column.transposed
        outputs = {
            x.name: matrix(m, width, as_dtype(x.dtype) if x.dtype else d_kind, (x.major or d_major) == "n")
            for x in epilogue.stores
        }
    named = {x.name: f"epilogue.{x.name}" for x in (epilogue.stores if epilogue else ()) if x.dtype}
    for name, operand in {**inputs, **outputs}.items():
        field = "d_dtype" if name in outputs else "input_dtype" if epilogue else "c_dtype"
        if (fault := element_types.fault(epilogue, name, operand.dtype, ab.whole)) is not None:
            raise field_error(SpecError, named.get(name, field), operand.dtype, *fault)
    factors = {"a": matrix(m, k, ab, majors[0] == "k"), "b": matrix(k, n, of_b, majors[1] == "n")}
    for name, given in (("a", a), ("b", b)):
        if given is not None:
            factors[name] = _given(name, given, factors[name])
    return Problem(
        m=m, n=n, k=k, batch=batch, **factors,
        inputs=tuple(inputs.items()), outputs=tuple(outputs.items()), device_scalars=device_scalars,
    )  # fmt: skip


def operand_of(tensor: Any) -> Operand:
    """The layout of a torch tensor of two or three dimensions, with an assumed alignment of 16 bytes.

    All batches share the matrix if the batch extent is 1 or its stride is 0.
    """
    strides = tensor.stride()
    rows, cols = tensor.shape[-2:]
    batches, step = (tensor.shape[0], strides[0]) if tensor.dim() == 3 else (1, 0)
    if batches > 1 and step == 0:
        batches = 1
    steps = (strides[-2], strides[-1], step)
    return Operand(dtype=as_dtype(tensor.dtype), rows=rows, cols=cols, strides=steps, batch=batches)


def alignment(pointer: int) -> int:
    """The largest power of two, at most 16, that divides an address."""
    return min(pointer & -pointer, LIMITS.tma_align) or LIMITS.tma_align


def _given(name: str, given: Any, wanted: Operand) -> Operand:
    """Check an operand given by a caller: only its layout may differ from the problem's."""
    if not isinstance(given, Operand):
        # nested and sparse tensors raise on most other attributes
        plain = not getattr(given, "is_nested", False) and "strided" in str(
            getattr(given, "layout", "strided")
        )
        if not plain or not all(hasattr(given, x) for x in ("stride", "data_ptr", "shape", "dtype")):
            raise field_error(InputError, name, given, "must be a strided torch.Tensor or an Operand")
        if len(given.shape) not in (2, 3):
            raise field_error(InputError, f"{name}.shape", tuple(given.shape), "must have 2 or 3 dimensions")
        as_dtype(given.dtype, f"{name}.dtype")
        return _given(name, dataclasses.replace(operand_of(given), align=alignment(given.data_ptr())), wanted)
    for field, value, rule in (
        ("shape", (given.rows, given.cols), (wanted.rows, wanted.cols)),
        ("dtype", given.dtype.value, wanted.dtype.value),
    ):
        if value != rule:
            hint = f", as {name}.T has" if value == rule[::-1] else ""
            raise field_error(InputError, f"{name}.{field}", value, f"the problem's is {rule}{hint}", rule)
    if given.batch not in (1, wanted.batch):
        raise field_error(InputError, f"{name}.batch", given.batch, f"must be 1 or {wanted.batch}")
    return given


def checked(field: str, value: object) -> Problem:
    """Check that a caller's value is a `Problem`, and return it.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, Problem):
        raise field_error(InputError, field, value, "must be a Problem, such as cutegemm.problem(m, n, k)")
    return value


def listed(field: str, value: object) -> list[Problem]:
    """Check that a caller's iterable holds Problems, and return them as a list.

    Raises:
        InputError: it is not an iterable, or holds something else.
    """
    try:
        # a 0-d tensor has __iter__, which raises TypeError
        found = None if isinstance(value, str) else list(value)  # type: ignore[call-overload]
    except (TypeError, RuntimeError):
        found = None
    if found is None:
        raise field_error(InputError, field, value, "must be a list of Problems, such as [problem]")
    return [checked(f"{field}[{i}]", x) for i, x in enumerate(found)]


def output_extent(epilogue: Graph, m: int, n: int) -> tuple[int, int]:
    """Rows and columns of an epilogue's output for an M x N accumulator: half as many along its gated axis."""
    axis = epilogue.gated_axis
    return (m // 2 if axis == "m" else m), (n // 2 if axis == "n" else n)


def columns(epilogue: Graph, n: int) -> int:
    """Columns of the epilogue's inputs and outputs for a B of `n` columns: half of them if the graph is gated."""
    return n // 2 if epilogue.gated else n
