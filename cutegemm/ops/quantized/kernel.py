# SPDX-License-Identifier: Apache-2.0
"""The launches of `kernels.quantize_groups`: `quantize` on a Hopper GPU, in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cutegemm.config import Config, QuantizeConfig
from cutegemm.config.helpers import CHUNK, MOST_CHUNKS, TILE
from cutegemm.dtypes import DType, as_dtype
from cutegemm.epilogue.scales import BLOCKS, ROW, TENSOR, Kind
from cutegemm.launch_layout import layout_of
from cutegemm.ops.dispatch import direct
from cutegemm.ops.serve import hopper
from cutegemm.running.backends import launcher
from cutegemm.running.numerics.reference import EXPONENTS

ALIGN = 16  # bytes of a load
THREADS = (128, 256, 512, 1024)
MOST_GRID = 65_535  # CTAs along a grid's second and third axis
_NAMES: dict[Kind, str] = {BLOCKS[0]: "1x128", BLOCKS[1]: "128x128"}
# (config, the groups of extents and strides, tensors by name)
Launch = Callable[[Config, tuple[Any, Any], dict[str, Tensor]], None]


def fits(x: Tensor, kind: Kind, given: bool) -> bool:
    """Whether the kernel serves a call: a grid's extents are limited, and a CTA holds a row that has one scale.

    Args:
        given: whether scales are; of all elements alone may they be.
    """
    if not (x.is_cuda and hopper(x.device) and direct(x)) or (given and kind != TENSOR):
        return False
    m, k = x.shape[-2:]
    batches = x.shape[0] if x.dim() == 3 else 1
    held = isinstance(kind, tuple) or k <= CHUNK * MOST_CHUNKS * THREADS[-1]
    return held and batches <= MOST_GRID and -(-m // TILE) <= MOST_GRID


@lru_cache(1024)
def _laid(
    shape: tuple[int, ...], strides: tuple[int, ...], size: int, aligned: bool
) -> tuple[bool, bool, int, tuple[Any, Any]]:
    """How a matrix is read and written.

    Args:
        shape, strides: of the matrix; size: bytes of an element.
        aligned: whether it begins at a multiple of ALIGN.

    Returns:
        Whether threads can read 16 bytes at a time of its rows, whether of its columns; elements from row to row of the
        values; the launch's groups of extents and strides.
    """
    *lead, m, k = shape
    readable = []
    for fast, slow in ((-1, -2), (-2, -1)):
        steps = [strides[i] * size for i in (slow, *range(len(lead))) if shape[i] > 1]
        whole = aligned and shape[fast] % CHUNK == 0 and all(step % ALIGN == 0 for step in steps)
        readable.append(whole and strides[fast] == 1)
    fast, slow = (-2, -1) if readable[1] and not readable[0] else (-1, -2)
    pitch = k + -k % ALIGN
    values = {
        "shape": {"rows": shape[slow], "columns": shape[fast], "batch": lead[0] if lead else 1},
        "strides": {
            "source.row": strides[slow],
            "source.batch": strides[0] if lead else 0,
            "values.row": pitch,
            "values.batch": m * pitch,
        },
    }
    layout = layout_of(QuantizeConfig(source=DType.BF16, dtype=DType.INT8, kind="given"))
    shape_group, strides_group = (layout[name].pack(x) for name, x in values.items())
    return readable[0], readable[1], pitch, (shape_group, strides_group)


def quantized_by(
    launch: Launch, x: Tensor, kind: Kind, dtype: torch.dtype, scale: Tensor | None, exponents: bool
) -> tuple[Tensor, Tensor]:
    """Values and scales, as `quantize.quantized` says.

    Args:
        launch: how kernels are launched.
        x: for which `fits` holds, or on a CPU for the emulator.
        scale: of all elements, 0-d; None computes scales.
    """
    *lead, m, k = x.shape
    aligned = x.data_ptr() % ALIGN == 0 and not x.is_neg()
    by_rows, by_columns, pitch, groups = _laid(x.shape, x.stride(), x.element_size(), aligned)
    if not (by_rows or by_columns):
        # a copy, with zeros behind its rows
        copied = torch.nn.functional.pad(x, (0, -k % CHUNK)).contiguous()
        values, scale = quantized_by(launch, copied, kind, dtype, scale, exponents)
        return values[..., :k], scale
    turned = not by_rows
    values = x.new_empty((*lead, m, pitch), dtype=torch.uint8)

    def run(name: str, found: Tensor) -> None:
        config = _config(x.dtype, dtype, name, 0 if turned else k, exponents)
        launch(config, groups, {"source": x, "values": values, "scale": found})

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return x.new_empty((*lead, *shape), dtype=dtype)

    blocks = -(-k // TILE)
    largest = _config(x.dtype, dtype, "given", 0, False).largest
    if kind in (TENSOR, ROW) and scale is None and (turned or kind == TENSOR):
        most = new(blocks, m) if turned else new(m)
        run("amax", most)
        scale = scales_of(most.amax() if kind == TENSOR else most.amax(-2), largest)
        run("given" if kind == TENSOR else "row", scale)
    elif kind == TENSOR:
        run("given", scale)  # type: ignore[arg-type]
    elif kind == ROW:
        run("row", scale := new(m))
    else:
        held = torch.uint8 if exponents else torch.float32
        # scales of 1 x 128 have unit stride along M
        squares = kind[1] != 1
        run(
            _NAMES[kind],
            found := new(-(-m // TILE), blocks, dtype=held) if squares else new(blocks, m, dtype=held),
        )
        scale = found if squares else found.mT
        scale = scale.view(EXPONENTS) if exponents else scale
    return values.view(dtype)[..., :k], scale  # type: ignore[return-value]


def scales_of(amax: Tensor, largest: float) -> Tensor:
    """The scales of groups of these largest magnitudes, in fp32."""
    smallest = torch.finfo(torch.float32).tiny  # reciprocals of smaller scales overflow
    # on a GPU torch multiplies by the reciprocal of a number
    return torch.where(amax == 0, 1.0, (amax / amax.new_full((), largest)).clamp(min=smallest))


def on_gpu(config: Config, groups: tuple[Any, Any], tensors: dict[str, Tensor]) -> None:
    """Launch on the current stream of the tensors' device."""
    device: Any = tensors["source"].device.index
    if launcher._current_device() != device:  # type: ignore[misc]
        with torch.cuda.device(device):
            return on_gpu(config, groups, tensors)
    stream = launcher._current_stream(device)  # type: ignore[misc]
    launcher.function_for(config, device)(_addresses(tensors), *groups, stream)


