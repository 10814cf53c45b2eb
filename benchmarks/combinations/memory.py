# SPDX-License-Identifier: Apache-2.0
"""Tensors with a problem's layout at the end of their allocations, with poisoned bytes around that are checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cutegemm import Operand
from cutegemm.running.numerics.reference import TORCH_DTYPE

# value of every unwritten byte; a NaN in every type
POISON = 0xFF
# bytes of an allocation on a GPU: torch allocates 10 MiB and more separately, in multiples of 2 MiB
SLOT = 32 << 20
# checked bytes before a tensor
MARGIN = 4096
WHOLE = 40.0  # standard deviation of drawn integers


@dataclass(frozen=True)
class Placed:
    """A tensor and the bytes around it.

    Attributes:
        view: (batch, rows, cols).
        bytes: the checked bytes, up to the end of the allocation.
    """

    view: torch.Tensor
    bytes: torch.Tensor

    def around(self) -> torch.Tensor:
        """A copy of the checked bytes, with those of the view set to 0."""
        found = self.bytes.clone()
        size, origin = self.view.element_size(), self.view.data_ptr() - self.bytes.data_ptr()
        last = sum((n - 1) * s for n, s in zip(self.view.shape, self.view.stride(), strict=True))
        if self.view.numel():
            inside = found[origin : origin + (last + 1) * size].view(-1, size)
            places = torch.zeros(last + 1, dtype=torch.bool, device=found.device)
            places.as_strided(self.view.shape, self.view.stride()).fill_(True)
            inside[places] = 0
        return found


class Arena:
    """Allocations on one device; on a GPU the next case reuses them.

    Args:
        device: torch device.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._slots: list[torch.Tensor] = []
        self._used = 0

    def reset(self) -> None:
        """Allow all placed tensors to be overwritten."""
        self._used = 0

    def place(self, x: Operand) -> Placed:
        """A poisoned tensor with an operand's layout, at the end of an allocation."""
        extents = (x.batch, x.rows, x.cols)
        strides = (x.strides[2], x.strides[0], x.strides[1])
        dtype = TORCH_DTYPE[x.dtype]
        span = sum((n - 1) * s for n, s in zip(extents, strides, strict=True)) + 1
        span = max(span if 0 not in extents else 1, 1) * dtype.itemsize
        home = self._memory(span)
        start = len(home) - span
        # the nearest lower address with exactly this alignment
        address = home.data_ptr() + start
        address -= (address - (x.align if x.align < 16 else 0)) % min(2 * x.align, 16)
        start = address - home.data_ptr()
        if self.device == "cpu":
            # the allocation ends with the tensor
            home = home[: start + span]
        flat = home[start : start + span // dtype.itemsize * dtype.itemsize].view(dtype)
        return Placed(flat.as_strided(extents, strides), home[max(0, start - MARGIN) :])

    def _memory(self, span: int) -> torch.Tensor:
        """Poisoned bytes in a separate allocation."""
        if self.device == "cpu":
            return torch.full((64 + span,), POISON, dtype=torch.uint8)
        if self._used == len(self._slots):
            self._slots.append(torch.empty(SLOT, dtype=torch.uint8, device=self.device))
        slot = self._slots[self._used]
        self._used += 1
        slot[-min(SLOT, span + 2 * MARGIN) :].fill_(POISON)
        return slot


def fill(view: torch.Tensor, generator: torch.Generator, scale: float = 1.0) -> None:
    """Fill a view with normal elements, integers around 0 or the middle; elements at one address are equal."""
    for axis, stride in enumerate(view.stride()):
        if stride == 0 and view.shape[axis] > 1:
            view = view.narrow(axis, 0, 1)
    drawn = torch.randn(view.shape, generator=generator, device=view.device, dtype=torch.float32)
    if not view.dtype.is_floating_point:
        limits = torch.iinfo(view.dtype)
        drawn = (drawn * WHOLE + limits.max // 2 * (limits.min == 0)).clamp(limits.min, limits.max)
    view.copy_((drawn * scale).to(view.dtype))
