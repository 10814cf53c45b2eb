# SPDX-License-Identifier: Apache-2.0
"""Small 8-bit GEMMs and `quantize`, which run on a GPU and on the emulator.

Operands come from a seed: fp8 is normally distributed, with infinities, NaN and zeros in "special" cases; integers are
uniform. Specs fix the tile, so the order of sums does not depend on the planner.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, emulator
from cutegemm.ops.quantized import kernel

E4M3, E5M2, INT8, UINT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)


@dataclass(frozen=True)
class Product:
    """D = A @ B under a spec.

    Attributes:
        spec: with scales and zero points.
        shape: (M, N, K).
        types: of A and of B.
        majors: the unit-stride axes of A and B.
        offset: misalignment of A in bytes, relative to 16; B has one byte more.
        exponents: whether scales of blocks are ue8m0.
        special: whether A has infinities, NaN and zeros.
    """

    spec: GemmSpec
    shape: tuple[int, int, int]
    types: tuple[torch.dtype, torch.dtype]
    majors: str = "kk"
    offset: int = 0
    exponents: bool = False
    special: bool = False

    def inputs(self) -> dict[str, Tensor]:
        """A (M, K), B (K, N), scales and zero points on the CPU, by name."""
        m, n, k = self.shape
        draw = torch.Generator().manual_seed(m + n + k)
        a = _lying(self.types[0], m, k, self.majors[0] == "m", self.offset, draw)
        b = _lying(self.types[1], n, k, self.majors[1] == "n", self.offset and self.offset + 1, draw).T
        if self.special:
            a[1, 3], a[2, 5], a[3, :] = math.inf, math.nan, 0
        named = {"a": a, "b": b}
        for name, kind, extent in (("a", self.spec.scale_a, m), ("b", self.spec.scale_b, n)):
            if kind != "auto":
                named[f"scale_{name}"] = self._scale(kind, extent, draw)
        for name, kind, extent in (("a", self.spec.zero_point_a, m), ("b", self.spec.zero_point_b, n)):
            if kind != "auto":
                shape = (extent,) if kind == "row" else ()
                named[f"zero_point_{name}"] = torch.randint(-9, 99, shape, generator=draw, dtype=torch.int32)
        return named

    def _scale(self, kind: Any, extent: int, draw: torch.Generator) -> Tensor:
        shape = {"tensor": (), "row": (extent,)}.get(kind) if isinstance(kind, str) else None
        if shape is not None:
            return torch.rand(shape, generator=draw) / 64
        shape = -(-extent // kind[1]), -(-self.shape[2] // 128)
        if self.exponents:
            return torch.randint(120, 134, shape, generator=draw, dtype=UINT8)
        return torch.rand(shape, generator=draw) + 0.5

    def results(self, emulated: bool) -> tuple[Tensor, ...]:
        """D, from the emulator or a GPU."""
        named = self.inputs()
        a, b = named.pop("a"), named.pop("b")
        if emulated:
            return (emulator.run(Gemm(self.spec), a, b, options=emulator.Options(progress=False), **named).d,)
        given = {name: x.cuda() for name, x in named.items()}
        return (Gemm(self.spec).run(_moved(a), _moved(b), backend="gpu", **given).cpu(),)


@dataclass(frozen=True)
class Quantized:
    """`quantize` of a matrix.

    Attributes:
        shape: (rows, K).
        kind: of the scales.
        dtype, source: types of the values and of the input.
        exponents: whether scales of blocks are ue8m0.
        turned: whether the matrix is column-major.
    """

    shape: tuple[int, int]
    kind: Any
    dtype: torch.dtype
    source: torch.dtype = torch.bfloat16
    exponents: bool = False
    turned: bool = False

    def inputs(self) -> dict[str, Tensor]:
        """Elements of many magnitudes, with infinities, NaN, zeros and subnormals."""
        draw = torch.Generator().manual_seed(sum(self.shape))
        x = torch.randn(self.shape, generator=draw) * torch.exp(
            4 * torch.randn(self.shape[0], 1, generator=draw)
        )
        x[0], x[1, 1], x[2, 0], x[3, 7], x[4, 0], x[5] = 0, -0.0, 1e-7, math.inf, math.nan, 1e-40
        x = x.to(self.source)
        return {"x": x.T.contiguous().T if self.turned else x}

    def results(self, emulated: bool) -> tuple[Tensor, ...]:
        """Values and scales, from the emulator or a GPU; fp32 NaNs become -1, since their bits may differ."""
        x = self.inputs()["x"]
        if emulated:
            found, _ = kernel.quantized_by(kernel.on_emulator, x, self.kind, self.dtype, None, self.exponents)
        else:
            scales = torch.float8_e8m0fnu if self.exponents else torch.float32
            found = tuple(cutegemm.quantize(_moved(x), self.kind, self.dtype, scale_dtype=scales))
        values, scale = (y.cpu().contiguous() for y in found)
        return values, scale if self.exponents else scale.nan_to_num(-1.0, math.inf)


def _lying(
    dtype: torch.dtype, rows: int, columns: int, turned: bool, offset: int, draw: torch.Generator
) -> Tensor:
    """A matrix that starts `offset` bytes after a multiple of 16, in an allocation that ends with its last element."""
    shape = (rows * columns + offset,)
    if dtype.is_floating_point:
        flat = torch.randn(shape, generator=draw).to(dtype)[offset:]
    else:
        kept = torch.iinfo(dtype)
        flat = torch.randint(kept.min, kept.max + 1, shape, generator=draw, dtype=dtype)[offset:]
    return flat.view(columns, rows).T if turned else flat.view(rows, columns)


def _moved(x: Tensor) -> Tensor:
    """A copy on the GPU with the same strides and alignment."""
    offset = x.data_ptr() % 16 // x.element_size()
    span = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    memory = torch.empty(span + offset, dtype=x.dtype, device="cuda")
    moved = memory.as_strided(x.shape, x.stride(), offset)
    moved.copy_(x)
    return moved


def _product(types: tuple[torch.dtype, torch.dtype], tile: Tile, **more: Any) -> Product:
    of = {x.name: more.pop(x.name) for x in dataclasses.fields(Product) if x.name in more}
    return Product(GemmSpec(tile=tile, swap=False, **more), types=types, **{"shape": (70, 40, 400), **of})


NARROW, WIDE = Tile(64, 48, 128), Tile(128, 80, 128)
COPIED = {"a_load": "relayout", "b_load": "relayout", "offset": 3}
CASES: dict[str, Product | Quantized] = {
    "int8": _product((INT8, INT8), NARROW),
    "int8_mixed": _product((UINT8, INT8), WIDE, shape=(130, 72, 1040), split_k=2, split_reduction="launch"),
    "int8_scaled": _product((INT8, UINT8), NARROW, scale_a="row", scale_b="row", d_dtype="int8"),
    "int8_zero_points": _product((UINT8, INT8), NARROW, zero_point_a="row", zero_point_b="row"),
    "fp8": _product((E4M3, E4M3), NARROW, d_dtype="fp32"),
    "fp8_mixed": _product((E5M2, E4M3), WIDE, shape=(130, 72, 1040)),
    "fp8_unpromoted": _product((E4M3, E4M3), NARROW, shape=(64, 40, 1024), promote=None, d_dtype="fp32"),
    "fp8_special": _product((E5M2, E5M2), NARROW, special=True, d_dtype="fp32"),
    "fp8_rows": _product((E4M3, E4M3), NARROW, scale_a="row", scale_b="row", d_dtype="fp16"),
    "fp8_blocks": _product((E4M3, E4M3), WIDE, shape=(130, 144, 400), scale_a=ROWS, scale_b=SQUARES),
    "fp8_rows_of_blocks": _product(
        (E4M3, E4M3), Tile(128, 72, 128), shape=(130, 144, 400), scale_a=ROWS, scale_b=ROWS, d_dtype="fp32"
    ),
    "fp8_exponents": _product(
        (E4M3, E5M2), WIDE, shape=(130, 144, 400), scale_a=ROWS, scale_b=SQUARES, exponents=True
    ),
    "fp8_row_exponents": _product(
        (E4M3, E4M3), WIDE, shape=(130, 144, 400), scale_a=ROWS, scale_b=ROWS, exponents=True, d_dtype="fp32"
    ),
    "int8_copied": _product((INT8, UINT8), NARROW, shape=(131, 77, 301), majors="kk", **COPIED),
    "int8_transposed": _product((INT8, INT8), NARROW, shape=(131, 77, 301), majors="mn", **COPIED),
    "fp8_transposed": _product(
        (E4M3, E4M3), NARROW, shape=(70, 153, 401), majors="kn", scale_a=ROWS, scale_b=SQUARES, **COPIED
    ),
    "quantize_rows_of_blocks": Quantized((130, 272), ROWS, E4M3),
    "quantize_exponents": Quantized((130, 272), ROWS, E4M3, torch.float32, exponents=True),
    "quantize_blocks": Quantized((130, 272), SQUARES, E5M2, torch.float16),
    "quantize_rows": Quantized((70, 1400), "row", INT8),
    "quantize_tensor": Quantized((70, 136), "tensor", E4M3),
    "quantize_transpose": Quantized((270, 136), ROWS, INT8, torch.float32, turned=True),
    "quantize_transposed_rows": Quantized((270, 136), "row", E4M3, turned=True),
}