def on_emulator(config: Config, groups: tuple[Any, Any], tensors: dict[str, Tensor]) -> None:
    """Run by the emulator, on CPU tensors.

    Raises:
        EmulatorError: the kernel breaks a rule of the hardware.
    """
    # their import is slow
    from cutegemm.emulator import run_steps, tensor_buffer
    from cutegemm.running.backends.emulator_steps import of_launch

    steps = of_launch(config, (_addresses(tensors), *groups, 0))
    run_steps(steps, [tensor_buffer(x, name) for name, x in tensors.items()])


def _addresses(tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """In the order of a launch's, which is that of `tensors`."""
    return tuple([x.data_ptr() for x in tensors.values()])


@lru_cache(1024)
def _config(source: torch.dtype, dtype: torch.dtype, kind: str, k: int, exponents: bool) -> QuantizeConfig:
    """The kernel of a call: of rows of `k` elements, or of columns of the matrix that is read, where `k` is 0.

    A CTA that has a row has no more threads than hold it.
    """
    how: Any = {"source": as_dtype(source), "dtype": as_dtype(dtype), "kind": kind, "turned": not k}
    if not k or kind not in ("row", "amax"):
        return QuantizeConfig(**how, exponents=exponents)
    chunks = -(-k // CHUNK)
    threads = next(x for x in THREADS if chunks <= x * MOST_CHUNKS)
    return QuantizeConfig(**how, threads=threads, chunks=-(-chunks // threads))


__all__ = ["fits", "on_emulator", "on_gpu", "quantized_by", "scales_of"]
