# SPDX-License-Identifier: Apache-2.0
"""A CTA's shared memory: slices and barriers by the names of its plan (`config.shared`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.config.shared import SharedPlan


@dataclass(frozen=True)
class Shared:
    """The shared memory of a tensor-core kernel. Regions are allocated in the plan's order, so they get its offsets.

    Attributes:
        plan: regions and barriers.
        allocator: the DSL's, which allocates one region after another.
        taken: pointers to the regions that have been allocated.
    """

    plan: SharedPlan
    allocator: Any
    taken: dict[str, Any]

    @staticmethod
    def create(config: KernelConfig) -> Shared:
        """The shared memory of a config; nothing is allocated yet."""
        return Shared(SharedPlan.of(config), cutlass.memory.SmemAllocator(), {})

    def _start(self, name: str) -> Any:
        """A pointer to a region, which is allocated when it is first asked for.

        Raises:
            RuntimeError: a region that lies before it is not allocated yet.
        """
        if name not in self.taken:
            first = next(x for x in self.plan.regions if x.name not in self.taken)
            if first.name != name:
                raise RuntimeError(f"shared memory: {first.name} lies before {name} and is not allocated yet")
            self.taken[name] = self.allocator.allocate(first.size, first.align)
        return self.taken[name]

    def array(self, name: str, numeric: Any, skipped: int = 0) -> Any:
        """A pointer to elements of a region, `skipped` bytes after its start."""
        start = self._start(name)
        return cute.recast_ptr(start + skipped if skipped else start, dtype=numeric)

    def tensor(self, name: str, numeric: Any, layout: Any) -> cute.Tensor:
        """A region as a tensor of a plain or a swizzled layout."""
        start = self._start(name)
        if isinstance(layout, cute.ComposedLayout):
            return cute.make_tensor(cute.recast_ptr(start, layout.inner, dtype=numeric), layout.outer)
        return cute.make_tensor(cute.recast_ptr(start, dtype=numeric), layout)

    def barriers(self, name: str) -> Any:
        """A pointer to the first mbarrier of a name."""
        found = self.plan.barrier(name)
        start = self.array(found.place, cutlass.Int64)
        return start + found.first if found.first else start

    def init(self, name: str, barrier: Any) -> None:
        """Initialise one mbarrier of a name with its arrivals; call from one thread."""
        cute.arch.mbarrier_init(barrier, self.plan.barrier(name).arrivals)


def wait_named(config: KernelConfig, name: str, which: Any = 0) -> None:
    """Arrive at a named barrier and wait for the others; `which` of those of that name."""
    found = SharedPlan.of(config).barrier(name)
    cute.arch.barrier(barrier_id=found.first + which, number_of_threads=found.arrivals)


def arrive_named(config: KernelConfig, name: str, which: Any = 0) -> None:
    """Arrive at a named barrier without waiting."""
    found = SharedPlan.of(config).barrier(name)
    cute.arch.barrier_arrive(barrier_id=found.first + which, number_of_threads=found.arrivals)
