# SPDX-License-Identifier: Apache-2.0
"""The launches of `kernels.quantize_groups`: `quantize` on a Hopper GPU, in eager mode."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.config import QuantizeConfig
from cutegemm.config.helpers import CHUNK, MOST_CHUNKS, THREADS, TILE
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.scales import BLOCKS, ROW, TENSOR, Kind
from cutegemm.launch_layout import layout_of
from cutegemm.ops.dispatch import direct
from cutegemm.ops.serve import hopper
from cutegemm.running.backends.helper_launch import Launch, on_emulator, on_gpu
from cutegemm.running.numerics.eight_bits import EXPONENTS

ALIGN = 16  # bytes of a vector load
MOST_GRID = 65_535  # CTAs along a grid's second and third axis
FEW = 4  # rows per thread without blocks of 128 rows; smaller CTAs share an SM, and some load while others store
_NAMES: dict[Kind, str] = {BLOCKS[0]: "1x128", BLOCKS[1]: "128x128", ROW: "row", TENSOR: "tensor"}
Made = tuple[Tensor, Tensor]


def fits(x: Tensor, kind: Kind, given: bool) -> bool:
    """Whether the kernel supports a call: a Hopper GPU, and few enough tiles for the grid.

    Args:
        given: whether the caller gives scales; the kernel reads given ones only for kind "tensor".
    """
    if not (x.is_cuda and hopper(x.device) and direct(x)) or (given and kind != TENSOR):
        return False
    batches = x.shape[0] if x.dim() == 3 else 1
    rows = THREADS[0] * CHUNK // TILE * FEW
    return batches <= MOST_GRID and all(-(-extent // rows) <= MOST_GRID for extent in x.shape[-2:])


def held(dtype: torch.dtype) -> int:
    """The longest row that fits in the registers of one CTA, in elements."""
    return CHUNK * MOST_CHUNKS * THREADS[-1] * 2 // max(dtype.itemsize, 2)


@lru_cache(1024)
def _laid(
    shape: tuple[int, ...], strides: tuple[int, ...], size: int, aligned: bool
) -> tuple[bool, bool, tuple[Any, Any]]:
    """How the kernel can read and write a matrix.

    Args:
        shape, strides: of the matrix; size: bytes of an element.
        aligned: whether its address is a multiple of ALIGN.

    Returns:
        Whether rows can be read 16 bytes at a time; whether columns can, as rows of the transpose; the launch's groups
        of extents and strides.
    """
    *lead, m, k = shape
    readable = []
    for fast, slow in ((-1, -2), (-2, -1)):
        steps = [strides[i] * size for i in (slow, *range(len(lead))) if shape[i] > 1]
        whole = aligned and shape[fast] % CHUNK == 0 and all(step % ALIGN == 0 for step in steps)
        readable.append(whole and strides[fast] == 1)
    fast, slow = (-2, -1) if readable[1] and not readable[0] else (-1, -2)
    rows, columns = shape[slow], shape[fast]
    values = {
        "shape": {"rows": rows, "columns": columns, "batch": lead[0] if lead else 1},
        "strides": {
            "source.row": strides[slow],
            "source.batch": strides[0] if lead else 0,
            "values.row": _padded(columns),
            "values.batch": rows * _padded(columns),
            "turned.row": _padded(rows),
            "turned.batch": columns * _padded(rows),
        },
    }
    layout = layout_of(QuantizeConfig(source=DType.BF16, dtype=DType.INT8, kind="given"))
    shape_group, strides_group = (layout[name].pack(x) for name, x in values.items())
    return readable[0], readable[1], (shape_group, strides_group)


def _padded(extent: int) -> int:
    """The pitch in bytes of rows of values with `extent` columns."""
    return extent + -extent % ALIGN


def quantized_by(
    launch: Launch,
    x: Tensor,
    kind: Kind,
    dtype: torch.dtype,
    scale: Tensor | None,
    exponents: bool,
    twin: bool = False,
) -> tuple[Made, Made | None]:
    """Values and scales of a matrix as in `made.quantized`; with `twin` also those of its transpose.

    Args:
        launch: the function that launches kernels.
        x: on a GPU, if `fits` is true, or on a CPU for the emulator.
        scale: one for all elements, 0-d; None computes scales.
    """
    k = x.shape[-1]
    aligned = x.data_ptr() % ALIGN == 0 and not x.is_neg()
    by_rows, by_columns, groups = _laid(x.shape, x.stride(), x.element_size(), aligned)
    if not (by_rows or by_columns):
        # pad rows of the copy with zeros to whole vector loads
        copied = torch.nn.functional.pad(x, (0, -k % CHUNK)).contiguous()
        (values, scale), other = quantized_by(launch, copied, kind, dtype, scale, exponents, twin)
        if other is not None:
            by_row = kind in (ROW, BLOCKS[0])
            twin_scale = other[1].narrow(x.dim() - 2, 0, k) if by_row else other[1]
            other = other[0][..., :k, :], twin_scale
        return (values[..., :k], scale), other
    # y is the matrix whose rows are read: x or its transpose
    y, made = (x, (True, twin)) if by_rows else (x.mT, (twin, True))
    plain, turned = _quantized(launch, y, groups, (kind, dtype, scale, exponents), made)
    return (plain, turned) if by_rows else (turned, plain)  # type: ignore[return-value]


def _quantized(
    launch: Launch,
    y: Tensor,
    groups: tuple[Any, Any],
    how: tuple[Kind, torch.dtype, Tensor | None, bool],
    made: tuple[bool, bool],
) -> tuple[Made | None, Made | None]:
    """Values and scales of a matrix whose rows are read, and of its transpose; None for one that is not requested.

    Args:
        how: kind, type, given scale, and whether scales are exponents.
        made: whether to quantize the matrix, and its transpose.
    """
    (kind, dtype, scale, exponents), (plain, turned) = how, made
    (*lead, m, n), number = y.shape, torch.uint8 if exponents else torch.float32
    blocks = -(-m // TILE), -(-n // TILE)

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return y.new_empty((*lead, *shape), dtype=dtype)

    def run(name: str, tensors: dict[str, Tensor]) -> None:
        launch(_config(y.dtype, dtype, name, n, exponents, made), groups, {"source": y} | tensors)

    name = _NAMES[kind]
    out: dict[str, Tensor] = {}
    if plain:
        out["values"] = new(m, _padded(n), dtype=torch.uint8)
    if turned:
        out["turned"] = new(n, _padded(m), dtype=torch.uint8)
    if kind == ROW:
        out |= ({"scale": new(m)} if plain else {}) | ({"turned.scale": new(n)} if turned else {})
        if turned or n > held(y.dtype):
            name, extents = "lines", {"most": m} if plain else {}
            extents |= {"turned.most": n} if turned else {}
            maxima = {key: y.new_zeros((*lead, x), dtype=torch.float32) for key, x in extents.items()}
            run("amax_lines", maxima)
            out |= maxima
    elif kind == TENSOR and scale is None:
        most = y.new_zeros((), dtype=torch.float32)
        run("amax", {"most": most})
        out |= {"most": most, "scale": y.new_empty((), dtype=torch.float32)}
    elif scale is not None:
        name, out["scale"] = "given", scale
    elif kind[1] == 1:
        # unit stride along M
        out |= {"scale": new(blocks[1], m, dtype=number)} if plain else {}
        out |= {"turned.scale": new(blocks[0], n, dtype=number)} if turned else {}
    else:
        out["scale"] = new(*(blocks if plain else blocks[::-1]), dtype=number)
    run(name, out)

    def shown(which: str, columns: int) -> Made:
        own = "turned.scale" if which == "turned" else "scale"
        found = out[own if own in out else "scale"]
        if isinstance(kind, tuple) and (kind[1] == 1 or (which == "turned" and plain)):
            found = found.mT
        found = found.view(EXPONENTS) if exponents else found
        return out[which].view(dtype)[..., :columns], found

    return shown("values", n) if plain else None, shown("turned", m) if turned else None


@lru_cache(1024)
def _config(
    source: torch.dtype, dtype: torch.dtype, kind: str, columns: int, exponents: bool, made: tuple[bool, bool]
) -> QuantizeConfig:
    """The config of a call's kernel. A CTA that quantizes whole rows has only as many threads as a row needs."""
    how: Any = {"source": as_dtype(source), "dtype": as_dtype(dtype), "kind": kind, "exponents": exponents}
    how |= {"plain": made[0], "turned": made[1]}
    if kind == "row":
        chunks = -(-columns // CHUNK)
        threads = next(x for x in THREADS if chunks * CHUNK <= x * held(source) // THREADS[-1])
        return QuantizeConfig(**how, threads=threads, chunks=-(-chunks // threads))
    if made[1] or kind == "128x128":
        return QuantizeConfig(**how)
    return QuantizeConfig(**how, threads=THREADS[0], chunks=FEW)


__all__ = ["fits", "on_emulator", "on_gpu", "quantized_by"]
