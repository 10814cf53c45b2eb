# SPDX-License-Identifier: Apache-2.0
"""`Family`: what tells one kind of kernel from another."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutegemm.families.abilities import Abilities

# consumer warpgroups whose threads may hold more under a plain epilogue
PLAIN_CONSUMERS = 2


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Who does what in a tensor-core kernel, and what its registers hold.

    Attributes:
        producers: warpgroups that only load. They multicast, and they gather what TMA cannot address.
        accumulators: consumer warpgroups that share a tile -> most fp32 accumulators per thread that compile
            without spills, whatever the epilogue's types (measured with the DSL's ptxas: fp32 column-major D
            with C, which needs most registers).
        laden: the same where threads hold more beside: a producer gathers, or parts of K are added up in workspace.
            Empty where that changes nothing.
        turns: the same for consumers that take tiles in turn, by whether a producer gathers, which leaves
            fewer registers. Empty where they cannot.
        plain_accumulators, plain_registers: the same of two consumers, sharing a tile or taking turns, under a plain
            epilogue (`config.registers.plain`); (producer, consumer) registers of those that hold more than
            `accumulators` has.
        shared_accumulators, shared_registers: the same of a CTA that leaves half of the SM to another, by consumer
            warpgroups: accumulators per thread, and (producer, consumer) registers, which sum to at most 256.
        multiplies: whether it makes sums; else it adds up those that another kernel left.
        registers: whether a producer gathers -> consumer warpgroups -> (producer, consumer) registers per
            thread. Over the warpgroups they sum to at most 512. Empty where the launch's allocation stays.
    """

    producers: int
    accumulators: Mapping[int, int]
    laden: Mapping[int, int] = field(default_factory=dict)
    turns: Mapping[bool, int] = field(default_factory=dict)
    registers: Mapping[bool, Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    plain_accumulators: int = 0
    plain_registers: tuple[int, int] | None = None
    shared_accumulators: Mapping[int, int] = field(default_factory=dict)
    shared_registers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    multiplies: bool = True

    def most(self, consumers: int, laden: bool) -> int:
        """Accumulators per thread of consumers that share a tile; `laden` as for the table of that name."""
        return (self.laden if laden and self.laden else self.accumulators)[consumers]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of kernel. Paths are "module:name" and are imported when they are first needed.

    Attributes:
        name: in configs, plans and cache keys.
        config: path of its config's class.
        driver: path of its driver: made of a config, called to trace the kernel.
        plan: path of what plans a problem for it; None where it only serves other kernels' plans.
        weigh: path of what says how a plan's candidates fared (`KernelPlan.why`); None where nothing is chosen.
        beside: path of what says that bf16 is predicted faster (`KernelPlan.faster_in_bf16`); None where it never is.
        abilities: what its kernels can do, by the spec's names for it; by its own name where no spec can ask for it.
        limits: of a tensor-core kernel; None for others.
    """

    name: str
    config: str
    driver: str
    plan: str | None = None
    weigh: str | None = None
    beside: str | None = None
    abilities: Mapping[str, Abilities]
    limits: Roles | None = None

    @property
    def schedules(self) -> tuple[str, ...]:
        """The spec's names for it."""
        return tuple(self.abilities) if self.plan else ()

    @property
    def roles(self) -> Roles:
        """The limits of a tensor-core kernel.

        Raises:
            TypeError: it is none.
        """
        if self.limits is None:
            raise TypeError(f"{self.name} is no tensor-core family")
        return self.limits


def load(path: str) -> Any:
    """What a path "module:name" names, imported now."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
