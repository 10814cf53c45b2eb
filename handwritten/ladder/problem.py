# SPDX-License-Identifier: Apache-2.0
"""Problems and the limits of stages, as plain data without GPU or torch."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.errors import GemmError, check

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Matrix:
    """A matrix in device memory.

    pointer is its address; pitch is the distance between rows (columns if column-major) in elements.
    """

    pointer: int
    rows: int
    cols: int
    pitch: int
    col_major: bool = False

    @property
    def extents(self) -> tuple[int, int]:
        """(contiguous extent, strided extent), in elements."""
        return (self.rows, self.cols) if self.col_major else (self.cols, self.rows)


@dataclass(frozen=True)
class Problem:
    """D = alpha * A @ B + beta * C with A (M, K), B (K, N), C and D (M, N); c is None when beta is 0."""

    dtype: str
    a: Matrix
    b: Matrix
    d: Matrix
    c: Matrix | None = None
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def mnk(self) -> tuple[int, int, int]:
        """M, N and K."""
        return self.a.rows, self.b.cols, self.a.cols


def contiguous(dtype: str, m: int, n: int, k: int, *, majors: str = "rr", beta: float = 0.0) -> Problem:
    """Return a problem of packed matrices at address 0, for plans without memory.

    majors is one letter each for A and B, "r" for row-major and "c" for column-major.
    """

    def matrix(rows: int, cols: int, major: str = "r") -> Matrix:
        return Matrix(0, rows, cols, rows if major == "c" else cols, major == "c")

    c = matrix(m, n) if beta else None
    return Problem(dtype, matrix(m, k, majors[0]), matrix(k, n, majors[1]), matrix(m, n), c, 1.0, beta)


@dataclass(frozen=True)
class Limits:
    """The requirements of a stage beyond M, N, K >= 1.

    m, n, k must divide the extents; align is in bytes and must divide every address and row pitch;
    col_major tells whether A and B may be column-major (C and D are always row-major).
    """

    m: int = 1
    n: int = 1
    k: int = 1
    align: int = 1
    col_major: bool = True

    def __str__(self) -> str:
        parts = [f"{name} % {step} == 0" for name, step in zip("MNK", (self.m, self.n, self.k)) if step > 1]
        if self.align > 1:
            parts.append(f"addresses and row pitches in multiples of {self.align} bytes")
        if not self.col_major:
            parts.append("A and B row-major")
        return ", ".join(parts) or "none"

    def verify(self, stage: str, problem: Problem) -> None:
        """Raise unless the stage supports the problem.

        Raises:
            GemmError: names the field, its value, the rule and the nearest legal value.
        """
        for name, value, step in zip("MNK", problem.mnk, (self.m, self.n, self.k)):
            nearest = max(-(-value // step) * step, step)
            rule = f"{name}={value}: stage {stage} needs a positive multiple of {step}"
            check(value >= 1 and value % step == 0, GemmError, f"{rule}; nearest legal value: {nearest}")
        for name in "abcd":
            matrix = getattr(problem, name)
            if matrix is not None:
                self._verify_matrix(stage, name.upper(), matrix, ELEMENT_BYTES[problem.dtype])

    def _verify_matrix(self, stage: str, name: str, matrix: Matrix, size: int) -> None:
        if name in "CD":
            check(
                not matrix.col_major,
                GemmError,
                f"{name}=column-major: stage {stage} stores rows; pass row-major",
            )
        elif not self.col_major:
            rule = f"{name}=column-major: stage {stage} copies vectors along rows; pass a row-major {name}"
            check(not matrix.col_major, GemmError, rule)
        step = max(self.align // size, 1)
        rule = f"{name} pitch={matrix.pitch}: stage {stage} needs multiples of {step} elements ({self.align} bytes)"
        nearest = f"; nearest legal value: {-(-matrix.pitch // step) * step}"
        check(matrix.extents[1] == 1 or matrix.pitch % step == 0, GemmError, rule + nearest)
        rule = f"{name} address={matrix.pointer:#x}: stage {stage} needs a multiple of {self.align} bytes"
        check(matrix.pointer % self.align == 0, GemmError, rule)
