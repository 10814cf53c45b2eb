# SPDX-License-Identifier: Apache-2.0
"""The launches of a run with all arguments packed once, except addresses and the epilogue's numbers.

Packing everything in every call (`plans.kernel_plan`) takes longer on the host than several launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from cutegemm.launch_layout import COUNTERS, layout_of
from cutegemm.plans.kernel_plan import KernelPlan

WORKSPACE = "workspace."  # with a dot, so that it differs from the names of an epilogue's tensors
# bytes between the placeholder addresses of sources; offsets within a source are smaller
SPAN = 1 << 44
ADDRESSES, NUMBERS = "addresses", "numbers"


@dataclass(frozen=True)
class Packed:
    """One launch.

    Attributes:
        function: launches the kernel.
        places: the source of each address (name of a tensor, workspace or counters) and an offset in bytes.
        numbers: names of the numbers that are passed by value; None if there are none.
        before, after: the groups of arguments between addresses and numbers, and after them.
    """

    function: Callable[..., None]
    places: tuple[tuple[str, int], ...]
    numbers: tuple[str, ...] | None
    before: tuple[Any, ...]
    after: tuple[Any, ...]

    def __call__(self, addresses: Mapping[str, int], numbers: Mapping[str, float], stream: int) -> None:
        """Launch.

        Args:
            addresses: by name, including `WORKSPACE` and `COUNTERS`.
            numbers: by name.
            stream: CUDA stream handle.
        """
        where = tuple([addresses[name] + offset for name, offset in self.places])
        if self.numbers is None:
            self.function(where, *self.before, stream)
        else:
            values = tuple([numbers[name] for name in self.numbers])
            self.function(where, *self.before, values, *self.after, stream)


def packed(
    plan: KernelPlan, names: Sequence[str], numbers: Sequence[str], functions: Sequence[Callable[..., None]]
) -> list[Packed]:
    """The launches of a plan.

    Args:
        plan: of the run.
        names, numbers: of the tensors and of the numbers that a call passes.
        functions: launching functions, one per step.
    """
    # address // SPAN identifies the source; the remainder is the offset
    sources = [*names, COUNTERS, WORKSPACE]
    told = {name: (i + 1) * SPAN for i, name in enumerate(sources)}
    workspace = told.pop(WORKSPACE)
    found = []
    for step, function in zip(plan.steps, functions, strict=True):
        values = step.values(told, workspace, dict.fromkeys(numbers, 0.0))
        groups = {group.name: group for group in layout_of(step.config).groups}
        addresses = groups.pop(ADDRESSES).pack(values[ADDRESSES])
        places = tuple([(sources[x // SPAN - 1], x % SPAN) for x in addresses])
        passed = (
            groups[NUMBERS].names
            if NUMBERS in groups and set(groups[NUMBERS].names) <= set(numbers)
            else None
        )
        order = list(groups)
        cut = len(order) if passed is None else order.index(NUMBERS)
        fixed = {name: tvm_ffi.convert(group.pack(values[name])) for name, group in groups.items()}
        before, after = ([fixed[x] for x in part] for part in (order[:cut], order[cut + 1 :]))
        found.append(Packed(function, places, passed, tuple(before), tuple(after)))
    return found


__all__ = ["WORKSPACE", "Packed", "packed"]
