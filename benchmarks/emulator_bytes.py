# SPDX-License-Identifier: Apache-2.0
"""Small 8-bit GEMMs and `quantize`, which run on a GPU and on the emulator.

Operands come from a seed: fp8 is normally distributed, integers are uniform. "special" cases have infinities, NaN and
zeros, or the largest integers, whose sums saturate. Specs fix the tile, so the order of sums does not depend on the
planner. Together the cases have every pair of types, every type of D, promotion on and off, every pair of kinds of
scales, zero points of both kinds, and conversions to 8 bits in an epilogue and by `quantize`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, emulator
from cutegemm import epilogue as epi
from cutegemm.ops.quantized import kernel

E4M3, E5M2, INT8, UINT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8
ROWS, SQUARES = ("block", 1, 128), ("block", 128, 128)
# names of kinds of scales in names of cases
KINDS: dict[str, Any] = {"tensor": "tensor", "row": "row", "blocks": ROWS, "squares": SQUARES}


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
        special: whether A has infinities, NaN and zeros; of integers, whether rows and columns have the largest ones.
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
        if self.special and not self.types[0].is_floating_point:
            a[:2], b[:, 1:3] = torch.iinfo(a.dtype).max, torch.iinfo(b.dtype).max
        elif self.special:
            # e4m3 has no infinity, and versions of torch round it differently
            a[1, 3], a[2, 5], a[3, :] = math.nan if a.dtype == E4M3 else math.inf, math.nan, 0
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
        """D, and what else the epilogue stores, from the emulator or a GPU."""
        named = self.inputs()
        a, b = named.pop("a"), named.pop("b")
        if emulated:
            made = emulator.run(Gemm(self.spec), a, b, options=emulator.Options(progress=False), **named).d
        else:
            given = {name: x.cuda() for name, x in named.items()}
            made = Gemm(self.spec).run(moved(a), moved(b), backend="gpu", **given)
        return outputs(made)


@dataclass(frozen=True)
class Quantized:
    """`quantize` of a matrix.

    Attributes:
        shape: (rows, K).
        kind: of the scales.
        dtype, source: types of the values and of the input.
        exponents: whether scales of blocks are ue8m0.
        turned: whether the matrix is column-major.
        given: whether the scale is given, of a tensor.
        twin: whether the transpose is quantized as well.
    """

    shape: tuple[int, int]
    kind: Any
    dtype: torch.dtype
    source: torch.dtype = torch.bfloat16
    exponents: bool = False
    turned: bool = False
    given: bool = False
    twin: bool = False

    def inputs(self) -> dict[str, Tensor]:
        """Elements of many magnitudes, with infinities, NaN, zeros and subnormals."""
        draw = torch.Generator().manual_seed(sum(self.shape))
        # factors by bits: exponentials may differ between processors
        exponents = torch.randint(-12, 13, (self.shape[0], 1), generator=draw, dtype=torch.int32)
        x = torch.randn(self.shape, generator=draw) * (exponents + 127 << 23).view(torch.float32)
        x[0], x[1, 1], x[2, 0], x[3, 7], x[4, 0], x[5] = 0, -0.0, 1e-7, math.inf, math.nan, 1e-40
        x = x.to(self.source)
        return {"x": x.T.contiguous().T if self.turned else x}

    def results(self, emulated: bool) -> tuple[Tensor, ...]:
        """Values and scales, from the emulator or a GPU; fp32 NaNs become -1, since their bits may differ."""
        x, scale = self.inputs()["x"], torch.tensor(0.037) if self.given else None
        if emulated:
            how = x, self.kind, self.dtype, scale, self.exponents, self.twin
            one, other = kernel.quantized_by(kernel.on_emulator, *how)
        else:
            types = {"scale_dtype": torch.float8_e8m0fnu} if self.exponents else {}
            given = {} if scale is None else {"scale": scale.cuda()}
            made: Any = cutegemm.quantize(
                moved(x), self.kind, self.dtype, transposed=self.twin, **types, **given
            )
            one, other = made if self.twin else (made, None)
        found = [y for pair in (one, other) if pair is not None for y in pair]
        return tuple(
            y if y.dtype.itemsize == 1 else y.nan_to_num(-1.0, math.inf) for y in map(_on_cpu, found)
        )


def outputs(made: Any) -> tuple[Tensor, ...]:
    """What a GEMM has stored, contiguous on the CPU: D, or D and other outputs in their order."""
    found = [made] if isinstance(made, Tensor) else list(vars(made).values())
    return tuple(map(_on_cpu, found))


def _on_cpu(x: Tensor) -> Tensor:
    """A contiguous copy; single bytes are copied as such, since not every 8-bit type is copied on every device."""
    if x.dtype.itemsize > 1:
        return x.cpu().contiguous()
    return x.view(UINT8).cpu().contiguous().view(x.dtype)


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


def moved(x: Tensor, device: str = "cuda") -> Tensor:
    """A copy on the GPU with the same strides and alignment."""
    offset = x.data_ptr() % 16 // x.element_size()
    span = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    memory = torch.empty(span + offset, dtype=x.dtype, device=device)
    found = memory.as_strided(x.shape, x.stride(), offset)
    found.copy_(x)
    return found


def _product(types: tuple[torch.dtype, torch.dtype], tile: Tile, **more: Any) -> Product:
    of = {x.name: more.pop(x.name) for x in dataclasses.fields(Product) if x.name in more}
    return Product(GemmSpec(tile=tile, swap=False, **more), types=types, **{"shape": (70, 40, 400), **of})


NARROW, WIDE = Tile(64, 48, 128), Tile(128, 80, 128)
COPIED = {"a_load": "relayout", "b_load": "relayout", "offset": 3}


def _quantizing(kind: Any, dtype: str, scale_dtype: str = "fp32") -> epi.Graph:
    """An epilogue that stores D in 8 bits, and its scales."""

    @epi.define
    def quantizing(acc: epi.Value) -> epi.Output:
        q = epi.quantize(acc, kind, dtype, scale_dtype)
        return epi.Output(d=q.values, scale=q.scale)

    return quantizing


CASES: dict[str, Product | Quantized] = {
    "int8": _product((INT8, INT8), NARROW),
    "int8_mixed": _product((UINT8, INT8), WIDE, shape=(130, 72, 1040), split_k=2, split_reduction="launch"),
    "int8_scaled": _product((INT8, UINT8), NARROW, scale_a="row", scale_b="row", d_dtype="int8"),
    "int8_zero_points": _product((UINT8, INT8), NARROW, zero_point_a="row", zero_point_b="row"),
    "uint8": _product((UINT8, UINT8), NARROW, shape=(60, 24, 208)),
    "uint8_saturated": _product((UINT8, UINT8), Tile(64, 8, 128), shape=(5, 8, 33152), special=True),
    "int8_to_uint8": _product((INT8, INT8), NARROW, scale_a="tensor", scale_b="row", d_dtype="uint8"),
    "int8_to_fp32": _product((INT8, INT8), NARROW, scale_a="row", scale_b="tensor", d_dtype="fp32"),
    "int8_to_fp16": _product((UINT8, INT8), NARROW, scale_a="tensor", scale_b="tensor", d_dtype="fp16"),
    "int8_blocks": _product((INT8, INT8), WIDE, shape=(130, 144, 400), scale_a=ROWS, scale_b=SQUARES),
    "int8_scaled_zero_points": _product(
        (UINT8, UINT8), NARROW, zero_point_a="tensor", zero_point_b="tensor", scale_a="row", scale_b="row"
    ),
    "fp8": _product((E4M3, E4M3), NARROW, d_dtype="fp32"),
    "fp8_mixed": _product((E5M2, E4M3), WIDE, shape=(130, 72, 1040)),
    "fp8_unpromoted": _product((E4M3, E4M3), NARROW, shape=(64, 40, 1024), promote=None, d_dtype="fp32"),
    "fp8_mixed_unpromoted": _product((E5M2, E4M3), WIDE, shape=(64, 40, 1024), promote=None, d_dtype="fp32"),
    "fp8_promoted_often": _product(
        (E4M3, E5M2), Tile(64, 48, 32), shape=(64, 40, 1024), promote=32, d_dtype="fp32"
    ),
    "fp8_promoted_seldom": _product((E4M3, E4M3), NARROW, shape=(64, 40, 1040), promote=512, d_dtype="fp32"),
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
    "fp8_blocks_special": _product(
        (E4M3, E5M2), WIDE, scale_a=ROWS, scale_b=ROWS, special=True, d_dtype="fp32"
    ),
    "fp8_to_e4m3": _product((E4M3, E4M3), NARROW, scale_a="tensor", scale_b="tensor", d_dtype="fp8_e4m3"),
    "fp8_to_e5m2": _product((E5M2, E5M2), NARROW, special=True, d_dtype="fp8_e5m2"),
    "fp8_to_blocks": _product(
        (E4M3, E4M3), Tile(64, 128, 128), shape=(70, 272, 400), epilogue=_quantizing(ROWS, "fp8_e4m3")
    ),
    "fp8_to_exponents": _product(
        (E4M3, E4M3),
        Tile(64, 128, 128),
        shape=(70, 272, 400),
        epilogue=_quantizing(ROWS, "fp8_e4m3", "ue8m0"),
    ),
    "fp8_to_squares": _product(
        (E4M3, E4M3), Tile(128, 128, 128), shape=(150, 272, 400), epilogue=_quantizing(SQUARES, "fp8_e5m2")
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
    "quantize_gradient": Quantized((70, 136), "row", E5M2),
    "quantize_tensor_int8": Quantized((70, 136), "tensor", INT8, torch.float16),
    "quantize_given": Quantized((70, 136), "tensor", E4M3, given=True),
    "quantize_twins": Quantized((130, 272), ROWS, E4M3, twin=True),
    "quantize_twin_rows": Quantized((130, 272), "row", E5M2, torch.float32, twin=True),
    "quantize_twin_squares": Quantized((130, 272), SQUARES, E4M3, twin=True),
}
# every other pair of kinds of scales
for _a, _b in itertools.product(KINDS, repeat=2):
    if (KINDS[_a], KINDS[_b]) not in {
        (x.spec.scale_a, x.spec.scale_b)
        for x in CASES.values()
        if isinstance(x, Product) and x.types[0].is_floating_point
    }:
        CASES[f"fp8_{_a}_by_{_b}"] = _product(
            (E4M3, E4M3), NARROW, shape=(130, 144, 272), scale_a=KINDS[_a], scale_b=KINDS[_b]
        )
