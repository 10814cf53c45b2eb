# SPDX-License-Identifier: Apache-2.0
"""What registers hold: a thread's accumulators, and the register file of an SM by the warpgroups that share it."""

from __future__ import annotations

from typing import Any, NamedTuple

from cutegemm.config.numbers import Number, looked_up, most, where
from cutegemm.families.family import PLAIN_CONSUMERS

Kernel = Any  # a `KernelDraft`, whose own properties ask what registers hold


class Share(NamedTuple):
    """The registers of some warpgroups: their role, how many there are, and registers of each thread.

    No registers is what the launch allocates.
    """

    role: str
    warpgroups: Number
    registers: Number


def register_file(config: Kernel) -> list[Share]:
    """What the warpgroups of one CTA take of an SM's registers."""
    producer, consumer = set_registers(config)
    return [Share("producer", config.producers, producer), Share("consumer", config.consumers, consumer)]


def set_registers(config: Kernel) -> tuple[Number, Number]:
    """(producer, consumer) registers of a thread, at most 512 in the four warpgroups of an SM's quarter; 0 is what the
    launch allocates."""
    roles, none, held = config.roles, (0, 0), config.roles.accumulators.get(PLAIN_CONSUMERS, 0)
    # with what this leaves it a producer spills that loads several scales of B, or any beside early tiles
    loaded = sum(config.scales_of(x) << bool(config.early) for x in config.epilogue.scales if x.axis == "n")
    wide = (config.consumers == PLAIN_CONSUMERS) & (config.held_values > held) & (loaded <= 1)
    plain = roles.plain_registers or none
    usual = looked_up(roles.registers.get(config.gathers, {}), config.consumers, none)
    shared = looked_up(roles.shared_registers, config.consumers, none)
    crowded = config.ctas_per_sm > 1
    producer, consumer = (where(crowded, x, where(wide, y, z)) for x, y, z in zip(shared, plain, usual))
    return producer, consumer


def plain(config: Kernel) -> bool:
    """Whether threads hold little beside accumulators: one output, stored by TMA, no sums, nothing drawn at random."""
    alone = len(config.outputs) == 1 and config.outputs[0].store == "tma"
    graph = config.epilogue
    return alone and not graph.reductions and all(node.op != "random" for node in graph.nodes)


def most_accumulators(config: Kernel) -> Number:
    """How many accumulators a thread holds at most, whatever the tile; 0 where the warpgroups cannot share an SM."""
    roles, gathers = config.roles, config.gathers
    shared = 0 if gathers else looked_up(roles.shared_accumulators, config.consumers)
    # beside its own accumulators a thread holds what it reads of other splits
    left = (config.split_reduction == "launch") & (config.cluster_splits == 1)
    laden = gathers | ((config.split_reduction != "none") & (left ^ True))
    bare = looked_up(roles.accumulators, config.consumers)
    together = where(laden, looked_up(roles.laden or roles.accumulators, config.consumers), bare)
    found = where(config.pingpong, roles.turns.get(gathers, 0), together)
    if plain(config):
        alone = (config.consumers == PLAIN_CONSUMERS) & (laden ^ True)
        found = where(alone, most(found, roles.plain_accumulators), found)
    return where(config.ctas_per_sm > 1, shared, found)


def holder(config: Kernel) -> str:
    """The warpgroups that hold the accumulators, as the subject of an error's sentence."""
    if config.ctas_per_sm > 1:
        return f"{config.consumers} consumer warpgroups, with {config.ctas_per_sm} CTAs an SM, hold"
    if config.pingpong:
        return "a warpgroup of a pingpong kernel holds"
    return f"{config.consumers} consumer warpgroups hold"
