# SPDX-License-Identifier: Apache-2.0
"""wgmma: accumulator registers, and instructions as they are issued.

What they compute is in `products.py`; groups, their start and their waits are the warpgroup's (`warpgroup.py`).

Source: PTX ISA 9.0, 9.7.16 (wgmma).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.memory import Fault
from cutegemm.emulator.units.accumulators import matrix_of
from cutegemm.emulator.units.products import Product

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Value, Vector
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.units.products import Form, Place


def accumulator_get(group: Group, index: int, register: int) -> Vector:
    """Read an accumulator register."""
    if group.tracker is not None:
        group.tracker.accumulator(index, False)
    return matrix_of(group, index).register(register).reshape(group.lanes)


def accumulator_peek(group: Group, index: int, register: int) -> Vector:
    """Read an accumulator register to copy it to another: compilers zero a whole list that way."""
    return matrix_of(group, index).register(register).reshape(group.lanes)


def accumulator_set(group: Group, index: int, register: int, value: Value, mask: Mask) -> None:
    """Write an accumulator register."""
    if group.tracker is not None:
        group.tracker.accumulator(index, True)
    view = matrix_of(group, index).register(register)
    if value.__class__ is ND:
        value = value.reshape(view.shape)
    if mask is None:
        view[...] = value
    else:
        view[...] = np.where(mask.reshape(view.shape), value, view)


def wgmma_issue(
    group: Group, where: Place, a: Value | tuple[int, ...], b: Value, scale: Value, form: Form
) -> None:
    """wgmma.mma_async: remembered until its group is committed."""
    token = None if group.tracker is None else group.tracker.issue_wgmma(where, a, b, form)
    group.device.watch.wgmma(group, form, isinstance(a, tuple))
    scale = scale if scale.__class__ is ND else bool(scale)
    if scale.__class__ is ND and scale.all():
        scale = True
    group.wgmma_open.append(Product(group, where, a, b, scale, form, token))
    group.wgmma_issued += 1


def wgmma_fence(group: Group) -> None:
    """wgmma.fence: orders register and shared accesses before wgmma; only the race detector follows it."""
    if group.tracker is not None:
        group.tracker.wgmma_fence()


def refuse_mask(group: Group, mask: npt.NDArray[np.bool_]) -> None:
    """wgmma is for whole warpgroups."""
    if not mask.reshape(-1, 32).all(1).any() or group.stack:
        raise Fault("wgmma in divergent code")
