# SPDX-License-Identifier: Apache-2.0
"""`Family`: one kind of kernel, as data."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutegemm.families.abilities import Abilities

# consumer warpgroups whose threads may have more accumulators under a plain epilogue
PLAIN_CONSUMERS = 2


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The warpgroup roles of a tensor-core kernel, and its register limits.

    Limits of accumulators are the most fp32 accumulators per thread that compile without spills, whatever the
    epilogue's types are. They were measured with the DSL's ptxas for fp32 column-major D with C, which needs the most
    registers. A table of registers maps consumer warpgroups to (producer, consumer) registers per thread.
    """

    producers: int  # warpgroups that only load, by TMA (also multicast) or by threads
    accumulators: Mapping[int, int]  # by the number of consumer warpgroups that share a tile
    # the same if the producer loads by threads or splits are reduced in workspace; empty if the limits are equal
    laden: Mapping[int, int] = field(default_factory=dict)
    # for pingpong consumers, by whether the producer loads by threads; empty without pingpong
    turns: Mapping[bool, int] = field(default_factory=dict)
    # by whether the producer loads by threads; at most 512 over all warpgroups; empty without setmaxnreg
    registers: Mapping[bool, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    # for two consumers, sharing a tile or pingpong, under a plain epilogue (`config.registers.plain`)
    plain_accumulators: int = 0
    # registers if there are more accumulators than `accumulators` allows
    plain_registers: tuple[int, int] | None = None
    # if two CTAs share an SM; at most 256 registers over all warpgroups of one
    shared_accumulators: Mapping[int, int] = field(default_factory=dict)
    shared_registers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    multiplies: bool = True  # False: it only reduces the splits of another kernel

    def most(self, consumers: int, laden: bool) -> int:
        """The most accumulators per thread of consumers that share a tile; `laden` selects that table."""
        return (self.laden if laden and self.laden else self.accumulators)[consumers]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of kernel. Paths are "module:name" and are imported on first use."""

    name: str  # in configs, plans and cache keys
    config: str  # path of its config's class
    driver: str  # path of its driver, which is made from a config and called to trace the kernel
    plan: str | None = None  # path of the function that plans a problem; None for helper kernels
    weigh: str | None = None  # path of the function that lists a plan's candidates (`KernelPlan.why`), if any
    beside: str | None = None  # path of the function that tells if bf16 is predicted to be faster, if any
    # keys are the spec's schedules, or the family's own name if no spec can select it
    abilities: Mapping[str, Abilities]
    limits: Roles | None = None  # None if it is not a tensor-core kernel

    @property
    def schedules(self) -> tuple[str, ...]:
        """The spec's schedules that select it."""
        return tuple(self.abilities) if self.plan else ()

    @property
    def roles(self) -> Roles:
        """The roles of a tensor-core family; TypeError for others."""
        if self.limits is None:
            raise TypeError(f"{self.name} is not a tensor-core family")
        return self.limits


def load(path: str) -> Any:
    """The object at a path "module:name"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
