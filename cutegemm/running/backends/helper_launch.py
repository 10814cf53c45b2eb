# SPDX-License-Identifier: Apache-2.0
"""Launches of one kernel without a plan, such as those of `quantize`: on a GPU, or in the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cutegemm.config import Config
from cutegemm.launch_layout import layout_of
from cutegemm.running.backends import launcher
from cutegemm.running.backends.uncompiled import uncompiled

# takes (config, the groups of extents and strides, tensors by the names of their addresses)
Launch = Callable[[Config, tuple[Any, ...], dict[str, Tensor]], Any]


@uncompiled
def on_gpu(config: Config, groups: tuple[Any, ...], tensors: dict[str, Tensor]) -> None:
    """Launch on the current stream of the tensors' device."""
    device: Any = tensors["source"].device.index
    if launcher._current_device() != device:  # type: ignore[misc]
        with torch.cuda.device(device):
            return on_gpu(config, groups, tensors)
    stream = launcher._current_stream(device)  # type: ignore[misc]
    launcher.function_for(config, device)(_addresses(config, tensors), *groups, stream)


def on_emulator(
    config: Config, groups: tuple[Any, ...], tensors: dict[str, Tensor], options: Any = None
) -> list[Any]:
    """Run in the emulator on CPU tensors, and return its reports.

    Raises:
        EmulatorError: the kernel breaks a rule of the hardware.
    """
    # importing these is slow
    from cutegemm.emulator import run_steps, tensor_buffer
    from cutegemm.running.backends.emulator_steps import of_launch

    steps = of_launch(config, (_addresses(config, tensors), *groups, 0))
    return run_steps(steps, [tensor_buffer(x, name) for name, x in tensors.items()], options)


def _addresses(config: Config, tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """Addresses in the launch's order; 0 for a tensor that the kernel does not use."""
    names = layout_of(config)["addresses"].names
    return tuple([tensors[x].data_ptr() if x in tensors else 0 for x in names])


__all__ = ["Launch", "on_emulator", "on_gpu"]
