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
from cutegemm.dtypes import as_dtype
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
# (config, arguments by group and name, tensors by name)
Launch = Callable[[Config, dict[str, dict[str, int]], dict[str, Tensor]], None]


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


def readable(x: Tensor) -> bool:
    """Whether threads can read a matrix's rows 16 bytes at a time."""
    steps = (x.stride(i) * x.element_size() for i in range(x.dim() - 1) if x.shape[i] > 1)
    aligned = x.data_ptr() % ALIGN == 0 and x.stride(-1) == 1 and x.shape[-1] % CHUNK == 0
    return aligned and all(step % ALIGN == 0 for step in steps) and not x.is_neg()


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
    turned = not readable(x) and readable(x.mT)
    # else a copy, with zeros behind its rows
    read = x.mT if turned else x if readable(x) else torch.nn.functional.pad(x, (0, -k % CHUNK)).contiguous()
    pitch, batch = k + -k % ALIGN, lead[0] if lead else 1
    values = x.new_empty((*lead, m, pitch), dtype=torch.uint8)
    groups = {
        "shape": {"rows": read.shape[-2], "columns": read.shape[-1], "batch": batch},
        "strides": {
            "source.row": read.stride(-2),
            "source.batch": read.stride(0) if lead else 0,
            "values.row": pitch,
            "values.batch": m * pitch,
        },
    }

    def run(name: str, found: Tensor) -> None:
        config = _config(x.dtype, dtype, name, 0 if turned else k, exponents)
        launch(config, groups, {"source": read, "values": values, "scale": found})

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


def on_gpu(config: Config, groups: dict[str, dict[str, int]], tensors: dict[str, Tensor]) -> None:
    """Launch on the current stream of the tensors' device."""
    device = tensors["source"].device
    with torch.cuda.device(device):
        index = torch.cuda.current_device()
        function = launcher.function_for(config, index)
        function(*_packed(config, groups, tensors), torch.cuda.current_stream().cuda_stream)


def on_emulator(config: Config, groups: dict[str, dict[str, int]], tensors: dict[str, Tensor]) -> None:
    """Run by the emulator, on CPU tensors.

    Raises:
        EmulatorError: the kernel breaks a rule of the hardware.
    """
    # their import is slow
    from cutegemm.emulator import run_steps, tensor_buffer
    from cutegemm.running.backends.emulator_steps import of_launch

    steps = of_launch(config, (*_packed(config, groups, tensors), 0))
    run_steps(steps, [tensor_buffer(x, name) for name, x in tensors.items()])


def _packed(config: Config, groups: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[Any, ...]:
    addresses = {name: x.data_ptr() for name, x in tensors.items()}
    return layout_of(config).pack(groups | {"addresses": addresses})


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


__all__ = ["fits", "on_emulator", "on_gpu", "quantized_by", "readable", "scales_of"]
